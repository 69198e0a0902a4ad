"""rerotate(slots=...): keys in slots of a cache move, and all others stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.targets import Target, numpy_dtype, rows

from rope_xp import RoPE, RopeError

ROPE = RoPE(layout="half", rotary_dim=8)
SLOTS = [7, 0, 3]
OLD, NEW = [100, 70_000, 5], [4, 69_904, 1_000_000]
AXES = {"shd": (9, 2, 12), "bhsd": (2, 2, 9, 12)}


def expected(cache: np.ndarray, axes: str) -> np.ndarray:
    """Move the slots one by one, in float64."""
    made, axis = cache.astype(np.float64), axes.index("s")
    for slot, old, new in zip(SLOTS, OLD, NEW, strict=True):
        where = (*(slice(None),) * axis, slice(slot, slot + 1))
        made[where] = ROPE.rerotate(made[where], [old], [new], axes=axes)
    return made


@pytest.mark.parametrize(("where", "axes"), [("host", "shd"), ("device", "bhsd")])
def test_slots_move_and_others_stay(
    backend: Target, axes: str, where: str, rng: np.random.Generator
) -> None:
    cache = rng.standard_normal(AXES[axes], np.float32)
    slots = np.array(SLOTS, np.int32)
    x, mine = backend.make(cache), backend.make(slots) if where == "device" else slots
    found = backend.back(
        backend.run(lambda x, mine: ROPE.rerotate(x, OLD, NEW, slots=mine, axes=axes), x, mine)
    )
    right = expected(cache, axes)
    # In float64 and rounded once; jax has none, and is off by two tables.
    bound = 2e-6 if backend.module == "jax" else 2.0**-22
    assert np.abs(found - right).max() < bound
    others = np.delete(found, SLOTS, axis=axes.index("s"))
    np.testing.assert_array_equal(others, np.delete(cache, SLOTS, axis=axes.index("s")))
    np.testing.assert_array_equal(backend.back(x), cache)


WRITING = ("numpy", "array-api-strict", "torch", "torch-numba", "torch:gpu", "cupy")


@pytest.mark.parametrize("backend", rows(WRITING))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_in_place(backend: Target, dtype: str, rng: np.random.Generator) -> None:
    if dtype not in backend.floats:
        pytest.skip(f"{backend} is not tested with {dtype}")
    cache = rng.standard_normal((9, 2, 12)).astype(numpy_dtype(dtype))
    wanted = backend.back(ROPE.rerotate(backend.make(cache), OLD, NEW, slots=SLOTS))
    x, other = backend.make(cache.copy()), backend.make(np.zeros_like(cache))
    if isinstance(x, np.ndarray):
        x, other = x.copy(), other.copy()
    assert ROPE.rerotate(x, OLD, NEW, slots=SLOTS, out=other) is other
    np.testing.assert_array_equal(backend.back(x), cache)
    assert ROPE.rerotate(x, OLD, NEW, slots=SLOTS, out=x) is x
    for made in (x, other):
        np.testing.assert_array_equal(backend.back(made), wanted)


def test_to_another_rope(rng: np.random.Generator) -> None:
    raw, to = rng.standard_normal((9, 2, 12)), RoPE(base=5e5, layout="half", rotary_dim=8)
    cache = ROPE.rotate(raw, np.arange(9))
    moved = ROPE.rerotate(cache, SLOTS, NEW, slots=SLOTS, to=to)
    np.testing.assert_allclose(moved[SLOTS], to.rotate(raw[SLOTS], NEW), rtol=0, atol=1e-13)


def test_no_slots(backend: Target, rng: np.random.Generator) -> None:
    cache = backend.make(rng.standard_normal((9, 2, 12), np.float32))
    none = np.zeros(0, np.int64)
    found = backend.run(lambda x: ROPE.rerotate(x, none, none, slots=none), cache)
    np.testing.assert_array_equal(backend.back(found), backend.back(cache))


ERRORS = {
    "within the 9 of x": {"slots": [7, 0, 9]},
    "names a slot twice": {"slots": [7, 0, 7]},
    "slots must be integers along one axis": {"slots": [[7, 0, 3]]},
    "old_positions has shape": {"old_positions": [1, 2]},
    "of modulus below": {"new_positions": [1, 2, 1 << 31]},
    "to rotates other|same pairs": {"to": RoPE()},
}


@pytest.mark.parametrize("words", ERRORS)
def test_errors_come_before_anything_is_written(words: str) -> None:
    cache = np.ones((9, 2, 12), np.float32)
    given: dict[str, Any] = {"old_positions": OLD, "new_positions": NEW, "slots": SLOTS}
    with pytest.raises(RopeError, match=words):
        ROPE.rerotate(cache, **(given | ERRORS[words]), out=cache)
    assert (cache == 1).all()


def test_out_is_checked() -> None:
    cache = np.ones((9, 2, 12), np.float32)
    cache.setflags(write=False)
    with pytest.raises(RopeError, match="read-only"):
        ROPE.rerotate(cache, OLD, NEW, slots=SLOTS, out=cache)


def test_gradients() -> None:
    torch = pytest.importorskip("torch")
    cache = torch.randn(9, 2, 12, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: ROPE.rerotate(x, OLD, NEW, slots=SLOTS), cache)


# --- moved again and again -----------------------------------------------------------------------


def after_moves(dtype: str, start: int, step: int, moves: int, *, slots: bool) -> float:
    """Return the error of keys that were moved, against one rotation, by the largest key."""
    rng, rope = np.random.default_rng(0), RoPE(layout="half")
    raw = rng.standard_normal((32, 2, 128)).astype(numpy_dtype(dtype))
    positions = start + np.arange(32)
    keys = rope.rotate(raw, positions)
    given = {"slots": np.arange(32), "out": keys} if slots else {}
    for _ in range(moves):
        keys = rope.rerotate(keys, positions, positions + step, **given)
        positions = positions + step
    right = rope.rotate(raw.astype(np.float64), positions)
    return float(np.abs(keys.astype(np.float64) - right).max() / np.abs(right).max())


@pytest.mark.parametrize(("start", "step"), [(5000, 1), (1_000_000, -1), (300_000, 64)])
def test_a_thousand_moves(start: int, step: int) -> None:
    """In slots float32 is turned in float64, which leaves one rounding a move, each another."""
    assert after_moves("float32", start, step, 1000, slots=True) <= 1e-5
    assert after_moves("float32", start, step, 1000, slots=False) <= 1e-4


def test_bfloat16_is_to_be_moved_seldom() -> None:
    """Its keys have 8 bits: a little turn is rounded away, and a thousand of them are lost."""
    assert after_moves("bfloat16", 1_000_000, -1000, 1, slots=True) < 2.0**-8
    assert after_moves("bfloat16", 1_000_000, -1, 1000, slots=True) > 0.1
