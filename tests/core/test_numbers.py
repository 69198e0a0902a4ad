"""Numbers of numpy are taken wherever Python's are, and held as Python's."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE
from rope_xp.scaling import (
    NTK,
    Axial,
    DynamicNTK,
    Linear,
    Llama3,
    LongRoPE,
    Proportional,
    RIFLEx,
    YaRN,
    inverse_frequencies,
)

Make = Callable[[Callable[[int], Any], Callable[[float], Any]], Any]
"""From a way to write integers and one to write floats to what is held."""

HELD: dict[str, Make] = {
    "fields": lambda i, f: RoPE(
        base=f(1e4), rotary_dim=i(8), rotary_offset=i(-8), position_axes=(i(0), i(1)) * 2
    ),
    "base": lambda i, f: RoPE(base=i(10000)),
    "for_length": lambda i, f: RoPE(scaling=DynamicNTK(2.0, 64)).for_length(i(128)),
    "axial": lambda i, f: RoPE.axial((i(4), i(8)), bases=(f(100.0), f(1e4))),
    "Linear": lambda i, f: Linear(f(2.0)),
    "NTK": lambda i, f: NTK(f(2.0)),
    "DynamicNTK": lambda i, f: DynamicNTK(f(2.0), i(64), i(128)),
    "YaRN": lambda i, f: YaRN(f(4.0), i(4096), f(32.0), f(1.0), f(1.5), f(0.5), f(0.0)),
    "LongRoPE": lambda i, f: LongRoPE((f(1.0),), (f(2.0),), i(64), f(4.0), f(1.5), i(256), i(99)),
    "Llama3": lambda i, f: Llama3(f(8.0), f(1.0), f(4.0), i(8192)),
    "Proportional": lambda i, f: Proportional(f(0.5), f(2.0)),
    "Axial": lambda i, f: Axial(i(2), bases=(f(1e2), f(1e3))),
    "RIFLEx": lambda i, f: RIFLEx(i(2), i(42), Axial(i(2)), i(1), f(0.75)),
}


@pytest.mark.parametrize("name", HELD)
@pytest.mark.parametrize("kinds", [(np.int64, np.float32), (np.uint8, np.float64)])
def test_they_are_held_as_those_of_python(name: str, kinds: tuple[Any, Any]) -> None:
    def integer(n: int) -> Any:
        return kinds[0](n) if 0 <= n < 256 else np.int32(n)

    expected = HELD[name](int, float)
    found = HELD[name](integer, kinds[1])
    assert found == expected
    assert hash(found) == hash(expected)
    assert repr(found) == repr(expected)
    assert pickle.dumps(found) == pickle.dumps(expected)


def test_they_are_taken_as_arguments() -> None:
    rope, n = RoPE(layout="half"), np.int64(8)
    assert np.array_equal(rope.frequencies(n), rope.frequencies(8))
    assert np.array_equal(rope.wavelengths(n), rope.wavelengths(8))
    assert np.array_equal(rope.cos_sin([3], n), rope.cos_sin([3], 8))
    assert np.array_equal(rope.table(n, n, form="vllm"), rope.table(8, 8, form="vllm"))
    assert np.array_equal(inverse_frequencies(np.float32(1e4), n), inverse_frequencies(1e4, 8))
    x, (cos, sin) = np.ones((3, 2, 16), np.float32), rope.cos_sin([1, 2, 3], 8)
    offset = {"rotary_offset": np.int32(-8)}
    for _ in range(3):  # the slow path, and then the call cache
        turned = rope_xp.apply_tables(x, cos, sin, **offset)
        assert np.array_equal(turned, rope_xp.apply_tables(x, cos, sin, rotary_offset=-8))
    rows = np.arange(16)
    permuted = rope_xp.permute_weights(rows, np.int64(2), to="half")
    assert np.array_equal(permuted, rope_xp.permute_weights(rows, 2, to="half"))


@pytest.mark.parametrize("value", [True, np.True_, np.array(4.0), "4", 4j, None])
def test_truth_values_and_arrays_are_refused(value: Any) -> None:
    for make in (
        lambda: RoPE(base=value),
        lambda: Linear(value),
        lambda: DynamicNTK(2.0, value),
        lambda: RoPE().for_length(value),
        lambda: RoPE().frequencies(value),
    ):
        with pytest.raises(TypeError, match="must be a"):
            make()


def test_floats_are_no_integers() -> None:
    for make in (lambda: RoPE(rotary_dim=np.float64(8)), lambda: DynamicNTK(2.0, np.float32(64))):
        with pytest.raises(TypeError, match="must be an integer; got np.float"):
            make()
