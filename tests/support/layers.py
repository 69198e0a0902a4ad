"""The layers of rope_xp, one row a framework, and inputs of their tests."""

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from rope_xp import RoPE, scaling

# keras is of one backend a process; test_keras.py runs its tests with the other once more.
os.environ.setdefault("KERAS_BACKEND", "torch")


@dataclass(frozen=True)
class Framework:
    name: str
    arrays: str  # the library whose arrays it takes
    state: Callable[[Any], list[Any]]
    """Returns the arrays of a layer that could be cast, trained or saved."""

    def layer(self, rope, **options):
        pytest.importorskip(self.name)
        return importlib.import_module(f"rope_xp.layers.{self.name}").Rotary(rope, **options)

    def array(self, x):
        if self.arrays == "torch":
            return importlib.import_module("torch").from_numpy(x)
        return importlib.import_module("jax.numpy").asarray(x)


def _leaves(layer):
    return importlib.import_module("jax").tree.leaves(layer)


TORCH, FLAX, EQUINOX, KERAS = FRAMEWORKS = (
    Framework("torch", "torch", lambda x: [*x.parameters(), *x.buffers(), *x.state_dict()]),
    Framework("flax", "jax", lambda x: _leaves(importlib.import_module("flax.nnx").state(x))),
    Framework("equinox", "jax", _leaves),
    Framework("keras", os.environ["KERAS_BACKEND"], lambda x: [*x.weights, *x.losses]),
)

every_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda f: f.name)

LONGROPE = scaling.LongRoPE((1.0,) * 8, (2.5,) * 8, 4096, factor=8.0)
ROPES = {
    "plain": RoPE(),
    "half": RoPE(base=5e5, layout="half"),
    "slice": RoPE(layout="interleaved_to_half", rotary_dim=4, rotary_offset=-4),
    "yarn": RoPE(layout="half", scaling=scaling.YaRN(4.0, 4096)),
    "mscale": RoPE(scaling=scaling.YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=0.7)),
    "given": RoPE(scaling=scaling.YaRN(4.0, 4096, attention_factor=1.5)),
    "llama3": RoPE(scaling=scaling.Llama3(8.0, 1.0, 4.0, 8192)),
    "longrope": RoPE(scaling=LONGROPE).for_length(5000),
    "dynamic": RoPE(scaling=scaling.DynamicNTK(2.0, 64)).for_length(128),
    "sections": RoPE(layout="half", position_axes=(0, 0, 0, 1, 1, 1, 2, 2)),
    "axial": RoPE(scaling=scaling.Axial(), rotary_dim=16, position_axes=(0,) * 4 + (1,) * 4),
}

AXIAL = RoPE.axial((8, 4, 4), bases=(1e2, 1e3, 1e4))
SCALED = {
    **{name: rope for name, rope in ROPES.items() if rope.scaling is not None},
    "linear": RoPE(scaling=scaling.Linear(2.0)),
    "ntk": RoPE(scaling=scaling.NTK(2.0)),
    "proportional": RoPE(scaling=scaling.Proportional(0.5)),
    "riflex": RoPE(scaling=scaling.RIFLEx(k=2, length=42)),
    "riflex of axial": replace(AXIAL, scaling=scaling.RIFLEx(2, 42, AXIAL.scaling, axis=1)),
    "strided": RoPE(scaling=scaling.Axial(2, "strided"), position_axes=(0,) * 4 + (1,) * 4),
}
"""Every scaling of rope_xp.scaling, in a RoPE of 16 components."""


def inputs(framework, rope, tokens=5):
    """Return q, k and positions, of a million and more, one row of them for each component."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, tokens, 4, 16)).astype(np.float32)
    k = rng.standard_normal((2, tokens, 2, 16)).astype(np.float32)
    positions = 1_000_000 + rng.integers(0, 1 << 20, (2, tokens)).astype(np.int32)
    if rope.position_axes is not None:
        positions = np.stack([positions + i for i in range(max(rope.position_axes) + 1)])
    return framework.array(q), framework.array(k), framework.array(positions)


def assert_same(result, expected):
    for ours, theirs in zip(result, expected, strict=True):
        assert type(ours) is type(theirs)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


def to_numpy(x):
    return x.detach().double().numpy() if hasattr(x, "detach") else np.asarray(x)
