"""The logits of spans against eq. 16 and masks of their own."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import attention_oracles as oracles
from support.attention_oracles import normal, some
from support.targets import Target, rows

from rope_xp import RoPE
from rope_xp.papers import attention

libraries = pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax")))


@libraries
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_global_pointer(backend: Target, upper: bool, scale: bool) -> None:
    q, k, _ = some(fewer=4)
    real = np.arange(12) < np.array([[12], [7]])
    got = backend.back(
        attention.global_pointer(
            *map(backend.make, (q, k)),
            rope=RoPE(),
            mask=backend.make(real),
            upper_triangular=upper,
            scale=scale,
        )
    )
    rotate = lambda x: oracles.paper(x.astype(np.float64), np.arange(12))  # noqa: E731  # one line, used below
    expected = oracles.scores(rotate(q), rotate(k)) / (math.sqrt(16) if scale else 1.0)
    for b, h, i, j in np.ndindex(*got.shape):
        if not real[b, i] or not real[b, j] or (upper and i > j):
            assert got[b, h, i, j] == np.float32(-1e12)
        else:
            assert got[b, h, i, j] == pytest.approx(expected[b, h, i, j], rel=1e-5, abs=4e-5)


@libraries
def test_global_pointer_is_finite_in_every_dtype(backend: Target) -> None:
    for dtype in backend.floats:
        x = backend.make(normal(3, 2, 4, dtype=dtype))
        mask = backend.make(np.array([True, False, True]))
        found = backend.back(attention.global_pointer(x, x, mask=mask)).astype(np.float64)
        assert np.isfinite(found).all()
        lowest = -65504.0 if dtype == "float16" else -1e12
        assert found.min() == pytest.approx(lowest, rel=2**-8)  # the step of bfloat16


def test_a_mask_of_one_value_is_for_all_tokens() -> None:
    x = np.ones((1, 3, 1, 4), np.float32)
    got = attention.global_pointer(x, x, mask=np.array(False))
    assert (got == np.float32(-1e12)).all()
