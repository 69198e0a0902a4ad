"""The layers of rope_xp by framework, and inputs of their tests."""

import importlib
import os

import numpy as np
import pytest

from rope_xp import RoPE, scaling

# keras is of one backend a process; test_keras.py runs its tests with the other once more.
os.environ.setdefault("KERAS_BACKEND", "torch")

ARRAYS = {"torch": "torch", "flax": "jax", "equinox": "jax", "keras": os.environ["KERAS_BACKEND"]}
"""The library whose arrays a framework takes."""

every_framework = pytest.mark.parametrize("framework", ARRAYS)

LONGROPE = scaling.LongRoPE((1.0,) * 8, (2.5,) * 8, 4096, factor=8.0)
ROPES = {
    "plain": RoPE(),
    "half": RoPE(base=5e5, layout="half"),
    "slice": RoPE(layout="interleaved_to_half", rotary_dim=4, rotary_offset=-4),
    "yarn": RoPE(layout="half", scaling=scaling.YaRN(4.0, 4096)),
    "mscale": RoPE(scaling=scaling.YaRN(40.0, 4096, mscale=1.0, mscale_all_dim=0.7)),
    "llama3": RoPE(scaling=scaling.Llama3(8.0, 1.0, 4.0, 8192)),
    "longrope": RoPE(scaling=LONGROPE).for_length(5000),
    "dynamic": RoPE(scaling=scaling.DynamicNTK(2.0, 64)).for_length(128),
    "sections": RoPE(layout="half", position_axes=(0, 0, 0, 1, 1, 1, 2, 2)),
    "axial": RoPE(scaling=scaling.Axial(), rotary_dim=16, position_axes=(0,) * 4 + (1,) * 4),
}


def make_layer(framework, rope, **options):
    pytest.importorskip(framework)
    return importlib.import_module(f"rope_xp.layers.{framework}").Rotary(rope, **options)


def put(framework, x):
    if ARRAYS[framework] == "torch":
        return importlib.import_module("torch").from_numpy(x)
    return importlib.import_module("jax.numpy").asarray(x)


def inputs(framework, rope, tokens=5):
    """Return q, k and positions, of a million and more, one row of them for each component."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((2, tokens, 4, 16)).astype(np.float32)
    k = rng.standard_normal((2, tokens, 2, 16)).astype(np.float32)
    positions = 1_000_000 + rng.integers(0, 1 << 20, (2, tokens)).astype(np.int32)
    if rope.position_axes is not None:
        positions = np.stack([positions + i for i in range(max(rope.position_axes) + 1)])
    return tuple(put(framework, x) for x in (q, k, positions))


def assert_same(result, expected):
    for ours, theirs in zip(result, expected, strict=True):
        assert type(ours) is type(theirs)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(to_numpy(ours), to_numpy(theirs))


def to_numpy(x):
    return x.detach().double().numpy() if hasattr(x, "detach") else np.asarray(x)
