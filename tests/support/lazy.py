"""Arrays of dask beside those of numpy."""

import numpy as np
import pytest

from support.targets import numpy_dtype

pytest.importorskip("dask", reason="dask is not installed")
da = pytest.importorskip("dask.array", reason="dask is installed without its arrays")


def sample(*shape: int, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(numpy_dtype(dtype))


def equal(lazy: da.Array, expected: np.ndarray) -> None:
    assert isinstance(lazy, da.Array)
    assert (lazy.dtype, lazy.shape) == (expected.dtype, expected.shape)
    got = lazy.compute(scheduler="synchronous")
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(got, expected)
