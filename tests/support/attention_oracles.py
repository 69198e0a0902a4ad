"""Arrays for tests of attention, and its definitions in float64 numpy, head by head."""

import numpy as np

from rope_xp.papers import attention
from support.oracles import rotate_complex

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


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def build_qkv(*, s=12, t=12, fewer=2):
    shapes = (2, s, 4, 16), (2, t, fewer, 16), (2, t, fewer, 6)
    return [normal(*shape, seed=i).astype(np.float32) for i, shape in enumerate(shapes)]


def rotate_heads(x, positions, layout="interleaved"):
    d = x.shape[-1]
    angles = np.outer(positions, 10000.0 ** (-np.arange(0, d, 2) / d))
    return rotate_complex(x, angles[:, None], layout)


def scores(q, k):
    """Eq. 16 of arXiv 2104.09864 by heads, unscaled; q and k are rotated already."""
    group = q.shape[-2] // k.shape[-2]
    heads = [q[..., h, :] @ k[..., h // group, :].mT for h in range(q.shape[-2])]
    return np.stack(heads, axis=-3)
