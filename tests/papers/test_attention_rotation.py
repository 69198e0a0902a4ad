"""Rotated attention against three ways to write the rotation, and what a rotation is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import attention_oracles as oracles
from support.attention_oracles import CLOSE, FUNCTIONS, normal, some
from support.targets import Target, rows

from rope_xp import RoPE
from rope_xp.papers import attention

libraries = pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch", "jax")))


@libraries
@pytest.mark.parametrize("form", oracles.FORMS)
def test_layouts_are_the_forms_that_models_have(backend: Target, form: str) -> None:
    x, positions = normal(2, 12, 3, 16), np.arange(12) * 91
    expected = oracles.FORMS[form](x.astype(np.float64), positions, 5e5)
    rope = RoPE(base=5e5, layout=oracles.LAYOUTS[form])
    got = backend.back(rope.rotate(backend.make(x), positions))
    # 2.4e-7 for each of cos and sin, and two roundings, at |x| up to 4.
    np.testing.assert_allclose(got, expected, rtol=0, atol=2.5e-6)


@libraries
@pytest.mark.parametrize("form", oracles.FORMS)
def test_scores_are_products_of_rotated_heads(backend: Target, form: str) -> None:
    q, k, _ = some()
    positions = np.arange(12) * 91
    rotate = oracles.FORMS[form]
    expected = oracles.scores(*(rotate(x.astype(np.float64), positions) for x in (q, k)))
    rope = RoPE(layout=oracles.LAYOUTS[form])
    got = attention.scores(backend.make(q), backend.make(k), positions, rope)
    np.testing.assert_allclose(backend.back(got), expected / 4, **CLOSE)
    scaled = attention.scores(backend.make(q), backend.make(k), positions, rope, scale=1.0)
    np.testing.assert_allclose(backend.back(scaled), expected, rtol=1e-5, atol=4e-5)


# --- what a rotation is for ----------------------------------------------------------------------


@libraries
@pytest.mark.parametrize("layout", ["interleaved", "half", "interleaved_to_half"])
def test_scores_depend_on_distance_alone(backend: Target, layout: str) -> None:
    """One q and one k at all places: each diagonal holds one number."""
    q, k = (np.broadcast_to(normal(16, seed=i), (30, 1, 16)).copy() for i in (1, 2))
    found = attention.scores(backend.make(q), backend.make(k), rope=RoPE(layout=layout))
    for offset in range(-29, 30):
        diagonal = np.diagonal(backend.back(found)[0], offset)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=0, atol=1e-5)


@libraries
@pytest.mark.parametrize("shift", [1, 1000, 1_000_000])
def test_a_shift_of_all_positions_changes_nothing(backend: Target, shift: int) -> None:
    for function, n in FUNCTIONS:
        arrays = [backend.make(x) for x in some()[:n]]
        here = backend.back(function(*arrays, np.arange(12), RoPE()))
        there = backend.back(function(*arrays, np.arange(12) + shift, RoPE()))
        np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-5)


@libraries
@pytest.mark.parametrize("function", [attention.attention, attention.linear_attention])
def test_permuting_tokens_with_their_positions_permutes(backend: Target, function: Any) -> None:
    q, k, v = some()
    order = np.random.default_rng(0).permutation(12)
    positions = np.arange(12) * 3
    straight = function(*map(backend.make, (q, k, v)), positions, RoPE())
    mixed = [backend.make(np.ascontiguousarray(x[:, order])) for x in (q, k, v)]
    got = backend.back(function(*mixed, positions[order], RoPE()))
    np.testing.assert_allclose(got, backend.back(straight)[:, order], **CLOSE)
