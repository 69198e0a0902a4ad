"""Every backend gives numpy's numbers for positions of every dtype, shape and kind."""

from __future__ import annotations

import numpy as np
import pytest
from support.equality import same, sample
from support.targets import Target, truth

import rope_xp
from rope_xp import RoPE, RopeError


def test_positions_none_are_counted_from_zero(backend: Target, rng: np.random.Generator) -> None:
    x = sample(rng, (2, 2100, 1, 4), "float32")  # beyond one digit
    counted = backend.run(lambda x: RoPE().rotate(x), backend.make(x))
    given = backend.run(lambda x: RoPE().rotate(x, np.arange(2100)), backend.make(x))
    np.testing.assert_array_equal(backend.back(counted), backend.back(given))


@pytest.mark.parametrize(
    "kind", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
)
def test_integer_positions_of_the_library(
    backend: Target, kind: str, rng: np.random.Generator
) -> None:
    """Positions on the device, of every integer dtype, as data and not as constants."""
    top = min(np.iinfo(kind).max, (1 << 31) - 1)
    numbers = np.array([0, 1, top // 3, top - 1, top])
    if kind.startswith("i"):
        numbers[0] = -top
    x = sample(rng, (5, 2, 8), "float32")
    expected = truth(RoPE().rotate, x, numbers)
    positions = backend.make(numbers.astype(kind))
    got = backend.run(RoPE().rotate, backend.make(x), positions)
    same(backend, got, expected, x, "interleaved", 8)


@pytest.mark.parametrize(
    ("shape", "tokens"),
    [
        ((9,), 9),
        ((2, 9), 9),
        ((2, 1), 1),
        ((2, 1), 9),
        ((1, 1), 9),
        ((1, 9), 9),
        ((1,), 1),
        ((), 1),
    ],
)
def test_position_shapes(
    backend: Target, shape: tuple[int, ...], tokens: int, rng: np.random.Generator
) -> None:
    positions = rng.integers(0, 10_000, shape)
    x = sample(rng, (2, tokens, 3, 8), "float32")
    whole = np.broadcast_to(positions, (2, tokens)).copy()
    expected = truth(RoPE().rotate, x, whole)
    for given in (positions, positions.tolist(), backend.make(positions)):
        got = RoPE().rotate(backend.make(x), given)
        same(backend, got, expected, x, "interleaved", 8)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("order", ["", ">"])
@pytest.mark.parametrize("step", [-1, 2])
def test_positions_and_tables_of_numpy_in_any_memory(
    backend: Target, step: int, order: str, tokens: int, rng: np.random.Generator
) -> None:
    """Also of one token, whose stride numpy keeps though it means nothing."""
    x = sample(rng, (tokens, 3, 8), "float32")
    for kind in ("i4", "f8"):
        positions = np.arange(6).astype(order + kind)[::step][:tokens]
        expected = truth(RoPE().rotate, x, positions.astype("i8"))
        same(backend, RoPE().rotate(backend.make(x), positions), expected, x, "interleaved", 8)
    for kind in ("f4", "f8"):
        tables = (t.astype(order + kind) for t in RoPE().cos_sin(np.arange(6), 8))
        cos, sin = (t[::step][:tokens] for t in tables)
        expected = truth(rope_xp.apply_tables, x, cos.astype("f4"), sin.astype("f4"))
        got = rope_xp.apply_tables(backend.make(x), cos, sin)
        same(backend, got, expected, x, "interleaved", 8)


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize("components", [0, 2])
def test_one_position_for_several_tokens(
    backend: Target, shape: tuple[int, ...], components: int
) -> None:
    """It could be that of each or of the first, whether in a list or not."""
    rope = RoPE(position_axes=(0, 1, 0, 1)) if components else RoPE()
    positions = np.full((components, *shape) if components else shape, 5)
    x = backend.make(np.ones((2, 9, 3, 8), np.float32))
    for given in (positions, positions.tolist(), backend.make(positions)):
        with pytest.raises(RopeError, match=r"one number for 9 tokens; write .* offset \+ arange"):
            rope.rotate(x, given)


@pytest.mark.parametrize("shape", [(0, 5, 2, 8), (2, 0, 2, 8), (2, 5, 0, 8), (0, 0, 0, 8)])
def test_empty_axes(backend: Target, shape: tuple[int, ...]) -> None:
    x = np.zeros(shape, np.float32)
    for positions in (None, np.arange(shape[1]), backend.make(np.arange(shape[1]))):
        got = RoPE(rotary_dim=4).rotate(backend.make(x), positions)
        assert backend.back(got).shape == shape
    got_q, got_k = rope_xp.apply(backend.make(x), backend.make(x))
    assert backend.back(got_q).shape == backend.back(got_k).shape == shape
