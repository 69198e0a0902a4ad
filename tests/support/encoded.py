"""Encodings that RoFormer reviews, as double loops over tokens."""

import numpy as np

from rope_xp.papers import encodings
from support.targets import rows

LIBRARIES = rows(
    ("numpy", "array-api-strict", "array-api-strict:device1", "torch", "jax-jit", "dask")
)

# float32 sums of some 20 products of numbers that stay below 10: each rounds by 2**-24 of the sum
# so far, at most 20 * 10 * 2**-24 = 1.2e-5 in all.
ATOL = 1.2e-5

# Odd sizes, one token, one head, grouped heads, batch axes: (batch, q tokens, k tokens, heads,
# k heads, head_dim).
SIZES = [
    ((), 5, 5, 3, 3, 7),
    ((2,), 4, 9, 2, 1, 3),
    ((2, 3), 1, 1, 1, 1, 1),
    ((1,), 1, 11, 4, 2, 8),
    ((3,), 13, 13, 1, 1, 5),
]
CLIP, DIM, BUCKETS, BASE = 3, 6, 8, 10000.0
SCALE = 0.625  # a power of two times 5: exact in float32


class Case:
    """Random arrays of one size: queries, keys, positions and parameters of all encodings."""

    def __init__(self, rng, size, dtype):
        self.batch, self.n, self.m, self.heads, k_heads, d = size

        def random(*shape):
            return rng.uniform(-1.0, 1.0, shape).astype(dtype)

        self.q = random(*self.batch, self.n, self.heads, d)
        self.k = random(*self.batch, self.m, k_heads, d)
        self.positions = rng.integers(0, 40, (*self.batch, self.n))
        self.k_positions = rng.integers(0, 40, (self.m,))
        self.weights = random(*self.batch, self.heads, self.n, self.m)
        self.shared = random(2 * CLIP + 1, d)
        self.u, self.v = random(self.heads, d), random(self.heads, d)
        self.w = random(self.heads, d, DIM)
        self.bias = random(BUCKETS, self.heads)
        self.position_q = random(self.n, self.heads, d)
        self.position_k = random(*self.batch, self.m, self.heads, d)
        self.relative_q, self.relative_k = random(2, 2 * CLIP, self.heads, d)
        self.factors = random(2 * CLIP + 1)
        self.factors_by_head = random(2 * CLIP + 1, self.heads)


FAR = {"max_distance": 20}
SCORES = {
    "shaw": (encodings.shaw, ("shared",), {}),
    "transformer_xl": (encodings.transformer_xl, ("u", "v", "w"), {}),
    "t5": (encodings.t5_bias, ("bias",), FAR),
    "t5-decoder": (encodings.t5_bias, ("bias",), FAR | {"bidirectional": False}),
    "tupe": (encodings.tupe, ("position_q", "position_k", "bias"), FAR),
    "tupe-absolute": (encodings.tupe, ("position_q", "position_k"), {}),
    "deberta": (encodings.deberta, ("relative_q", "relative_k"), {}),
    "multiplicative": (encodings.multiplicative, ("factors",), {}),
    "multiplicative-by-head": (encodings.multiplicative, ("factors_by_head",), {}),
}
"""Functions, their parameters among the fields of a case, and their options."""
VALUES = {"values": (encodings.shaw_values, ("weights", "k", "shared"), {})}


def get_arrays(name, case):
    fields = ("q", "k", *SCORES[name][1]) if name in SCORES else VALUES[name][1]
    return [getattr(case, field) for field in fields]


def run(name, case, make=lambda x: x, call=lambda function, *arrays: function(*arrays), **options):
    function, _, settings = (SCORES | VALUES)[name]
    positions = {"positions": case.positions, "k_positions": case.k_positions}
    scale = {"scale": SCALE} if name in SCORES else {}
    options = {**scale, **positions, **settings, **options}
    return call(lambda *a: function(*a, **options), *map(make, get_arrays(name, case)))


def clip(r):
    return max(-CLIP, min(CLIP, r)) + CLIP


def wave(p, base):
    angles = p * base ** (-np.arange(0, DIM, 2) / DIM)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1)


def bucket(r, bidirectional):
    directed = BUCKETS // 2 if bidirectional else BUCKETS
    first = directed if bidirectional and r < 0 else 0
    n = abs(r) if bidirectional else max(r, 0)
    near = directed // 2
    if n < near:
        return first + n
    far = np.log(n / near) / np.log(20 / near) * (directed - near)
    return first + min(directed - 1, near + int(far + 1e-12))  # 1e-12: where the logarithm is whole


def expected(name, c, base=BASE):

    if name == "values":
        return expected_values(c)

    def score(q, k, r, h):
        match name:
            case "shaw":
                return SCALE * (q @ (k + c.shared[clip(r)]))
            case "transformer_xl":
                return SCALE * ((q + c.u[h]) @ k + (q + c.v[h]) @ (c.w[h] @ wave(r, base)))
            case "t5" | "t5-decoder" | "tupe":
                return SCALE * (q @ k) + c.bias[bucket(r, name != "t5-decoder"), h]
            case "tupe-absolute":
                return SCALE * (q @ k)
            case "deberta":
                n = max(0, min(2 * CLIP - 1, r + CLIP))
                return SCALE * (q @ k + q @ c.relative_k[n, h] + c.relative_q[n, h] @ k)
            case "multiplicative":
                return SCALE * (q @ k) * c.factors[clip(r)]
        return SCALE * (q @ k) * c.factors_by_head[clip(r), h]

    out, wide_q, wide_k = np.empty(c.weights.shape), c.q.astype(float), c.k.astype(float)
    group = c.heads // max(c.k.shape[-2], 1)
    for *b, h, i, j in np.ndindex(*out.shape):
        distance = int(c.positions[(*b, i)] - c.k_positions[j])
        out[(*b, h, i, j)] = score(wide_q[(*b, i, h)], wide_k[(*b, j, h // group)], distance, h)
    if name.startswith("tupe"):
        embedded = (x.astype(np.float64) for x in (c.position_q, c.position_k))
        out += SCALE * np.einsum("ihd,...jhd->...hij", *embedded)
    return out


def expected_values(c):
    out = np.zeros((*c.batch, c.n, c.heads, c.k.shape[-1]))
    group = c.heads // c.k.shape[-2]
    for *b, i, h, j in np.ndindex(*out.shape[:-1], c.m):
        value = c.k[(*b, j, h // group)].astype(np.float64)
        distance = int(c.positions[(*b, i)] - c.k_positions[j])
        out[(*b, i, h)] += c.weights[(*b, h, i, j)] * (value + c.shared[clip(distance)])
    return out
