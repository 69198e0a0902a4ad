"""Fields of a RoPE among the arguments of apply: made into a RoPE once, and never a wrong one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE, RopeError, _functions
from rope_xp.scaling import Linear, LongRoPE

Q = np.random.default_rng(0).standard_normal((2, 5, 4, 8)).astype(np.float32)
LONG = LongRoPE((1.0,) * 4, (1.0, 2.0, 3.0, 4.0), 64, factor=4.0, length=100)
FIELDS: tuple[dict[str, Any], ...] = (
    {"layout": "half", "base": 5e5},
    {"scaling": LONG, "rotary_dim": 8},
    {"position_axes": (0, 1, 0, 1)},
)


def turned(**fields: Any) -> np.ndarray:
    axes = fields.get("position_axes")
    at = np.arange(5) if axes is None else np.stack([np.arange(5), np.arange(5) * 7])
    return rope_xp.apply(Q, Q, at, **fields)[0]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: ",".join(fields))
def test_they_give_what_a_rope_gives(fields: dict[str, Any]) -> None:
    at = [np.arange(5), np.arange(5) * 7] if "position_axes" in fields else np.arange(5)
    for _ in range(3):
        np.testing.assert_array_equal(turned(**fields), RoPE(**fields).rotate(Q, at))


@pytest.mark.parametrize("fields", FIELDS[:2], ids=lambda fields: ",".join(fields))
def test_they_add_little_to_a_call(fields: dict[str, Any]) -> None:
    """Counts do not vary as times do; to make and check a rope anew runs twenty more."""
    rope = RoPE(**fields)
    alone = functions_run(lambda: rope.apply(Q, Q))
    assert functions_run(lambda: rope_xp.apply(Q, Q, **fields)) <= alone + 10


def functions_run(call: Callable[[], Any]) -> int:
    for _ in range(3):
        call()
    events: list[str] = []
    sys.setprofile(lambda _, event, __: events.append(event))
    try:
        call()
    finally:
        sys.setprofile(None)
    return events.count("call")


class Slow(NamedTuple):
    factor: float
    effective_attention_factor = softmax_scale = 1.0

    def for_length(self, n: int) -> Any:
        return self

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.full(rotary_dim // 2, self.factor)


class Slower(Slow):
    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.full(rotary_dim // 2, self.factor / 2)


def test_equal_values_of_other_types_are_others() -> None:
    assert Slow(0.5) == Slower(0.5)
    first, second = turned(scaling=Slow(0.5)), turned(scaling=Slower(0.5))
    np.testing.assert_array_equal(second, RoPE(scaling=Slow(0.25)).rotate(Q))
    assert np.abs(first - second).max() > 0.1
    turned(rotary_dim=8, base=1, position_axes=(0, 1, 0, 1))
    with pytest.raises(TypeError, match="rotary_dim must be an integer; got 8.0"):
        turned(rotary_dim=8.0)
    with pytest.raises(TypeError, match="base must be a number; got True"):
        turned(base=True)
    with pytest.raises(RopeError, match="position_axes must hold integers"):
        turned(position_axes=(0.0, 1.0, 0.0, 1.0))


def test_what_was_refused_once_is_refused_again() -> None:
    for _ in range(3):
        with pytest.raises(TypeError, match="position_axes must be a tuple"):
            turned(position_axes=[0, 1, 0, 1])
        with pytest.raises(TypeError, match="unknown option theta"):
            turned(theta=1e4)


def test_addresses_that_are_used_again_name_no_other_rule() -> None:
    """Rules that are forgotten leave their memory to the next ones."""
    for i in range(1, 1000):
        rule = Linear(float(i))
        known = (
            rope_xp.explain(Q, Q, scaling=rule),
            _functions._resolve_rope(None, {"scaling": rule}, Q),
        )
        assert known[1].scaling is rule
        del rule, known
    assert len(_functions._ropes) <= 128
