"""Arrays of random numbers, and the question whether two hold the same bits."""

from typing import Any

import numpy as np

from support.targets import numpy_dtype


def sample(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def same(got: Any, expected: Any) -> None:
    """Require the same bits, of a NaN only that it is one; of arrays or tuples of them."""
    if isinstance(expected, tuple):
        for one, right in zip(got, expected, strict=True):
            same(one, right)
        return
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(~np.isnan(got), number)
    bits = f"u{got.itemsize}"
    np.testing.assert_array_equal(got.view(bits)[number], expected.view(bits)[number])
