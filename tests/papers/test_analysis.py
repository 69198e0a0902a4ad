"""rope_xp.papers.analysis: against mpmath and plain loops, with every scaling; its errors."""

import math

import numpy as np
import pytest

from rope_xp import RoPE, RopeError, scaling
from rope_xp.papers import analysis

mpmath = pytest.importorskip("mpmath")

HEAD_DIM = 16
ROPES = {
    "none": RoPE(),
    "partial": RoPE(rotary_dim=8, rotary_offset=-8, layout="half"),
    "written elsewhere": RoPE(layout="interleaved_to_half"),
    "axes": RoPE(position_axes=(0, 1, 2, 0, 1, 2, 0, 1)),
    "Linear": RoPE(scaling=scaling.Linear(4.0)),
    "DynamicNTK": RoPE(scaling=scaling.DynamicNTK(2.0, 64, length=1000)),
    "YaRN": RoPE(layout="half", scaling=scaling.YaRN(4.0, 64)),
    "YaRN, partial": RoPE(rotary_dim=8, rotary_offset=-8, scaling=scaling.YaRN(4.0, 64)),
    "LongRoPE": RoPE(scaling=scaling.LongRoPE((1.0,) * 8, (2.0,) * 8, 64, factor=4.0, length=100)),
    "Proportional": RoPE(scaling=scaling.Proportional(0.5)),
}
every_rope = pytest.mark.parametrize("rope", ROPES.values(), ids=ROPES)
CURVES = {"decay_bound": analysis.decay_bound, "score_curve": analysis.score_curve}
every_curve = pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)


@every_rope
def test_decay_bound_is_the_mean_of_partial_sums_and_bounds_scores(rope):
    distances = np.array([0, 1, 2.5, -17, 1000, 54321])
    frequencies = rope.frequencies(HEAD_DIM)
    pairs = len(frequencies)
    partial_sums = np.cumsum(np.exp(1j * distances[:, None] * frequencies), axis=1)
    bound = analysis.decay_bound(rope, HEAD_DIM, distances)
    # Either rounds angles up to 54321 by 2**-53 of themselves: 6e-12 a pair, and 8 add up.
    np.testing.assert_allclose(bound, np.abs(partial_sums).mean(axis=1), rtol=0, atol=1e-10)
    assert bound[0] == (pairs + 1) / 2

    q, k = np.random.default_rng(0).standard_normal((2, HEAD_DIM))
    q[: HEAD_DIM - 2 * pairs] = 0  # components that pass through are not bounded
    h = analysis._complex_pairs(rope, q) * analysis._complex_pairs(rope, k).conj()  # of eq. 35
    steepest = np.abs(np.diff([*h, 0.0])).max() * rope.attention_factor**2
    scores = analysis.score_curve(rope, HEAD_DIM, distances, q, k)
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
    vectors = () if ones else (q, k)
    curve = analysis.score_curve(rope, HEAD_DIM, distances, *vectors)
    np.testing.assert_allclose(curve, expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize(("base", "expected"), [(1e4, 1707), (5e5, 18438), (4.3e3, 1077)])
def test_max_distance_is_the_first_negative_sum(base, expected):
    assert analysis.max_distance(RoPE(base=base), 128) == expected
    # Independent of frequencies() and of blocks: all the sums before, by powers.
    angles = np.outer(np.arange(expected + 1), base ** (-np.arange(0, 128, 2) / 128))
    sums = np.cos(angles).sum(axis=1)
    assert sums[:-1].min() > 1e-6
    assert sums[-1] < -1e-6


@every_rope
def test_turns_and_max_distance_of_scalings_are_those_of_plain_loops(rope):
    frequencies = rope.frequencies(HEAD_DIM).tolist()
    turns = analysis.turns(rope, HEAD_DIM, 4096)
    np.testing.assert_allclose(turns, 4096 / rope.wavelengths(HEAD_DIM), rtol=1e-15)
    sums = ((m, sum(math.cos(m * f) for f in frequencies)) for m in range(1, 2001))
    expected = next((m for m, s in sums if s < 0), None)
    assert analysis.max_distance(rope, HEAD_DIM, limit=2000) == expected


class Fixed(scaling.Scaling):
    def __init__(self, *frequencies):
        self.fixed = frequencies

    def frequencies(self, base, rotary_dim):
        return np.array(self.fixed)


M = 1_000_003
# cos(M f) of f = pi / (2 M) is zero but for the rounding of f.
QUARTER = math.pi / (2 * M)


@pytest.mark.parametrize("frequency", [QUARTER, math.nextafter(QUARTER, 1)])
def test_max_distance_where_rounding_could_turn_the_sign_is_exact(frequency):
    with mpmath.workdps(40):
        exact = mpmath.cos(M * mpmath.mpf(frequency))
    rope = RoPE(scaling=Fixed(frequency))
    assert analysis.max_distance(rope, 2, limit=M + 5) == (M if exact < 0 else M + 1)


def test_analysis_refuses_ropes_and_head_dims_that_do_not_fit():
    dynamic = RoPE(scaling=scaling.DynamicNTK(2.0, 64))
    for function in (analysis.decay_bound, analysis.score_curve, analysis.turns):
        with pytest.raises(RopeError, match=r"rope\.for_length\(n\)"):
            function(dynamic, 8, 9)
        with pytest.raises(TypeError, match="rope must be a rope_xp.RoPE; got 10000.0"):
            function(10_000.0, 8, 9)
        with pytest.raises(RopeError, match="odd number"):
            function(RoPE(), 7, 9)


@every_curve
def test_curves_refuse_distances_that_are_no_finite_numbers(curve):
    with pytest.raises(RopeError, match="distances must be finite; got nan among them"):
        curve(RoPE(), 8, [0.0, math.nan])
    for wrong in (["near"], [1j], [True], [2**70]):
        with pytest.raises(TypeError, match="distances must hold integers or floats"):
            curve(RoPE(), 8, wrong)


@pytest.mark.parametrize(
    ("message", "function", "options"),
    [
        (r"q must have shape .* = \(8,\); got \(4,", analysis.score_curve, {"q": np.ones(4)}),
        ("k must be finite", analysis.score_curve, {"k": [math.inf] * 8}),
        ("limit must be positive", analysis.max_distance, {"limit": 0}),
        ("tokens must be positive", analysis.turns, {"tokens": 0}),
    ],
)
def test_analysis_refuses_other_arguments_that_do_not_fit(message, function, options):
    distances = {"distances": 1} if function is analysis.score_curve else {}
    with pytest.raises(RopeError, match=message):
        function(RoPE(), 8, **distances, **options)
