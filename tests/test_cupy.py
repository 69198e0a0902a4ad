"""cupy: without a GPU its import, its dispatch and its errors; with one, the whole matrix too."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE, _contract, _dispatch

cupy = pytest.importorskip("cupy")


def test_the_glue_imports_without_a_gpu() -> None:
    glue = importlib.import_module("rope_xp_backends.cupy")
    assert glue.BACKEND.name == "cupy"
    assert isinstance(glue.BACKEND, _contract.Backend)
    for name in ("take", "where", "stack", "concat", "astype", "full_like", "permute_dims"):
        assert callable(getattr(glue.BACKEND.xp, name))


def test_the_row_of_the_table() -> None:
    (row,) = [library for library in _dispatch.LIBRARIES if library.name == "cupy"]
    assert row.load() is importlib.import_module("rope_xp_backends.cupy").BACKEND
    assert _dispatch.backend_of_namespace(cupy) is row.load()
    assert all(hasattr(cupy, name) for name in row.array)


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    if not cupy.is_available():
        pytest.skip("cupy finds no GPU")
    x = np.random.default_rng(0).standard_normal((2, 9, 4, 8)).astype(np.float32)
    made = cupy.asarray(x)
    got, _ = rope_xp.apply(made, made, np.arange(9) + 1_000_000)
    np.testing.assert_allclose(
        cupy.asnumpy(got), RoPE().rotate(x, np.arange(9) + 1_000_000), atol=1e-6
    )
    with pytest.raises(TypeError, match="q is a numpy array and k a cupy array"):
        rope_xp.apply(x, made)
