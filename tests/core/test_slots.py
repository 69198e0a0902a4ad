"""rerotate(slots=...): keys in slots of a cache move, and all others stay as they are."""

from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from support.bits import sample
from support.targets import Target, numpy_dtype, rows, truth

from rope_xp import RoPE, RopeError

ROPE = RoPE(layout="half", rotary_dim=8)
SLOTS = [7, 0, 3]
OLD, NEW = [100, 70_000, 5], [4, 69_904, 1_000_000]
AXES = {"shd": (9, 2, 12), "bhsd": (2, 2, 9, 12)}


@pytest.mark.parametrize(("where", "axes"), [("host", "shd"), ("device", "bhsd")])
def test_slots_move_and_others_stay(backend: Target, axes: str, where: str, rng: Generator) -> None:
    cache, axis = sample(rng, *AXES[axes]), axes.index("s")
    x, slots = backend.make(cache), np.array(SLOTS, np.int32)

    def rerotate(x: Any, on_device: Any) -> Any:
        given = slots if where == "host" else on_device
        return ROPE.rerotate(x, OLD, NEW, slots=given, axes=axes)

    moved = backend.back(backend.run(rerotate, x, backend.make(slots)))
    expected = np.moveaxis(cache.astype(np.float64), axis, 0)
    for slot, old, new in zip(SLOTS, OLD, NEW, strict=True):
        order = axes.replace("s", "")
        row = expected[[slot]]
        expected[slot] = truth(ROPE.rerotate, row, [old], [new], axes="s" + order)[0]
    # In float64 and rounded once; without it, off by two tables.
    bound = 2.0**-22 if "float64" in backend.floats else 2e-6
    assert np.abs(np.moveaxis(moved, axis, 0) - expected).max() < bound
    others = (np.delete(y, SLOTS, axis=axis) for y in (moved, cache))
    np.testing.assert_array_equal(*others)
    np.testing.assert_array_equal(backend.back(x), cache)
    empty = np.zeros(0, np.int64)
    unmoved = backend.run(lambda x: ROPE.rerotate(x, empty, empty, slots=empty, axes=axes), x)
    np.testing.assert_array_equal(backend.back(unmoved), cache)


WRITING = ("numpy-llvm", "array-api-strict", "torch", "torch-llvm", "torch:gpu", "cupy")


@pytest.mark.parametrize("backend", rows(WRITING))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_in_place(backend: Target, dtype: str, rng: Generator) -> None:
    if dtype not in backend.floats:
        pytest.skip(f"{backend} is not tested with {dtype}")
    cache = sample(rng, 9, 2, 12, dtype=dtype)
    expected = backend.back(ROPE.rerotate(backend.make(cache), OLD, NEW, slots=SLOTS))
    x, other = backend.make(cache), backend.make(np.zeros_like(cache))
    assert ROPE.rerotate(x, OLD, NEW, slots=SLOTS, out=other) is other
    np.testing.assert_array_equal(backend.back(x), cache)
    assert ROPE.rerotate(x, OLD, NEW, slots=SLOTS, out=x) is x
    for written in (x, other):
        np.testing.assert_array_equal(backend.back(written), expected)


def test_to_another_rope(rng: Generator) -> None:
    raw, to = rng.standard_normal((9, 2, 12)), RoPE(base=5e5, layout="half", rotary_dim=8)
    cache = ROPE.rotate(raw, np.arange(9))
    moved = ROPE.rerotate(cache, SLOTS, NEW, slots=SLOTS, to=to)
    np.testing.assert_allclose(moved[SLOTS], to.rotate(raw[SLOTS], NEW), rtol=0, atol=1e-13)


ERRORS: dict[str, dict[str, Any]] = {
    "below 9, the tokens of x": {"slots": [7, 0, 9]},
    "holds the same slot twice": {"slots": [7, 0, 7]},
    "slots must be integers with one axis": {"slots": [[7, 0, 3]]},
    "old_positions has shape": {"old_positions": [1, 2]},
    "must lie between": {"new_positions": [1, 2, 1 << 31]},
    "to rotates other|same pairs": {"to": RoPE()},
    "read-only": {},
}


@pytest.mark.parametrize("message", ERRORS)
def test_errors_come_before_anything_is_written(message: str) -> None:
    cache = np.ones((9, 2, 12), np.float32)
    cache.setflags(write=message != "read-only")
    options: dict[str, Any] = {"old_positions": OLD, "new_positions": NEW, "slots": SLOTS}
    with pytest.raises(RopeError, match=message):
        ROPE.rerotate(cache, **(options | ERRORS[message]), out=cache)
    assert (cache == 1).all()


def test_gradients() -> None:
    torch = pytest.importorskip("torch")
    cache = torch.randn(9, 2, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ROPE.rerotate(x, OLD, NEW, slots=SLOTS), cache)


# --- moved again and again -----------------------------------------------------------------------


def move(dtype: str, start: int, step: int, moves: int, *, slots: bool) -> float:
    """Return the error of keys that were moved, against one rotation, by the largest key."""
    rope, positions = RoPE(layout="half"), start + np.arange(32)
    raw = np.random.default_rng(0).standard_normal((32, 2, 128)).astype(numpy_dtype(dtype))
    keys = rope.rotate(raw, positions)
    options = {"slots": np.arange(32), "out": keys} if slots else {}
    for _ in range(moves):
        keys = rope.rerotate(keys, positions, positions + step, **options)
        positions = positions + step
    expected = rope.rotate(raw.astype(np.float64), positions)
    return float(np.abs(keys.astype(np.float64) - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(("start", "step"), [(5000, 1), (1_000_000, -1), (300_000, 64)])
def test_a_thousand_moves(start: int, step: int) -> None:
    """In slots float32 is turned in float64, which leaves one rounding a move, each another."""
    assert move("float32", start, step, 1000, slots=True) <= 1e-5
    assert move("float32", start, step, 1000, slots=False) <= 1e-4


def test_bfloat16_is_to_be_moved_seldom() -> None:
    """Its keys have 8 bits: a little turn is rounded away, and a thousand of them are lost."""
    assert move("bfloat16", 1_000_000, -1000, 1, slots=True) < 2.0**-8
    assert move("bfloat16", 1_000_000, -1, 1000, slots=True) > 0.1
