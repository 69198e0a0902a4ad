"""Rotations of recent papers by public functions, compared with the formulae of their code."""

from dataclasses import dataclass

import numpy as np
import pytest

import rope_xp
from rope_xp import RoPE
from rope_xp.scaling import Scaling, inverse_frequencies

TOKENS, HEADS, KV_HEADS, DIM = 40, 8, 4, 16
POSITIONS = np.arange(TOKENS)
W = inverse_frequencies(10000.0, DIM)
HALF = RoPE(layout="half")


@pytest.fixture
def qk(rng):
    return tuple(rng.standard_normal((1, TOKENS, heads, DIM)) for heads in (HEADS, KV_HEADS))


def for_heads(x, heads=HEADS):
    """Repeat what is given for each key head, as a group of query heads shares it."""
    return np.repeat(x, heads // x.shape[2], axis=2)


def to_complex(x):
    """Return pairs (i, i + r/2) as complex numbers."""
    return x[..., : DIM // 2] + 1j * x[..., DIM // 2 :]


def turn(x, angles):
    z = to_complex(x) * np.exp(1j * for_heads(angles, x.shape[2]))
    return np.concatenate([z.real, z.imag], -1)


def score(q, k):
    """Return dot products, (heads, queries, keys)."""
    return np.einsum("bthd,bshd->hts", q, for_heads(k))


def complex_score(q, k, distance):
    """Return sum_i q_i conj(k_i) exp(i distance w_i), (heads, queries, keys)."""
    waves = np.exp(1j * distance[..., None] * W)
    return np.einsum("bthc,bshc,tsc->hts", to_complex(q), to_complex(for_heads(k)).conj(), waves)


def check(got, expected, atol=1e-12):
    # float64: products of numbers near 1, and angles below 1e3 radians that are rounded once. Of
    # scores, 16 of them.
    for x, y in zip(got, expected, strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=atol)


def test_fope_of_vllm_is_tables_for_each_head(rng, qk):
    """Hua et al., arXiv 2412.17739; vLLM, fope.py, whose 0.33.0 pads sin with 1 by mistake."""
    kept = 6
    mix_cos, mix_sin = rng.standard_normal((2, KV_HEADS, kept, kept))
    waves = POSITIONS[:, None] * W[:kept]
    pad = (0, 0), (0, 0), (0, DIM // 2 - kept)
    cos = np.pad(np.einsum("tD,hDd->thd", np.cos(waves), mix_cos), pad, constant_values=1.0)[None]
    sin = np.pad(np.einsum("tD,hDd->thd", np.sin(waves), mix_sin), pad)[None]
    for x in qk:
        c, s = (np.tile(for_heads(t, x.shape[2]), 2) for t in (cos, sin))
        half = np.concatenate([-x[..., DIM // 2 :], x[..., : DIM // 2]], -1)
        check([rope_xp.apply_tables(x, cos, sin, layout="half")], [x * c + half * s])


def test_mamba3_is_a_cumulative_angle_for_each_head(rng, qk):
    """Lahoti et al., arXiv 2603.15569; state-spaces/mamba, mamba3_siso_step_ref in its tests."""
    raw, dt = rng.standard_normal((1, TOKENS, KV_HEADS, 5)), rng.random((1, TOKENS, KV_HEADS, 1))
    q, k = qk
    state, expected = np.zeros((1, KV_HEADS, 5)), []
    for t in range(TOKENS):
        state = np.mod(state + np.tanh(raw[:, t]) * np.pi * dt[:, t], 2 * np.pi)
        expected.append(np.exp(1j * np.repeat(state, 2, 1)))
    pairs = (q[..., :10:2] + 1j * q[..., 1:10:2]) * np.stack(expected, 1)
    angles = rope_xp.cumulative_angles(np.tanh(raw) * np.pi * dt, 1)
    q_rotated, _ = rope_xp.apply_angles(q, k, angles)
    check([q_rotated[..., :10:2], q_rotated[..., 1:10:2]], [pairs.real, pairs.imag])
    np.testing.assert_array_equal(q_rotated[..., 10:], q[..., 10:])


def test_selective_rope_is_a_gated_cumulative_angle(rng, qk):
    """Movahedi et al., arXiv 2511.17388: temperatures, a gate and a bias before the sum."""
    phi = rng.standard_normal((1, TOKENS, KV_HEADS, DIM // 2))
    gate = 1 / (1 + np.exp(-rng.standard_normal((1, TOKENS, KV_HEADS, 1))))
    steps = (phi + np.exp(rng.standard_normal((KV_HEADS, DIM // 2)))) * gate
    rotated = rope_xp.apply_angles(*qk, rope_xp.cumulative_angles(W * steps, 1), layout="half")
    check(rotated, [turn(x, W * np.cumsum(steps, 1)) for x in qk])


def test_mhrope_is_one_position_component_for_each_head(qk):
    """Huang et al., arXiv 2510.23095; its repository, freq_allocation/mhrope.py."""
    positions = np.stack([POSITIONS // 8, POSITIONS // 4 % 2, POSITIONS % 4])  # time, row, column
    axis = np.repeat([0, 1, 2], [2, 1, 1])  # of each k head
    frequencies = np.where(axis == np.arange(3)[:, None], 1.0, 0.0)[..., None] * W
    rotated = rope_xp.apply_frequencies(*qk, positions, frequencies, layout="half")
    angles = (positions[axis][..., None] * W).transpose(1, 0, 2)[None]
    check(rotated, [turn(x, angles) for x in qk])


def test_pope_is_a_rotation_of_pairs_with_a_zero(rng, qk):
    """Gopalakrishnan et al., arXiv 2509.10534: score sum_c softplus(q_c) softplus(k_c) cos(...)."""
    delta = -rng.random((KV_HEADS, DIM))
    q, k = (np.log1p(np.exp(x)) for x in qk)
    padded = [np.stack([x, np.zeros_like(x)], -1).reshape(*x.shape[:-1], 2 * DIM) for x in (q, k)]
    angles = POSITIONS[:, None, None] * RoPE().frequencies(2 * DIM)
    turns = np.broadcast_to(angles, (1, TOKENS, KV_HEADS, DIM))
    rotated = rope_xp.apply_angles(*padded, turns, k_angles=turns + delta)
    phase = angles[None, :, 0] - angles[:, 0][:, None] + np.repeat(delta, 2, 0)[:, None, None]
    expected = np.einsum("bthc,bshc,htsc->hts", q, for_heads(k), np.cos(phase))
    check([score(*rotated)], [expected], atol=1e-11)


def test_imaginary_heads_of_rope_plus_plus_are_a_quarter_turn(qk):
    """Liu et al., arXiv 2512.07525: the imaginary part of the same complex product."""
    q, k = qk
    cos, sin = HALF.cos_sin(POSITIONS, DIM, dtype=np.float64)
    rotated = rope_xp.apply_tables(q, sin, -cos, layout="half"), HALF.rotate(k)
    expected = complex_score(q, k, POSITIONS[:, None] - POSITIONS).imag
    check([score(*rotated)], [expected], atol=1e-11)


@dataclass(frozen=True)
class Tapered(Scaling):
    slow_pairs: int

    def frequencies(self, base, rotary_dim):
        w = inverse_frequencies(base, rotary_dim)
        w[-self.slow_pairs :] *= (1 + np.cos(np.linspace(0, np.pi, self.slow_pairs))) / 2
        return w


def test_cope_is_a_scaling_that_tapers_slow_pairs(qk):
    """Li et al., arXiv 2602.05258; its repository, modeling_cope.py."""
    w = W * np.array([1, 1, 1, 1, 1, 1, 0.5, 0])  # (1 + cos(theta)) / 2 at 0, pi / 2 and pi
    angles = (POSITIONS[:, None] * w)[None, :, None]
    rope = RoPE(layout="half", scaling=Tapered(3))
    check(rope.apply(*qk), [turn(x, angles) for x in qk])


def test_dual_chunk_attention_is_a_rotation_for_each_kind_of_chunk(qk):
    """An et al., arXiv 2402.17463; vLLM, dual_chunk_rope.py: chunks of 12 less 4 local tokens."""
    chunk, length, (q, k) = 12, 12 - 4, qk
    within = POSITIONS % length
    after = np.minimum(within + length, chunk)
    intra, keys = HALF.apply(q, k, within)
    far = HALF.rotate(q, np.full(TOKENS, min(2 * length - 1, chunk)))
    behind = POSITIONS[:, None] // length - POSITIONS // length
    kinds = [behind == 0, behind == 1]
    scores = [score(intra, keys), score(HALF.rotate(q, after), keys)]
    # The distance that each score depends on: never more than the chunk.
    distance = np.select(kinds, (within[:, None], after[:, None]), chunk) - within
    expected = complex_score(q, k, distance).real
    check([np.select(kinds, scores, score(far, keys))], [expected], atol=1e-11)
