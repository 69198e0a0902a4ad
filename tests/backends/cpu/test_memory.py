"""Kernels on numpy's arrays, in memory of any strides and byte order."""

from collections.abc import Callable

import numpy as np
import pytest
from support.bits import same, sample
from support.targets import truth

import rope_xp
from rope_xp import RoPE, RopeError

POSITIONS = np.random.default_rng(0).integers(-70_000, 1 << 22, 130)
LAYOUTS = ("half", "interleaved", "interleaved_to_half")
VIEWS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "heads first": ("bhsd", lambda x: x.transpose(0, 2, 1, 3)),
    "heads first in memory": ("bshd", lambda x: x.swapaxes(1, 2).copy().swapaxes(1, 2)),
    "tokens first": ("sbhd", lambda x: x.swapaxes(0, 1)),
    "part of a projection": ("bshd", lambda x: np.stack([x, x, x], 2)[:, :, 1]),
    "part of head_dim": ("bshd", lambda x: x[..., 3:13]),
    "batches backwards": ("bshd", lambda x: x[::-1]),
    "tokens backwards": ("bshd", lambda x: x[:, ::-1]),
    "heads backwards": ("bshd", lambda x: x[:, :, ::-1]),
    "every second head": ("bshd", lambda x: x[:, :, ::2]),
    "one batch for all": ("bshd", lambda x: np.broadcast_to(x[:1], x.shape)),
    "one token for all": ("bshd", lambda x: np.broadcast_to(x[:, :1], x.shape)),
    "one head for all": ("bshd", lambda x: np.broadcast_to(x[:, :, :1], x.shape)),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_views(any_path: str, view: str, dtype: str, rng: np.random.Generator) -> None:
    """Those of :func:`numpy.broadcast_to` are read-only besides."""
    axes, make = VIEWS[view]
    for layout in LAYOUTS:
        x, rope = make(sample(rng, 2, 130, 3, 16, dtype=dtype)), RoPE(layout=layout)
        before = x.copy()
        same(rope.rotate(x, POSITIONS, axes=axes), truth(rope.rotate, before, POSITIONS, axes=axes))
        same(x, before)


class Derived(np.ndarray):
    """An array of a user's class."""


def unaligned(x: np.ndarray) -> np.ndarray:
    return np.frombuffer(bytearray(1) + x.tobytes(), x.dtype, offset=1).reshape(x.shape)


COPIED: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "every second component": lambda x: x[..., ::2],
    "components backwards": lambda x: x[..., ::-1],
    "Fortran order": np.asfortranarray,
    "byte order": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": unaligned,
}
OTHER = {"file": lambda x: x.view(np.memmap), "class": lambda x: x.view(Derived)}


@pytest.mark.parametrize("kind", COPIED)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_memory_that_kernels_have_copied(
    path: str, kind: str, dtype: str, rng: np.random.Generator
) -> None:
    for layout in LAYOUTS:
        x, rope = COPIED[kind](sample(rng, 2, 130, 3, 16, dtype=dtype)), RoPE(layout=layout)
        expected = truth(rope.rotate, np.array(x, dtype, order="C"), POSITIONS)
        before = np.array(x)
        got = rope.rotate(x, POSITIONS)
        assert got.dtype == x.dtype
        same(np.array(got, dtype), expected)
        same(np.array(x, dtype), before.astype(dtype))
        assert rope.rotate(x, POSITIONS, out=x) is x
        same(np.array(x, dtype, order="C"), expected)


@pytest.mark.parametrize("kind", OTHER)
def test_classes_of_their_own(kind: str, rng: np.random.Generator) -> None:
    pytest.importorskip("llvmlite")
    x = OTHER[kind](sample(rng, 2, 130, 3, 16))
    expected = truth(RoPE().rotate, np.array(x, np.float32, order="C"), POSITIONS)
    with rope_xp.use_path("llvm"), pytest.raises(RopeError, match="is a class derived"):
        RoPE().rotate(x, POSITIONS)
    assert rope_xp.explain(x, x, POSITIONS).path == "portable"
    same(np.asarray(RoPE().rotate(x, POSITIONS)), expected)
    RoPE().rotate(x, POSITIONS, out=x)
    same(np.array(x), expected)


@pytest.mark.parametrize("kind", ["Fortran order", "byte order", "unaligned", *OTHER])
def test_angles_in_any_memory(any_path: str, kind: str, rng: np.random.Generator) -> None:
    make = (COPIED | OTHER)[kind]
    x, angles = sample(rng, 2, 130, 3, 16), RoPE().cos_sin(POSITIONS, 16)
    expected = truth(RoPE().rotate, x, POSITIONS)
    same(RoPE().rotate(x, make(POSITIONS)), expected)
    same(rope_xp.apply_tables(x, *map(make, angles)), expected)
