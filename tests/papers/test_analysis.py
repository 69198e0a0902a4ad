"""rope_xp.papers.analysis: against mpmath and plain loops, what is known, every rule."""

from __future__ import annotations

import cmath
import math

import numpy as np
import pytest

from rope_xp import RoPE, scaling
from rope_xp.papers import analysis

RULED = {
    "none": RoPE(),
    "partial": RoPE(rotary_dim=8, rotary_offset=-8, layout="half"),
    "written elsewhere": RoPE(layout="interleaved_to_half"),
    "axes": RoPE(position_axes=(0, 1, 2, 0, 1, 2, 0, 1)),
    "Linear": RoPE(scaling=scaling.Linear(4.0)),
    "NTK": RoPE(scaling=scaling.NTK(4.0)),
    "DynamicNTK": RoPE(scaling=scaling.DynamicNTK(2.0, 64, length=1000)),
    "YaRN": RoPE(layout="half", scaling=scaling.YaRN(4.0, 64)),
    "YaRN, partial": RoPE(rotary_dim=8, rotary_offset=-8, scaling=scaling.YaRN(4.0, 64)),
    "LongRoPE": RoPE(scaling=scaling.LongRoPE((1.0,) * 8, (2.0,) * 8, 64, factor=4.0, length=100)),
    "Llama3": RoPE(scaling=scaling.Llama3(8.0, 1.0, 4.0, 64)),
    "Proportional": RoPE(scaling=scaling.Proportional(0.5)),
}
HEAD_DIM = 16
EVERY = pytest.mark.parametrize("rope", RULED.values(), ids=RULED)


# --- the bound -----------------------------------------------------------------------------------


def bound_in_loops(frequencies: list[float], distance: float) -> float:
    total, partial = 0.0, 0j
    for frequency in frequencies:
        partial += cmath.exp(1j * distance * frequency)
        total += abs(partial)
    return total / len(frequencies)


@EVERY
def test_the_bound_is_the_mean_of_partial_sums(rope: RoPE) -> None:
    distances = [0, 1, 2.5, 17, 1000, 54321]
    expected = [bound_in_loops(rope.frequencies(HEAD_DIM).tolist(), m) for m in distances]
    got = analysis.decay_bound(rope, HEAD_DIM, distances)
    # Either rounds angles up to 54321 by 2**-53 of themselves: 6e-12 a pair, and 8 pairs add up.
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("distance", [1, 100, 99_999])
def test_the_bound_against_mpmath(distance: int) -> None:
    mpmath = pytest.importorskip("mpmath", reason="mpmath is the truth (pip install mpmath)")
    with mpmath.workdps(40):
        frequencies = [mpmath.mpf(500_000) ** (-mpmath.mpf(2 * i) / 128) for i in range(64)]
        turned = [mpmath.expjpi(distance * f / mpmath.pi) for f in frequencies]
        expected = mpmath.fsum(abs(mpmath.fsum(turned[: j + 1])) for j in range(64)) / 64
    got = analysis.decay_bound(RoPE(base=500_000.0), 128, distance)
    assert got.shape == ()
    # The frequency and the product are each rounded by 2**-53: 2.3e-11 at most, 64 pairs.
    assert abs(float(got) - float(expected)) < 1e-9


@EVERY
def test_the_bound_at_distance_0(rope: RoPE) -> None:
    pairs = len(rope.frequencies(HEAD_DIM))
    assert analysis.decay_bound(rope, HEAD_DIM, 0) == (pairs + 1) / 2


@EVERY
def test_the_bound_bounds_scores(rope: RoPE) -> None:
    random = np.random.default_rng(0)
    distances = np.arange(-50, 500)
    r = 2 * len(rope.frequencies(HEAD_DIM))
    q, k = random.standard_normal((2, HEAD_DIM))
    if r < HEAD_DIM:
        q[: HEAD_DIM - r] = 0  # what passes through is not bounded
    h = products(rope, q, k)
    steepest = np.abs(np.diff([*h, 0.0])).max() * rope.attention_factor**2
    bound = steepest * len(h) * analysis.decay_bound(rope, HEAD_DIM, distances)
    assert np.all(np.abs(analysis.score_curve(rope, HEAD_DIM, distances, q, k)) <= bound + 1e-12)


def products(rope: RoPE, q: np.ndarray, k: np.ndarray) -> list[complex]:
    """Return h_i of eq. 35, pair by pair."""
    r = 2 * len(rope.frequencies(HEAD_DIM))
    start = rope.rotary_offset % HEAD_DIM
    half = rope.layout == "half"
    places = [(i, i + r // 2) if half else (2 * i, 2 * i + 1) for i in range(r // 2)]
    pairs = [(start + a, start + b) for a, b in places]
    return [complex(q[a], q[b]) * complex(k[a], -k[b]) for a, b in pairs]


# --- scores --------------------------------------------------------------------------------------


@EVERY
def test_a_score_is_what_rotated_vectors_have(rope: RoPE) -> None:
    random = np.random.default_rng(1)
    q, k = random.standard_normal((2, HEAD_DIM))
    distances = np.array([-300, -1, 0, 1, 7, 300])
    components = () if rope.position_axes is None else (3,)
    at = np.broadcast_to(distances + 1000, (*components, 6))
    origin = np.full((*components, 1), 1000)
    rotated_k = rope.rotate(k[None], origin, axes="sd")[0]
    expected = rope.rotate(np.tile(q, (6, 1)), at, axes="sd") @ rotated_k
    got = analysis.score_curve(rope, HEAD_DIM, distances, q, k)
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-11)


def test_ones_have_twice_the_sum_of_cosines() -> None:
    frequencies = RoPE().frequencies(HEAD_DIM).tolist()
    for distance in (0, 1, -40, 12345):
        expected = 2 * sum(math.cos(distance * f) for f in frequencies)
        got = analysis.score_curve(RoPE(), HEAD_DIM, distance)
        assert abs(float(got) - expected) < 1e-11


def test_what_passes_through_adds_alike() -> None:
    whole = analysis.score_curve(RoPE(), 8, [0, 3, 99])
    part = analysis.score_curve(RoPE(rotary_dim=8), 12, [0, 3, 99])
    np.testing.assert_allclose(part, whole + 4, rtol=0, atol=1e-13)


@EVERY
def test_distances_either_way(rope: RoPE) -> None:
    distances = np.arange(200)
    for curve in (analysis.decay_bound, analysis.score_curve):
        there, back = curve(rope, HEAD_DIM, distances), curve(rope, HEAD_DIM, -distances)
        np.testing.assert_allclose(there, back, rtol=0, atol=1e-12)


@pytest.mark.parametrize("curve", [analysis.decay_bound, analysis.score_curve])
def test_shapes_and_blocks(curve, monkeypatch: pytest.MonkeyPatch) -> None:
    distances = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    at_once = curve(RoPE(), HEAD_DIM, distances)
    assert at_once.shape == (3, 4, 5)
    assert at_once.dtype == np.float64
    assert curve(RoPE(), HEAD_DIM, []).shape == (0,)
    monkeypatch.setattr(analysis, "_BLOCK", 7 * HEAD_DIM // 2)
    # BLAS adds in an order that depends on the size of the block.
    np.testing.assert_allclose(curve(RoPE(), HEAD_DIM, distances), at_once, rtol=0, atol=1e-13)


# --- the first negative sum ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "expected"), [(1e4, 1707), (5e5, 18438), (1e6, 27115), (4.3e3, 1077)]
)
def test_the_first_negative_sum(base: float, expected: int) -> None:
    assert analysis.max_distance(RoPE(base=base), 128) == expected
    # Independent of frequencies() and of blocks: all the sums before, by another recurrence.
    turn = np.exp(1j * base ** (-np.arange(0, 128, 2) / 128))
    turned = np.ones(64, complex)
    sums = np.empty(expected + 1)
    for distance in range(expected + 1):
        sums[distance] = turned.real.sum()
        turned *= turn
    assert sums[:-1].min() > 1e-6  # the recurrence is off by some 1e-9
    assert sums[-1] < -1e-6


def test_the_first_negative_sum_against_mpmath() -> None:
    mpmath = pytest.importorskip("mpmath", reason="mpmath is the truth (pip install mpmath)")
    found = analysis.max_distance(RoPE(), 128)
    with mpmath.workdps(30):
        frequencies = [mpmath.mpf(10_000) ** (-mpmath.mpf(2 * i) / 128) for i in range(64)]
        last, first = (
            mpmath.fsum(mpmath.cos(m * f) for f in frequencies) for m in (found - 1, found)
        )
    assert first < 0 < last


@EVERY
def test_the_first_negative_sum_of_rules(rope: RoPE) -> None:
    frequencies = rope.frequencies(HEAD_DIM).tolist()
    sums = ((m, sum(math.cos(m * f) for f in frequencies)) for m in range(1, 2001))
    expected = next((m for m, s in sums if s < 0), None)
    assert analysis.max_distance(rope, HEAD_DIM, limit=2000) == expected


def test_the_limit_is_looked_at_and_no_further() -> None:
    assert analysis.max_distance(RoPE(), 128, limit=1707) == 1707
    assert analysis.max_distance(RoPE(), 128, limit=1706) is None
    assert analysis.max_distance(RoPE(scaling=scaling.Proportional(0.5)), 16, limit=10_000) is None


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "_BLOCK", 64 * 1707)
    assert analysis.max_distance(RoPE(), 128) == 1707
    monkeypatch.setattr(analysis, "_BLOCK", 64 * 1706)
    assert analysis.max_distance(RoPE(), 128) == 1707


def test_sums_that_rounding_could_turn_are_summed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule whose sum passes zero within rounding: the sign is that of the exact angles."""
    mpmath = pytest.importorskip("mpmath", reason="mpmath is the truth (pip install mpmath)")
    # cos(m f) of f = pi / (2 m) is zero but for the rounding of f.
    m = 1_000_003
    for f in (math.pi / (2 * m), math.nextafter(math.pi / (2 * m), 1)):
        with mpmath.workdps(40):
            expected = mpmath.cos(m * mpmath.mpf(f))
        got = analysis._sum_cosines_exactly(m, np.array([f]))
        assert abs(got - float(expected)) < 2e-16
        assert (got < 0) == (expected < 0)
        rope = RoPE(scaling=Fixed(f))
        assert analysis.max_distance(rope, 2, limit=m + 5) == (m if expected < 0 else m + 1)


def test_a_sum_that_rounds_to_zero_has_the_sign_of_the_exact_one() -> None:
    hexes = (
        *("0x1.03abeffc94db6p-20", "0x1.26877769d4463p-19", "0x1.222237520e714p-19"),
        *("0x1.a5bbbe8ea57bep-20", "0x1.92e607335d757p-20", "0x1.17d86e1943ba7p-20"),
    )
    rule = Fixed(*map(float.fromhex, hexes))
    m = 1_000_003
    assert np.cos(m * np.array(rule.given)).sum() == 0.0
    assert analysis.max_distance(RoPE(scaling=rule), 12, limit=m + 5) == m


class Fixed(scaling.Scaling):
    """A rule of given frequencies."""

    def __init__(self, *given: float) -> None:
        self.given = given

    def frequencies(self, base: float, rotary_dim: int) -> np.ndarray:
        return np.array(self.given)


# --- turns ---------------------------------------------------------------------------------------


@EVERY
def test_turns(rope: RoPE) -> None:
    turned = analysis.turns(rope, HEAD_DIM, 4096)
    np.testing.assert_allclose(turned, 4096 / rope.wavelengths(HEAD_DIM), rtol=1e-15)


def test_turns_count_pairs() -> None:
    # 10000 ** (-2 i / 128) turns once in 4096 tokens where i < 64 log(4096 / 2 pi) / log(10000).
    below = 64 * math.log(4096 / (2 * math.pi)) / math.log(10_000)
    assert int((analysis.turns(RoPE(), 128, 4096) >= 1).sum()) == math.ceil(below) == 46
