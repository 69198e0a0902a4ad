"""Arrays for tests of attention, and its definitions in float64 numpy, head by head."""

import numpy as np

from rope_xp.papers import attention
from support.oracles import rotate_complex
from support.targets import numpy_dtype

# Sums of 16 products and 20 weights in float32, each of eps = 1.2e-7 and of values up to 4: 20 of
# them at worst, by chance a few. cos and sin add 2.4e-7 each.
CLOSE = {"rtol": 1e-5, "atol": 1e-5}

FUNCTIONS = [
    (attention.scores, 2),
    (attention.attention, 3),
    (attention.linear_attention, 3),
    (attention.global_pointer, 2),
]
"""Each with the number of its arrays."""


def normal(*shape, seed=0, dtype="float32"):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(numpy_dtype(dtype))


def build_qkv(*, s=12, t=12, fewer=2):
    return normal(2, s, 4, 16), normal(2, t, fewer, 16, seed=1), normal(2, t, fewer, 6, seed=2)


def rotate_heads(x, positions, layout="interleaved"):
    d = x.shape[-1]
    angles = np.outer(positions, 10000.0 ** (-np.arange(0, d, 2) / d))
    return rotate_complex(x, angles[:, None], layout)


def head_pairs(q, k):
    """Return each head of q with the head of k that serves it."""
    return [(h, h // (q.shape[-2] // k.shape[-2])) for h in range(q.shape[-2])]


def scores(q, k):
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


def elu_plus_one(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0))) + 1


def softmax(x, axis):
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)
