"""rope_xp.papers.analysis: what it refuses, and in which words."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rope_xp import RoPE, RopeError, scaling
from rope_xp.papers import analysis

CALLS = {
    "decay_bound": lambda rope, head_dim=8: analysis.decay_bound(rope, head_dim, [1]),
    "score_curve": lambda rope, head_dim=8: analysis.score_curve(rope, head_dim, [1]),
    "max_distance": lambda rope, head_dim=8: analysis.max_distance(rope, head_dim, limit=9),
    "turns": lambda rope, head_dim=8: analysis.turns(rope, head_dim, 9),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_errors_of_any_call(call) -> None:
    dynamic = RoPE(scaling=scaling.DynamicNTK(2.0, 64))
    with pytest.raises(RopeError, match=r"rope\.for_length\(n\)"):
        call(dynamic)
    call(dynamic.for_length(128))
    with pytest.raises(TypeError, match="rope must be a rope_xp.RoPE; got 10000.0"):
        call(10_000.0)
    with pytest.raises(RopeError, match="odd number"):
        call(RoPE(), 7)
    with pytest.raises(TypeError, match="head_dim must be an integer"):
        call(RoPE(), 8.0)


@pytest.mark.parametrize("curve", [analysis.decay_bound, analysis.score_curve])
def test_errors_of_distances(curve) -> None:
    with pytest.raises(RopeError, match="distances must be finite; got nan among them"):
        curve(RoPE(), 8, [0.0, math.nan])
    for wrong in (["near"], [1j], [True], [2**70]):
        with pytest.raises(TypeError, match="distances must hold integers or floats"):
            curve(RoPE(), 8, wrong)


def test_errors_of_the_other_arguments() -> None:
    with pytest.raises(
        RopeError, match=r"q must have the shape \(head_dim,\) = \(8,\); got \(4,\)"
    ):
        analysis.score_curve(RoPE(), 8, 1, q=np.ones(4))
    with pytest.raises(RopeError, match="k must be finite"):
        analysis.score_curve(RoPE(), 8, 1, k=[math.inf] * 8)
    with pytest.raises(RopeError, match="limit must be positive"):
        analysis.max_distance(RoPE(), 8, limit=0)
    with pytest.raises(TypeError, match="limit must be an integer"):
        analysis.max_distance(RoPE(), 8, limit=1e6)
    with pytest.raises(RopeError, match="tokens must be positive"):
        analysis.turns(RoPE(), 8, 0)
