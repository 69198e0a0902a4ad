"""Encodings that RoFormer reviews: against double loops over tokens, at any size and distance."""

from functools import partial

import numpy as np
import pytest
from support.targets import numpy_dtype, rows

from rope_xp.papers import encodings

LIBRARIES = ("numpy", "array-api-strict", "array-api-strict:device1", "torch", "jax-jit", "dask")
FAR = 2**31 - 1
CLIP, DIM, BUCKETS = 3, 6, 8
SCALE = 0.625  # a power of two times 5: exact in float32
# float32 sums of some 20 products of numbers that stay below 10: each rounds by 2**-24 of the sum
# so far, at most 20 * 10 * 2**-24 = 1.2e-5 in all.
ATOL = 1.2e-5
# Odd sizes, one token, one head, grouped heads, batch axes, no tokens: (batch, q tokens, k tokens,
# heads, k heads, head_dim).
SIZES = [
    *(((), 5, 5, 3, 3, 7), ((2,), 4, 9, 2, 1, 3), ((2, 3), 1, 1, 1, 1, 1)),
    *(((1,), 1, 11, 4, 2, 8), ((3,), 13, 13, 1, 1, 5)),
]
EMPTY = [((2,), 0, 0, 2, 1, 3), ((2,), 0, 3, 2, 1, 3), ((), 3, 0, 2, 2, 3), ((0,), 2, 3, 2, 1, 3)]


class Case:
    """Random arrays of one size: queries, keys, positions and parameters of all encodings."""

    def __init__(self, rng, size, dtype="float32"):
        self.batch, self.n, self.m, self.heads, k_heads, d = size
        shapes = {
            "q": (*self.batch, self.n, self.heads, d),
            "k": (*self.batch, self.m, k_heads, d),
            "weights": (*self.batch, self.heads, self.n, self.m),
            "rows": (2 * CLIP + 1, d),
            "u": (self.heads, d),
            "v": (self.heads, d),
            "w": (self.heads, d, DIM),
            "bias": (BUCKETS, self.heads),
            "position_q": (self.n, self.heads, d),
            "position_k": (*self.batch, self.m, self.heads, d),
            "to_keys": (2 * CLIP, self.heads, d),
            "to_queries": (2 * CLIP, self.heads, d),
            "factors": (2 * CLIP + 1,),
            "of_heads": (2 * CLIP + 1, self.heads),
        }
        for name, shape in shapes.items():
            setattr(self, name, rng.uniform(-1.0, 1.0, shape).astype(numpy_dtype(dtype)))
        self.positions = rng.integers(0, 40, (*self.batch, self.n))
        self.k_positions = rng.integers(0, 40, self.m)


def clip(r):
    return max(-CLIP, min(CLIP, r)) + CLIP


def wave(p, base=10000.0):
    angles = p * base ** (-np.arange(0, DIM, 2) / DIM)
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1)


def bucket(r, bidirectional=True):
    directed = BUCKETS // 2 if bidirectional else BUCKETS
    first = directed if bidirectional and r < 0 else 0
    n = abs(r) if bidirectional else max(r, 0)
    near = directed // 2
    if n < near:
        return first + n
    far = np.log(n / near) / np.log(20 / near) * (directed - near)
    return first + min(directed - 1, near + int(far + 1e-12))  # 1e-12: where the logarithm is whole


def xl(c, q, k, r, h, base=10000.0):
    return SCALE * ((q + c.u[h]) @ k + (q + c.v[h]) @ (c.w[h] @ wave(r, base)))


def deberta(c, q, k, r, h):
    n = max(0, min(2 * CLIP - 1, r + CLIP))
    return SCALE * (q @ k + q @ c.to_queries[n, h] + c.to_keys[n, h] @ k)


def shaw(c, q, k, r, h):
    return SCALE * (q @ (k + c.rows[clip(r)]))


def t5(c, q, k, r, h, bidirectional=True):
    return SCALE * (q @ k) + c.bias[bucket(r, bidirectional), h]


def multiplicative(c, q, k, r, h, by_head=False):
    return SCALE * (q @ k) * (c.of_heads[clip(r), h] if by_head else c.factors[clip(r)])


XL, POSITION, TO_20 = ("u", "v", "w"), ("position_q", "position_k"), {"max_distance": 20}
DECODER, by_head = TO_20 | {"bidirectional": False}, partial(multiplicative, by_head=True)
# Functions, their parameters among the fields of a case, their options, and the score of a query
# and a key at distance r in head h; of tupe without what is absolute.
ENCODINGS = {
    "shaw": (encodings.shaw, ("rows",), {}, shaw),
    "transformer_xl": (encodings.transformer_xl, XL, {}, xl),
    "transformer_xl-base": (encodings.transformer_xl, XL, {"base": 50.0}, partial(xl, base=50.0)),
    "t5": (encodings.t5_bias, ("bias",), TO_20, t5),
    "t5-decoder": (encodings.t5_bias, ("bias",), DECODER, partial(t5, bidirectional=False)),
    "tupe": (encodings.tupe, (*POSITION, "bias"), TO_20, t5),
    "tupe-absolute": (encodings.tupe, POSITION, {}, lambda c, q, k, r, h: SCALE * (q @ k)),
    "deberta": (encodings.deberta, ("to_keys", "to_queries"), {}, deberta),
    "multiplicative": (encodings.multiplicative, ("factors",), {}, multiplicative),
    "multiplicative-by-head": (encodings.multiplicative, ("of_heads",), {}, by_head),
    "shaw_values": (encodings.shaw_values, ("rows",), {}, None),
}
SCORES = list(ENCODINGS)[:-1]


def get_arrays(name, case):
    fields = ("q", "k") if name in SCORES else ("weights", "k")
    return [getattr(case, field) for field in (*fields, *ENCODINGS[name][1])]


def run(name, case, make=lambda x: x, call=lambda function, *arrays: function(*arrays), **changed):
    function, _, options, _ = ENCODINGS[name]
    options = options | ({"scale": SCALE} if name in SCORES else {})
    options |= {"positions": case.positions, "k_positions": case.k_positions} | changed
    return call(lambda *a: function(*a, **options), *map(make, get_arrays(name, case)))


def expected(name, c):
    score, group = ENCODINGS[name][3], c.heads // c.k.shape[-2]
    wide_q, wide_k = c.q.astype(float), c.k.astype(float)
    out = np.empty(c.weights.shape) if score else np.zeros((*c.batch, c.n, c.heads, c.k.shape[-1]))
    for *b, h, i, j in np.ndindex(*c.weights.shape):
        q, k = wide_q[(*b, i, h)], wide_k[(*b, j, h // group)]
        r = int(c.positions[(*b, i)] - c.k_positions[j])
        if score:
            out[(*b, h, i, j)] = score(c, q, k, r, h)
        else:
            out[(*b, i, h)] += c.weights[(*b, h, i, j)] * (k + c.rows[clip(r)])
    if name.startswith("tupe"):
        embedded = (x.astype(float) for x in (c.position_q, c.position_k))
        out += SCALE * np.einsum("ihd,...jhd->...hij", *embedded)
    return out


def make_positions(backend, case):
    both = {"positions": case.positions, "k_positions": case.k_positions}
    return {name: backend.make(values.astype(np.int32)) for name, values in both.items()}


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("backend", rows(LIBRARIES))
def test_encodings_of_every_library_are_those_of_the_double_loop(backend, name, size, rng):
    case = Case(rng, size)
    scores = run(name, case, backend.make, backend.run, **make_positions(backend, case))
    assert type(scores) is type(backend.make(case.q))
    np.testing.assert_allclose(backend.back(scores), expected(name, case), rtol=0, atol=ATOL)


# dask's own reshape takes no empty arrays, and jax compiles each shape.
@pytest.mark.parametrize("size", EMPTY, ids=str)
@pytest.mark.parametrize("name", ENCODINGS)
@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch")))
def test_encodings_without_tokens_are_empty(backend, name, size, rng):
    case = Case(rng, size)
    scores, exact = run(name, case, backend.make), expected(name, case)
    np.testing.assert_array_equal(backend.back(scores), exact.astype(np.float32), strict=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", rows(("numpy", "torch")))
def test_encodings_of_other_dtypes_are_rounded_once(backend, name, dtype, rng):
    case = Case(rng, SIZES[1], dtype)
    scores = backend.back(run(name, case, backend.make))
    assert scores.dtype == case.q.dtype
    # 16 bits are rounded once, by half an ulp. In float64 the same 20 roundings of 2**-53, and an
    # angle up to 40 that is rounded by 40 * 2**-52.
    rtol = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 0.0}[dtype]
    atol = 1e-13 if dtype == "float64" else ATOL
    np.testing.assert_allclose(scores.astype(float), expected(name, case), rtol=rtol, atol=atol)


def test_arrays_of_two_dtypes_compute_in_the_wider(rng):
    case = Case(rng, SIZES[1], "float64")
    case.q = case.q.astype(np.float32)
    scores, exact = run("shaw", case), expected("shaw", case).astype(np.float32)
    np.testing.assert_allclose(scores, exact, rtol=2**-23, atol=0, strict=True)  # rounded once


@pytest.mark.parametrize("name", SCORES)
def test_positions_that_are_left_out_count_from_0(name, rng):
    case = Case(rng, SIZES[4], "float64")
    bare = run(name, case, positions=None, k_positions=None)
    for positions, k_positions in ((list(range(13)), range(13)), (range(13), None)):
        counted = run(name, case, positions=positions, k_positions=k_positions)
        np.testing.assert_array_equal(bare, counted)
    case.q, case.position_q = case.q[:, -1:], case.position_q[-1:]
    one = run(name, case, positions=12, k_positions=range(13))  # a token that follows a cache
    # BLAS sums one row in another order than many.
    np.testing.assert_allclose(one, bare[..., -1:, :], rtol=0, atol=1e-14)


@pytest.mark.parametrize(
    ("batch", "shape"), [((3,), (1, 4)), ((2, 3), (2, 1, 4)), ((2, 3), (3, 4)), ((3,), (3, 1))]
)
@pytest.mark.parametrize("name", ENCODINGS)
def test_positions_of_encodings_broadcast_over_batches(name, batch, shape, rng):
    case = Case(rng, (batch, 4, 9, 2, 1, 3))
    positions = rng.integers(0, 40, shape)
    case.positions = np.broadcast_to(positions, (*batch, 4))
    scores, exact = run(name, case, positions=positions), expected(name, case)
    np.testing.assert_allclose(scores, exact, rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", rows(("numpy", "torch", "jax", "dask")))
def test_distances_up_to_2_31_are_exact(backend, name, rng):
    case = Case(rng, ((), 4, 3, 2, 1, 3))
    case.positions, case.k_positions = np.array([0, 2, FAR // 2, FAR]), np.array([FAR, 0, 3])
    scores = backend.back(run(name, case, backend.make, **make_positions(backend, case)))
    # Angles up to 2**31 are good to 4e-7 in place of some 2**-24, in 6 columns.
    np.testing.assert_allclose(scores, expected(name, case), rtol=0, atol=2 * ATOL)


@pytest.mark.parametrize("name", SCORES)
def test_gradients_of_encodings_in_torch_are_finite_differences(name, rng):
    torch = pytest.importorskip("torch")
    case = Case(rng, ((1,), 2, 3, 2, 1, 2), "float64")
    arrays = [torch.tensor(x, requires_grad=True) for x in get_arrays(name, case)]
    options = {"positions": case.positions, "k_positions": case.k_positions, **ENCODINGS[name][2]}
    assert torch.autograd.gradcheck(lambda *a: ENCODINGS[name][0](*a, **options), arrays)
