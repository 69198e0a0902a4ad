"""Arrays for tests of attention, and its definitions in float64 numpy, head by head."""

from collections.abc import Callable
from typing import Any

import numpy as np

from rope_xp.papers import attention
from support.targets import numpy_dtype

# Sums of 16 products and 20 weights in float32, each of eps = 1.2e-7 and of values up to 4: 20 of
# them at worst, by chance a few. cos and sin add 2.4e-7 each.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

FUNCTIONS: list[tuple[Any, int]] = [
    (attention.scores, 2),
    (attention.attention, 3),
    (attention.linear_attention, 3),
    (attention.global_pointer, 2),
]
"""Each with the number of its arrays."""


def normal(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(numpy_dtype(dtype))


def build_qkv(*, s: int = 12, t: int = 12, fewer: int = 2) -> tuple[np.ndarray, ...]:
    """Return q, k and v, whose head_dim is another."""
    return normal(2, s, 4, 16), normal(2, t, fewer, 16, seed=1), normal(2, t, fewer, 6, seed=2)


def paper(x: np.ndarray, positions: np.ndarray, base: float = 10000.0) -> np.ndarray:
    """Stack, reshape, and repeat the sines: RoFormer's pseudo-code, interleaved."""
    d = x.shape[-1]
    angles = np.einsum("n,d->nd", positions, base ** (-2.0 * np.arange(d // 2) / d))
    sines = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(positions), 1, d)
    cos, sin = np.repeat(sines[..., 1::2], 2, axis=-1), np.repeat(sines[..., ::2], 2, axis=-1)
    swapped = np.stack([-x[..., 1::2], x[..., ::2]], axis=-1).reshape(x.shape)
    return x * cos + swapped * sin


def llama(x: np.ndarray, positions: np.ndarray, base: float = 10000.0) -> np.ndarray:
    """rotate_half: Llama in Hugging Face, GPT-NeoX; halves."""
    d = x.shape[-1]
    angles = np.outer(positions, 1.0 / base ** (np.arange(0, d, 2) / d))
    both = np.concatenate([angles, angles], axis=-1)[:, None, :]
    rotate_half = np.concatenate([-x[..., d // 2 :], x[..., : d // 2]], axis=-1)
    return x * np.cos(both) + rotate_half * np.sin(both)


ROTATIONS: dict[str, Callable[..., np.ndarray]] = {
    "interleaved": paper,
    "half": llama,
    "interleaved_to_half": paper,  # products do not depend on the order of pairs
}
"""By layout."""


def head_pairs(q: np.ndarray, k: np.ndarray) -> list[tuple[int, int]]:
    """Return each head of q with the head of k that serves it."""
    return [(h, h // (q.shape[-2] // k.shape[-2])) for h in range(q.shape[-2])]


def scores(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Eq. 16 of arXiv 2104.09864 by heads, unscaled; q and k are rotated already."""
    heads = [q[..., h, :] @ k[..., g, :].mT for h, g in head_pairs(q, k)]
    return np.stack(heads, axis=-3)


def linear_attention(q, k, v, phi, varphi, rotate, causal):
    """Eq. 19 as it stands: a square of weights, summed over n."""
    plain = scores(phi(q), varphi(k))
    rotated = scores(rotate(phi(q)), rotate(varphi(k)))
    allowed = np.tril(np.ones(plain.shape[-2:])) if causal else np.ones(plain.shape[-2:])
    weights = rotated * allowed / (plain * allowed).sum(-1, keepdims=True)
    heads = [weights[..., h, :, :] @ v[..., g, :] for h, g in head_pairs(q, k)]
    return np.stack(heads, axis=-2)


def elu_plus_one(x: np.ndarray) -> np.ndarray:
    """elu(x) + 1."""
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    """exp(x) by its sum."""
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)
