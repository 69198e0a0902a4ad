"""What a result of any backend is compared by: the positions, the bits, the bounds."""

from collections.abc import Callable
from itertools import cycle
from typing import Any

import numpy as np

from rope_xp import RoPE
from support import oracles
from support.targets import Target, truth

LAYOUTS = ("interleaved", "half", "interleaved_to_half")
POSITIONS = np.array([0, 1, 2047, 2048, 70_000, (1 << 22) + 3, (1 << 31) - 1, -1, -70_001])
PLAIN = RoPE()


def check(
    backend: Target,
    rotate: Callable[..., Any],
    *arrays: np.ndarray,
    rope: RoPE = PLAIN,
    inverse: bool = False,
    expected: Any = None,
) -> None:
    """Check that a function of arrays gives numpy's results, which are of the first arrays in turn.

    ``rope`` names the pairs that are rotated, back if ``inverse``.
    """
    expected = truth(rotate, *arrays) if expected is None else expected
    inputs = [backend.make(x) for x in arrays]
    results = backend.run(rotate, *inputs)
    for x, before in zip(inputs, arrays, strict=True):  # which are left alone
        np.testing.assert_array_equal(backend.back(x), before)
    if not isinstance(results, tuple):
        results, expected = (results,), (expected,)
    for result, numbers, x in zip(results, expected, cycle(arrays), strict=False):
        check_result(backend, result, numbers, x, rope, inverse)
    assert len(results) == len(expected)


def check_result(
    backend: Target,
    result: Any,
    expected: np.ndarray,
    x: np.ndarray,
    rope: RoPE = PLAIN,
    inverse: bool = False,
) -> None:
    assert type(result) is type(backend.make(x)) or backend.name.startswith("torch-compile")
    got = backend.back(result)
    assert got.shape == x.shape
    assert got.dtype == x.dtype
    if backend.truncates and x.dtype.name == "bfloat16":
        bits, right = (y.view(np.int16).astype(int) for y in (got, expected))
        assert np.abs(bits - right).max(initial=0) <= 1
        return
    if backend.ulps == 0:
        np.testing.assert_array_equal(got, expected)
        return
    start = rope.rotary_offset % x.shape[-1]
    columns = np.arange(start, start + (rope.rotary_dim or x.shape[-1]))
    np.testing.assert_array_equal(np.delete(got, columns, -1), np.delete(x, columns, -1))
    got, expected, x = (y[..., columns] for y in (got, expected, x))
    if x.dtype in (np.float32, np.float64):
        factor = max(1.0, rope.attention_factor)
        assert oracles.ulps(got, expected, x, rope.layout, inverse) <= backend.ulps * factor
    else:
        # Rounded once from float32 values that close: at a tie, one unit of 16 bits apart.
        eps = {"float16": 2.0**-10, "bfloat16": 2.0**-7}[x.dtype.name]
        distance = np.abs(got.astype(np.float64) - expected.astype(np.float64))
        assert distance.max() <= eps * 2 * np.abs(x.astype(np.float64)).max()
        assert (distance > 0).mean() < 0.01


def check_angles(
    backend: Target,
    rope: RoPE,
    positions: Any,
    true: tuple[np.ndarray, np.ndarray],
    bound: Any,
    dtype: str = "float32",
) -> None:
    """Compare the cos and sin by which a backend rotates with true ones, (tokens, pairs)."""
    tokens, pairs = true[0].shape
    x = np.zeros((tokens, 1, 2 * pairs), dtype)
    x[..., ::2] = 1.0  # pairs (1, 0), which are rotated to (cos, sin)
    if isinstance(positions, (list, np.ndarray)) or positions is None:
        result = backend.run(lambda x: rope.rotate(x, positions), backend.make(x))
    else:
        result = backend.run(rope.rotate, backend.make(x), positions)
    rotated = backend.back(result)[:, 0]
    assert (np.abs(rotated[:, ::2] - true[0]) <= bound).all()
    assert (np.abs(rotated[:, 1::2] - true[1]) <= bound).all()


def list_caches(head_dim):
    """Return shapes of caches of two heads for two sequences of five tokens, by cache_axes."""
    sizes = {"p": 4, "b": 2, "h": 2, "d": head_dim}
    slots = {"shd": 16, "hsd": 16, "pshd": 4, "phsd": 4, "bshd": 9, "bhsd": 9, "sbhd": 9}
    shapes = {axes: tuple((sizes | {"s": n})[a] for a in axes) for axes, n in slots.items()}
    return {None: shapes["shd"], **shapes}
