"""rope_xp.papers.analysis: against formulae and plain loops, with every scaling; its errors."""

import math
from functools import partial

import numpy as np
import pytest

from rope_xp import RoPE, RopeError, scaling
from rope_xp.papers import analysis
from rope_xp.papers.analysis import decay_bound, max_distance, score_curve, turns

HEAD_DIM = 16
ROPES = {
    "none": RoPE(),
    "partial": RoPE(rotary_dim=8, rotary_offset=-8, layout="half"),
    "written elsewhere": RoPE(layout="interleaved_to_half"),
    "axes": RoPE(position_axes=(0, 1, 2, 0, 1, 2, 0, 1)),
    "factor": RoPE(rotary_dim=8, rotary_offset=-8, scaling=scaling.YaRN(4.0, 64)),
    "frequency 0": RoPE(scaling=scaling.Proportional(0.5)),
}
every_rope = pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)


@every_rope
def test_decay_bound_is_the_mean_of_partial_sums_and_bounds_scores(rope):
    distances = np.array([[0, 1, 2.5], [-17, 1000, 54321]])
    frequencies = rope.frequencies(HEAD_DIM)
    pairs = len(frequencies)
    partial_sums = np.cumsum(np.exp(1j * distances[..., None] * frequencies), axis=-1)
    bound = decay_bound(rope, HEAD_DIM, distances)
    # Either rounds angles up to 54321 by 2**-53 of themselves: 6e-12 a pair, and 8 add up.
    np.testing.assert_allclose(bound, np.abs(partial_sums).mean(axis=-1), rtol=0, atol=1e-10)
    assert bound[0, 0] == decay_bound(rope, HEAD_DIM, 0)[()] == (pairs + 1) / 2

    q, k = np.random.default_rng(0).standard_normal((2, HEAD_DIM))
    q[: HEAD_DIM - 2 * pairs] = 0  # components that pass through are not bounded
    h = analysis._complex_pairs(rope, q) * analysis._complex_pairs(rope, k).conj()  # of eq. 35
    steepest = np.abs(np.diff([*h, 0.0])).max() * rope.attention_factor**2
    scores = score_curve(rope, HEAD_DIM, distances, q, k)
    assert np.all(np.abs(scores) <= steepest * pairs * bound + 1e-12)


@every_rope
@pytest.mark.parametrize("ones", [False, True])
def test_score_curve_is_the_score_of_rotated_vectors(rope, ones):
    q, k = np.random.default_rng(1).standard_normal((2, HEAD_DIM)) ** (1 - ones)
    distances = np.array([-300, -1, 0, 1, 7, 300])
    components = () if rope.position_axes is None else (3,)
    positions = np.broadcast_to(distances + 1000, (*components, 6))
    rotated_k = rope.rotate(k[None], np.full((*components, 1), 1000), axes="sd")[0]
    expected = rope.rotate(np.tile(q, (6, 1)), positions, axes="sd") @ rotated_k
    curve = score_curve(rope, HEAD_DIM, distances.reshape(2, 3), *(() if ones else (q, k)))
    assert isinstance(score_curve(rope, HEAD_DIM, 0), np.ndarray)
    np.testing.assert_allclose(curve, expected.reshape(2, 3), rtol=0, atol=1e-11)


@pytest.mark.parametrize(("base", "expected"), [(1e4, 1707), (5e5, 18438), (4.3e3, 1077)])
def test_max_distance_is_the_first_negative_sum(base, expected):
    assert max_distance(RoPE(base=base), 128) == expected
    # Independent of frequencies() and of blocks: all the sums before, by powers.
    angles = np.outer(np.arange(expected + 1), base ** (-np.arange(0, 128, 2) / 128))
    sums = np.cos(angles).sum(axis=1)
    assert sums[:-1].min() > 1e-6
    assert sums[-1] < -1e-6


@every_rope
def test_turns_and_max_distance_are_those_of_plain_loops(rope, monkeypatch):
    frequencies = rope.frequencies(HEAD_DIM).tolist()
    expected = [4096 * f / math.tau for f in frequencies]
    np.testing.assert_allclose(turns(rope, HEAD_DIM, 4096), expected, rtol=1e-15)
    sums = ((m, sum(math.cos(m * f) for f in frequencies)) for m in range(1, 2001))
    first = next((m for m, s in sums if s < 0), None)
    for block in (1, 7):
        monkeypatch.setattr(analysis, "_BLOCK", block)
        assert max_distance(rope, HEAD_DIM, limit=2000) == first
        if first is not None:
            found = [max_distance(rope, HEAD_DIM, limit=limit) for limit in (first - 1, first)]
            assert found == [None, first]


BAD = [
    (turns, (RoPE(scaling=scaling.DynamicNTK(2.0, 64)), 8, 9), r"rope\.for_length\(n\)"),
    *((f, (1e4, 8, 9), "be a rope_xp.RoPE; got 10000.0") for f in (decay_bound, score_curve)),
    *((f, (1e4, 8, 9), "be a rope_xp.RoPE; got 10000.0") for f in (turns, max_distance)),
    (decay_bound, (RoPE(), 7, 9), "odd number"),
    *((f, (RoPE(), 8, [0, math.nan]), "finite; got nan") for f in (decay_bound, score_curve)),
    *((decay_bound, (RoPE(), 8, at), "must hold integers or") for at in (["2"], [1j], [True])),
    (score_curve, (RoPE(), 8, 1, np.ones(4)), r"q must have shape .* = \(8,\); got \(4,"),
    (score_curve, (RoPE(), 8, 1, np.ones(8), [math.inf] * 8), "k must be finite"),
    (turns, (RoPE(), 8, 0), "tokens must be positive"),
    (partial(max_distance, limit=0), (RoPE(), 8), "limit must be positive"),
]


@pytest.mark.parametrize(("function", "arguments", "message"), BAD)
def test_analysis_refuses_arguments_that_do_not_fit(function, arguments, message):
    error = TypeError if message.startswith(("be a", "must hold")) else RopeError
    with pytest.raises(error, match=message):
        function(*arguments[: 2 if function is max_distance else None])
