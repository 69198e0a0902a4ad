"""Encodings that RoFormer reviews: against double loops over tokens, mpmath and transformers."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import rows
from hypothesis import given
from hypothesis import strategies as st
from targets import Target

from rope_xp import RopeError, encodings

LIBRARIES = rows(("numpy", "array-api-strict", "array-api-strict:device1", "torch", "jax", "dask"))

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
CLIP, DIM, BUCKETS = 3, 6, 8


class Case:
    """Random arrays of one size and what the functions are to be given of them."""

    def __init__(self, rng: np.random.Generator, size: Any, dtype: str) -> None:
        self.batch, self.n, self.m, self.heads, k_heads, d = size

        def random(*shape: int) -> np.ndarray:
            return rng.uniform(-1.0, 1.0, shape).astype(dtype)

        self.q = random(*self.batch, self.n, self.heads, d)
        self.k = random(*self.batch, self.m, k_heads, d)
        self.at = rng.integers(0, 40, (*self.batch, self.n))
        self.k_at = rng.integers(0, 40, (self.m,))
        self.weights = random(*self.batch, self.heads, self.n, self.m)
        self.shared = random(2 * CLIP + 1, d)
        self.u, self.v = random(self.heads, d), random(self.heads, d)
        self.w = random(self.heads, d, DIM)
        self.bias = random(BUCKETS, self.heads)
        self.position_q = random(self.n, self.heads, d)
        self.position_k = random(*self.batch, self.m, self.heads, d)
        self.relative_q = random(2 * CLIP, self.heads, d)
        self.relative_k = random(2 * CLIP, self.heads, d)
        self.factors = random(2 * CLIP + 1)
        self.factors_by_head = random(2 * CLIP + 1, self.heads)


def double_loop(
    case: Case, score: Callable[[np.ndarray, np.ndarray, int, int, int, int], float]
) -> np.ndarray:
    """Return score(q, k, distance, head, i, j) for every pair of tokens, in float64."""
    out = np.empty((*case.batch, case.heads, case.n, case.m))
    group = case.heads // case.k.shape[-2]
    for b in np.ndindex(*case.batch):
        for h in range(case.heads):
            for i in range(case.n):
                for j in range(case.m):
                    q = case.q[(*b, i, h)].astype(np.float64)
                    k = case.k[(*b, j, h // group)].astype(np.float64)
                    apart = int(case.at[(*b, i)] - case.k_at[j])
                    out[(*b, h, i, j)] = score(q, k, apart, h, i, j)
    return out


def clip(r: int) -> int:
    return max(-CLIP, min(CLIP, r)) + CLIP


def entry(r: int) -> int:
    return max(0, min(2 * CLIP - 1, r + CLIP))


def wave(p: int) -> np.ndarray:
    out = []
    for t in range(DIM // 2):
        angle = p * 10000.0 ** (-2 * t / DIM)
        out += [np.sin(angle), np.cos(angle)]
    return np.array(out)


def bucket(r: int, bidirectional: bool) -> int:
    """Bucket of BUCKETS by T5's definition with max_distance 20, r the query less the key."""
    own = BUCKETS // 2 if bidirectional else BUCKETS
    first = own if bidirectional and r < 0 else 0
    n = abs(r) if bidirectional else max(r, 0)
    near = own // 2
    if n < near:
        return first + n
    far = np.log(n / near) / np.log(20 / near) * (own - near)
    return first + min(own - 1, near + int(far + 1e-12))  # 1e-12: where the logarithm is whole


SCORES: dict[str, tuple[Callable[..., Any], Callable[[Case], tuple[Any, ...]], dict[str, Any]]] = {
    "shaw": (encodings.shaw, lambda c: (c.shared,), {}),
    "transformer_xl": (encodings.transformer_xl, lambda c: (c.u, c.v, c.w), {}),
    "t5": (encodings.t5_bias, lambda c: (c.bias,), {"max_distance": 20}),
    "t5-decoder": (
        encodings.t5_bias,
        lambda c: (c.bias,),
        {"max_distance": 20, "bidirectional": False},
    ),
    "tupe": (
        encodings.tupe,
        lambda c: (c.position_q, c.position_k, c.bias),
        {"max_distance": 20},
    ),
    "tupe-absolute": (encodings.tupe, lambda c: (c.position_q, c.position_k), {}),
    "deberta": (encodings.deberta, lambda c: (c.relative_q, c.relative_k), {}),
    "multiplicative": (encodings.multiplicative, lambda c: (c.factors,), {}),
    "multiplicative-by-head": (encodings.multiplicative, lambda c: (c.factors_by_head,), {}),
}

SCALE = 0.625  # a power of two times 5: exact in float32


def expected(name: str, c: Case) -> np.ndarray:
    def absolute(h: int, i: int, j: int, b: tuple[int, ...]) -> float:
        return float(c.position_q[i, h].astype(np.float64) @ c.position_k[(*b, j, h)])

    def score(q: np.ndarray, k: np.ndarray, r: int, h: int, i: int, j: int) -> float:
        match name:
            case "shaw":
                return SCALE * (q @ (k + c.shared[clip(r)]))
            case "transformer_xl":
                return SCALE * ((q + c.u[h]) @ k + (q + c.v[h]) @ (c.w[h] @ wave(r)))
            case "t5" | "t5-decoder":
                return SCALE * (q @ k) + c.bias[bucket(r, name == "t5"), h]
            case "tupe":
                return SCALE * (q @ k) + c.bias[bucket(r, True), h]
            case "tupe-absolute":
                return SCALE * (q @ k)
            case "deberta":
                at = entry(r)
                return SCALE * (q @ k + q @ c.relative_k[at, h] + c.relative_q[at, h] @ k)
            case "multiplicative":
                return SCALE * (q @ k) * c.factors[clip(r)]
        return SCALE * (q @ k) * c.factors_by_head[clip(r), h]

    out = double_loop(c, score)
    if name.startswith("tupe"):
        for index in np.ndindex(*out.shape):
            *b, h, i, j = index
            out[index] += SCALE * absolute(h, i, j, tuple(b))
    return out


def run(
    name: str, case: Case, make: Callable[[np.ndarray], Any] = lambda x: x, **options: Any
) -> Any:
    function, parameters, own = SCORES[name]
    arrays = [make(x) for x in (case.q, case.k, *parameters(case))]
    where = {"positions": case.at, "k_positions": case.k_at, "scale": SCALE}
    return function(*arrays, **{**where, **own, **options})


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", LIBRARIES)
def test_scores(backend: Target, name: str, size: Any, rng: np.random.Generator) -> None:
    case = Case(rng, size, "float32")
    found = run(name, case, backend.make)
    assert type(found) is type(backend.make(case.q))
    found = backend.back(found)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected(name, case), rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", rows(("numpy", "array-api-strict", "torch")))
def test_scores_of_float64(backend: Target, name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[1], "float64")
    found = backend.back(run(name, case, backend.make))
    assert found.dtype == np.float64
    # The same 20 roundings of 2**-53, and an angle up to 40 that is rounded by 40 * 2**-52.
    np.testing.assert_allclose(found, expected(name, case), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", rows(("torch", "jax")))
def test_16_bit_scores_are_rounded_once(
    backend: Target, name: str, dtype: str, rng: np.random.Generator
) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    case = Case(rng, SIZES[1], ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    found = backend.back(run(name, case, backend.make))
    assert found.dtype == case.q.dtype
    step = 2.0**-8 if dtype == "bfloat16" else 2.0**-11  # half an ulp, relative
    np.testing.assert_allclose(found.astype(float), expected(name, case), rtol=step, atol=ATOL)


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("backend", LIBRARIES)
def test_values_of_shaw(backend: Target, size: Any, rng: np.random.Generator) -> None:
    c = Case(rng, size, "float32")
    found = encodings.shaw_values(
        *map(backend.make, (c.weights, c.k, c.shared)), positions=c.at, k_positions=c.k_at
    )
    out = np.zeros((*c.batch, c.n, c.heads, c.k.shape[-1]))
    group = c.heads // c.k.shape[-2]
    for *b, i, h in np.ndindex(*out.shape[:-1]):
        for j in range(c.m):
            value = c.k[(*b, j, h // group)].astype(np.float64)
            r = int(c.at[(*b, i)] - c.k_at[j])
            out[(*b, i, h)] += c.weights[(*b, h, i, j)] * (value + c.shared[clip(r)])
    np.testing.assert_allclose(backend.back(found), out, rtol=0, atol=ATOL)


# --- sinusoidal ----------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", LIBRARIES)
def test_sinusoidal_against_mpmath(backend: Target) -> None:
    mpmath = pytest.importorskip("mpmath")
    at, dim = [0, 7, 1_000_000], 10
    mpmath.mp.prec = 120
    exact = np.empty((3, dim))
    for i, p in enumerate(at):
        for t in range(dim // 2):
            angle = p * mpmath.mpf(10000) ** (-mpmath.mpf(2 * t) / dim)
            exact[i, 2 * t : 2 * t + 2] = mpmath.sin(angle), mpmath.cos(angle)
    found = encodings.sinusoidal(backend.make(np.array(at, np.int32)), dim)
    assert type(found) is type(backend.make(np.zeros(1, np.float32)))
    # The bound that RoPE.cos_sin states below position 2**22.
    np.testing.assert_allclose(backend.back(found), exact, rtol=0, atol=2.4e-7)
    wide = encodings.sinusoidal(at, dim, dtype=np.float64)
    # float64 angles of 10**6 radians are off by 10**6 * 2**-52.
    np.testing.assert_allclose(wide, exact, rtol=0, atol=2.3e-10)


def test_sinusoidal_of_any_shape_base_and_library() -> None:
    torch = pytest.importorskip("torch")
    found = encodings.sinusoidal([[0, 1, 2], [5, 6, 7.5]], 4, base=100.0, xp=torch)
    assert found.shape == (2, 3, 4)
    assert found.dtype == torch.float32
    angles = np.array([7.5, 0.75])
    row = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(-1)
    np.testing.assert_allclose(found[1, 2], row, rtol=0, atol=2.4e-7)  # as above


def test_a_shift_of_a_sinusoid_is_a_rotation() -> None:
    """Vaswani et al.: p(m + r) is linear in p(m), so products depend on distances alone."""
    a = encodings.sinusoidal(np.arange(5), 8, dtype=np.float64)
    b = encodings.sinusoidal(np.arange(5) + 1000, 8, dtype=np.float64)
    # Angles of 1004 are off by 1004 * 2**-52 = 2.2e-13, in 8 products.
    np.testing.assert_allclose(a @ a.T, b @ b.T, rtol=0, atol=4e-12)


# --- T5 ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(
    ("buckets", "max_distance"), [(32, 128), (8, 20), (33, 100), (4, 3), (64, 1000), (320, 800)]
)
def test_buckets_against_transformers(buckets: int, max_distance: int, bidirectional: bool) -> None:
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    relative = torch.arange(-1500, 1501)
    options = {"num_buckets": buckets, "max_distance": max_distance, "bidirectional": bidirectional}
    theirs = t5.T5Attention._relative_position_bucket(relative, **options)
    ours = encodings.t5_buckets(relative, **options)
    assert ours.dtype == theirs.dtype
    assert relative[ours != theirs].tolist() == []


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("backend", LIBRARIES)
def test_buckets_of_any_library(backend: Target, bidirectional: bool) -> None:
    relative = np.arange(-60, 60, dtype=np.int32).reshape(2, 3, 20)
    found = encodings.t5_buckets(backend.make(relative), BUCKETS, 20, bidirectional)
    assert type(found) is type(backend.make(relative))
    wanted = [bucket(-r, bidirectional) for r in relative.reshape(-1).tolist()]
    assert backend.back(found).reshape(-1).tolist() == wanted


@given(st.integers(4, 80), st.integers(0, 500), st.booleans())
def test_buckets_never_go_back(buckets: int, beyond: int, bidirectional: bool) -> None:
    max_distance = buckets + beyond
    found = encodings.t5_buckets(
        range(0, -max_distance - 2, -1), buckets, max_distance, bidirectional
    )
    own = buckets // 2 if bidirectional else buckets
    assert (np.diff(found) >= 0).all()
    assert found[0] == 0
    assert found[max_distance] == found[max_distance + 1] == own - 1


@pytest.mark.parametrize("decoder", [True, False])
def test_t5_bias_against_transformers(decoder: bool, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = importlib.import_module("transformers").T5Config(
        num_heads=3,
        d_model=12,
        d_kv=4,
        is_decoder=decoder,
        relative_attention_num_buckets=BUCKETS,
        relative_attention_max_distance=20,
    )
    layer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    q = torch.zeros(1, 30, 3, 4)
    found = encodings.t5_bias(
        q,
        q,
        layer.relative_attention_bias.weight,
        max_distance=20,
        bidirectional=not decoder,
    )
    torch.testing.assert_close(found, layer.compute_bias(30, 30), rtol=0, atol=0)


# --- DeBERTa -------------------------------------------------------------------------------------


def test_deberta_against_transformers(rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("transformers.models.deberta_v2.modeling_deberta_v2")
    heads, d, n, span = 2, 4, 9, 5
    config = importlib.import_module("transformers").DebertaV2Config(
        hidden_size=heads * d,
        num_attention_heads=heads,
        relative_attention=True,
        max_relative_positions=span,
        pos_att_type=["c2p", "p2c"],
        share_att_key=True,
    )
    torch.manual_seed(20211104)
    layer = theirs.DisentangledSelfAttention(config).eval()
    hidden = torch.randn(1, n, heads * d)
    embedded = torch.randn(2 * span, heads * d)
    q, k = (
        project(hidden).reshape(1, n, heads, d) for project in (layer.query_proj, layer.key_proj)
    )
    table_q, table_k = (
        project(embedded).reshape(2 * span, heads, d)
        for project in (layer.query_proj, layer.key_proj)
    )
    found = encodings.deberta(q, k, table_q, table_k, scale=(3 * d) ** -0.5)
    with torch.no_grad():
        _, attention = layer(
            hidden,
            torch.ones(1, 1, n, n),
            output_attentions=True,
            relative_pos=None,
            rel_embeddings=embedded,
        )
    # Both are float32 softmaxes of sums of 12 products: some 2**-24 each.
    torch.testing.assert_close(torch.softmax(found, -1)[0], attention[0], rtol=0, atol=2e-6)


# --- what scores depend on -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORES)
def test_only_distances_count(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[1], "float64")
    moved = run(name, case, positions=case.at + 1000, k_positions=case.k_at + 1000)
    np.testing.assert_array_equal(run(name, case), moved)


@pytest.mark.parametrize("name", SCORES)
def test_far_keys_are_told_from_near_ones(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[1], "float64")
    differ = (run(name, case) != run(name, case, k_positions=case.k_at + 1000)).any()
    assert differ == (name != "tupe-absolute")  # which has the positions in its arrays alone


@pytest.mark.parametrize("name", SCORES)
def test_positions_count_from_0(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[4], "float64")
    bare = run(name, case, positions=None, k_positions=None)
    counted = run(name, case, positions=list(range(13)), k_positions=range(13))
    np.testing.assert_array_equal(bare, counted)
    shared = run(name, case, positions=range(13), k_positions=None)
    np.testing.assert_array_equal(bare, shared)


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("backend", LIBRARIES)
def test_positions_of_the_same_library(
    backend: Target, name: str, rng: np.random.Generator
) -> None:
    case = Case(rng, SIZES[1], "float32")
    at, k_at = (backend.make(x.astype(np.int32)) for x in (case.at, case.k_at))
    found = backend.back(run(name, case, backend.make, positions=at, k_positions=k_at))
    np.testing.assert_allclose(found, expected(name, case), rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", SCORES)
def test_one_token_of_a_cache(name: str, rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[4], "float64")
    last = Case(rng, SIZES[4], "float64")
    last.__dict__.update(case.__dict__)
    whole = run(name, case, positions=None, k_positions=None)
    last.q, last.position_q = case.q[:, -1:], case.position_q[-1:]
    one = run(name, last, positions=[12], k_positions=range(13))
    # BLAS sums one row in another order than many.
    np.testing.assert_allclose(one, whole[..., -1:, :], rtol=0, atol=1e-14)


def test_zero_parameters_leave_the_plain_scores(rng: np.random.Generator) -> None:
    case = Case(rng, SIZES[0], "float64")
    plain = double_loop(case, lambda q, k, *_: float(SCALE * (q @ k)))
    for array in vars(case).values():
        if isinstance(array, np.ndarray) and array.dtype == np.float64:
            array[...] *= array is case.q or array is case.k
    case.factors += 1.0
    case.factors_by_head += 1.0
    for name in SCORES:
        np.testing.assert_allclose(run(name, case), plain, rtol=0, atol=1e-14)  # 7 products


# --- compilers and gradients ---------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORES)
def test_gradients_in_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    case = Case(rng, ((1,), 2, 3, 2, 1, 2), "float64")
    function, parameters, own = SCORES[name]
    arrays = [torch.tensor(x, requires_grad=True) for x in (case.q, case.k, *parameters(case))]
    where = {"positions": case.at, "k_positions": case.k_at, **own}
    assert torch.autograd.gradcheck(lambda *a: function(*a, **where), arrays)


@pytest.mark.parametrize("name", SCORES)
def test_under_jit(name: str, rng: np.random.Generator) -> None:
    jax = pytest.importorskip("jax")
    case = Case(rng, SIZES[3], "float32")
    function, parameters, own = SCORES[name]
    where = {"positions": case.at, "k_positions": case.k_at, "scale": SCALE, **own}
    jitted = jax.jit(lambda *a: function(*a, **where))
    found = jitted(*map(jax.numpy.asarray, (case.q, case.k, *parameters(case))))
    np.testing.assert_allclose(found, expected(name, case), rtol=0, atol=ATOL)


@pytest.mark.parametrize("name", SCORES)
def test_compiled_by_torch(name: str, rng: np.random.Generator) -> None:
    torch = pytest.importorskip("torch")
    torch._dynamo.reset()
    case = Case(rng, SIZES[4], "float32")
    function, parameters, own = SCORES[name]
    arrays = [torch.asarray(x) for x in (case.q, case.k, *parameters(case))]
    compiled = torch.compile(lambda *a: function(*a, **own), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(*arrays), function(*arrays, **own), rtol=0, atol=0)


# --- what is refused -----------------------------------------------------------------------------

Q = np.zeros((2, 5, 4, 6))
TABLE = np.zeros((7, 6))


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (
            lambda: encodings.shaw(Q[0, 0], Q[0, 0], TABLE),
            RopeError,
            r"q has shape \(4, 6\); it needs",
        ),
        (lambda: encodings.shaw(Q, Q[..., :5], TABLE), RopeError, "must have equal head_dim"),
        (
            lambda: encodings.shaw(Q, Q[:, :, :3], TABLE),
            RopeError,
            "q has 4 heads and k 3; those of q must",
        ),
        (lambda: encodings.shaw(Q, Q[:1], TABLE), RopeError, "must have equal batch axes"),
        (lambda: encodings.shaw(Q[..., :0], Q[..., :0], TABLE), RopeError, "must not be empty"),
        (lambda: encodings.shaw(Q, Q[:, :, :0], TABLE), RopeError, "q has 4 heads and k 0"),
        (lambda: encodings.shaw(Q, Q[:, :3], TABLE), RopeError, "give positions and k_positions"),
        (lambda: encodings.shaw(Q, Q, TABLE[:6]), RopeError, r"6 entries.*2 \* clip \+ 1"),
        (lambda: encodings.shaw(Q, Q, TABLE[:, :5]), RopeError, r"\(7, 5\); .* here \(any, 6\)"),
        (lambda: encodings.shaw(Q, Q, TABLE[:0]), RopeError, r"\(0, 6\)"),
        (lambda: encodings.shaw(Q, Q, TABLE, scale=0.0), RopeError, "scale must be positive"),
        (lambda: encodings.shaw(Q, Q, TABLE, scale="1"), TypeError, "scale must be a number"),
        (lambda: encodings.shaw(Q, Q, TABLE, positions=[0, 1]), RopeError, r"\(tokens,\) = \(5,\)"),
        (
            lambda: encodings.shaw(Q, Q, TABLE, positions=np.arange(5) + 0.5),
            TypeError,
            "positions must hold integers",
        ),
        (lambda: encodings.shaw([1.0], Q, TABLE), TypeError, "q is a list"),
        (lambda: encodings.shaw(Q, Q, [[0.0]]), TypeError, "relative_keys is a list"),
        (lambda: encodings.shaw(Q.astype(int), Q, TABLE), TypeError, "q is a numpy array"),
        (lambda: encodings.shaw(Q, Q, TABLE.astype(int)), TypeError, "must hold .*float32"),
        (lambda: encodings.shaw(Q, Q.astype("f4"), TABLE), TypeError, "float64 and k float32"),
        (
            lambda: encodings.shaw_values(np.zeros((2, 4, 5, 4)), Q, TABLE),
            RopeError,
            r"here \(2, 4 or a multiple, any, 5\)",
        ),
        (
            lambda: encodings.transformer_xl(Q, Q, TABLE[:3], TABLE[:4], np.zeros((4, 6, 2))),
            RopeError,
            r"u has shape \(3, 6\).*\(4, 6\)",
        ),
        (
            lambda: encodings.transformer_xl(Q, Q, TABLE[:4], TABLE[:4], np.zeros((4, 6, 3))),
            RopeError,
            "last axis of w_relative must be even",
        ),
        (lambda: encodings.t5_bias(Q, Q, np.zeros((3, 4))), RopeError, "num_buckets must be 4"),
        (lambda: encodings.t5_bias(Q, Q, np.zeros((32, 3))), RopeError, r"here \(any, 4\)"),
        (lambda: encodings.t5_buckets([1], 32, 8), RopeError, "max_distance must exceed the 8"),
        (lambda: encodings.t5_buckets([1], 1, 8, False), RopeError, "must be 2 at least"),
        (lambda: encodings.t5_buckets([0.5]), TypeError, "relative must hold integers"),
        (lambda: encodings.tupe(Q, Q, Q[:, :4], Q), RopeError, "position_q has shape"),
        (
            lambda: encodings.deberta(Q, Q, np.zeros((5, 4, 6)), np.zeros((5, 4, 6))),
            RopeError,
            r"2 \* clip entries, an even number",
        ),
        (
            lambda: encodings.deberta(Q, Q, np.zeros((4, 4, 6)), np.zeros((6, 4, 6))),
            RopeError,
            "relative_q has 4 entries and relative_k 6",
        ),
        (lambda: encodings.multiplicative(Q, Q, np.ones((7, 3))), RopeError, r"\(any, 4\)"),
        (lambda: encodings.sinusoidal([0], 5), RopeError, "dim must be even"),
        (lambda: encodings.sinusoidal([0], 4.0), TypeError, "dim must be an integer"),
        (lambda: encodings.sinusoidal([2**31], 4), RopeError, "positions"),
    ],
)
def test_refused(call: Callable[[], Any], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        call()


def test_libraries_are_not_mixed() -> None:
    torch = pytest.importorskip("torch")
    q = torch.zeros(Q.shape, dtype=torch.float64)
    with pytest.raises(TypeError, match="q is a torch array and k a numpy array"):
        encodings.shaw(q, Q, TABLE)
    with pytest.raises(TypeError, match="q is a torch array and relative_keys a numpy array"):
        encodings.shaw(q, q, TABLE)
    with pytest.raises(TypeError, match="q is a numpy array and positions a torch array"):
        encodings.shaw(Q, Q, TABLE, positions=torch.arange(5))


def test_the_core_does_not_import_them() -> None:
    import subprocess
    import sys

    code = (
        "import rope_xp, sys; print([m for m in sys.modules if 'encodings' in m and 'rope' in m])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
