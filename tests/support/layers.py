"""The layers of rope_xp, one row a framework, and what tests ask of all of them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rope_xp import RoPE
from rope_xp.scaling import Axial, DynamicNTK, Llama3, LongRoPE, YaRN

# keras is of one backend a process; test_keras_backends.py runs these tests with the other.
os.environ.setdefault("KERAS_BACKEND", "torch")


@dataclass(frozen=True)
class Framework:
    """A module of rope_xp.layers."""

    name: str
    arrays: str
    """The library whose arrays it takes."""
    held: Callable[[Any], list[Any]]
    """What a layer holds of what could be cast, trained or saved."""

    def layer(self, rope: Any, **options: Any) -> Any:
        pytest.importorskip(self.name)
        return importlib.import_module(f"rope_xp.layers.{self.name}").Rotary(rope, **options)

    def array(self, x: np.ndarray) -> Any:
        if self.arrays == "torch":
            return importlib.import_module("torch").from_numpy(x)
        return importlib.import_module("jax.numpy").asarray(x)


def _of_torch(layer: Any) -> list[Any]:
    return [*layer.parameters(), *layer.buffers(), *layer.state_dict().values()]


def _of_flax(layer: Any) -> list[Any]:
    import jax
    from flax import nnx

    return jax.tree.leaves(nnx.state(layer))


def _of_equinox(layer: Any) -> list[Any]:
    import jax

    return jax.tree.leaves(layer)


def _of_keras(layer: Any) -> list[Any]:
    return [*layer.weights, *layer.losses]


FRAMEWORKS = (
    Framework("torch", "torch", _of_torch),
    Framework("flax", "jax", _of_flax),
    Framework("equinox", "jax", _of_equinox),
    Framework("keras", os.environ["KERAS_BACKEND"], _of_keras),
)

every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)

ROPES = {
    "plain": RoPE(),
    "half": RoPE(base=5e5, layout="half"),
    "slice": RoPE(layout="interleaved_to_half", rotary_dim=4, rotary_offset=-4),
    "yarn": RoPE(layout="half", scaling=YaRN(4.0, 4096)),
    "mscale": RoPE(scaling=YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=0.7)),
    "given": RoPE(scaling=YaRN(4.0, 4096, attention_factor=1.5)),
    "llama3": RoPE(scaling=Llama3(8.0, 1.0, 4.0, 8192)),
    "longrope": RoPE(scaling=LongRoPE((1.0,) * 8, (2.5,) * 8, 4096, factor=8.0)).for_length(5000),
    "dynamic": RoPE(scaling=DynamicNTK(2.0, 64)).for_length(128),
    "sections": RoPE(layout="half", position_axes=(0, 0, 0, 1, 1, 1, 2, 2)),
    "axial": RoPE(scaling=Axial(), rotary_dim=16, position_axes=(0,) * 4 + (1,) * 4),
}


def inputs(framework: Framework, rope: RoPE, tokens: int = 5) -> tuple[Any, Any, Any]:
    """Return q, k and positions, of a million and more, one row of them for each component."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, tokens, 4, 16)).astype(np.float32)
    k = rng.standard_normal((2, tokens, 2, 16)).astype(np.float32)
    positions = 1_000_000 + rng.integers(0, 1 << 20, (2, tokens)).astype(np.int32)
    if rope.position_axes is not None:
        positions = np.stack([positions + i for i in range(max(rope.position_axes) + 1)])
    return framework.array(q), framework.array(k), framework.array(positions)


def same(found: Any, expected: Any) -> None:
    """Require the same bits of two tuples of arrays."""
    for pair in zip(found, expected, strict=True):
        ours, theirs = pair
        assert type(ours) is type(theirs)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(*map(_numbers, pair))


def _numbers(x: Any) -> np.ndarray:
    return x.detach().double().numpy() if hasattr(x, "detach") else np.asarray(x)
