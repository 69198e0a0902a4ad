"""Rotated attention against three ways to write the rotation, and what a rotation is for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support import attention_oracles as oracles
from support.attention_oracles import CLOSE, FUNCTIONS, normal, some

from rope_xp import RoPE
from rope_xp.papers import attention


@pytest.mark.parametrize("form", oracles.FORMS)
def test_scores_are_products_of_rotated_heads(form: str) -> None:
    q, k, _ = some()
    positions = np.arange(12) * 91
    rotate = oracles.FORMS[form]
    expected = oracles.scores(*(rotate(x.astype(np.float64), positions) for x in (q, k)))
    rope = RoPE(layout=oracles.LAYOUTS[form])
    np.testing.assert_allclose(attention.scores(q, k, positions, rope), expected / 4, **CLOSE)
    scaled = attention.scores(q, k, positions, rope, scale=1.0)
    np.testing.assert_allclose(scaled, expected, rtol=1e-5, atol=4e-5)


# --- what a rotation is for ----------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["interleaved", "half", "interleaved_to_half"])
def test_scores_depend_on_distance_alone(layout: str) -> None:
    """One q and one k at all places: each diagonal holds one number."""
    q, k = (np.broadcast_to(normal(16, seed=i), (30, 1, 16)) for i in (1, 2))
    (found,) = attention.scores(q, k, rope=RoPE(layout=layout))
    for offset in range(-29, 30):
        diagonal = np.diagonal(found, offset)
        np.testing.assert_allclose(diagonal, diagonal[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("shift", [1, 1000, 1_000_000])
@pytest.mark.parametrize(("function", "n"), FUNCTIONS)
def test_a_shift_of_all_positions_changes_nothing(function: Any, n: int, shift: int) -> None:
    arrays = some()[:n]
    here, there = (function(*arrays, np.arange(12) + start, RoPE()) for start in (0, shift))
    np.testing.assert_allclose(there, here, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [attention.attention, attention.linear_attention])
def test_permuting_tokens_with_their_positions_permutes(function: Any) -> None:
    arrays = some()
    order = np.random.default_rng(0).permutation(12)
    positions = np.arange(12) * 3
    straight = function(*arrays, positions, RoPE())
    got = function(*(x[:, order] for x in arrays), positions[order], RoPE())
    np.testing.assert_allclose(got, straight[:, order], **CLOSE)
