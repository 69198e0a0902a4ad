"""Linear attention against its quadratic form, and gradients of all attention."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from support.attention_oracles import normal, rotate_heads, scores
from support.cases import slow

import rope_xp
from rope_xp import RoPE
from rope_xp.papers import attention


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def softmax(x, axis):
    return np.exp(x) / np.exp(x).sum(axis, keepdims=True)


def double(x):
    return np.exp(np.concatenate([x, -x], axis=-1))


MAPS = {
    "elu": (elu_plus_one, elu_plus_one),
    "softmax": (lambda q: softmax(q, -1), lambda k: softmax(k, -3)),
    "functions": (lambda q: q * q, lambda k: k * k + 1.0),
    "more features": (double, double),
}
# All to all, and causal with numbers of tokens on both sides of the edges of chunks.
CASES = [
    *((name, False, n) for name in MAPS for n in (0, 40)),
    *(("elu", True, n) for n in (0, 1, 127, 128, 129, 300)),
    *((name, True, 300) for name in ("functions", "more features")),
]


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(("name", "causal", "tokens"), CASES)
def test_linear_attention_is_its_quadratic_form(name, rotated, causal, tokens):
    """Eq. 19 of arXiv 2104.09864 as it stands: a square of weights, summed over n."""
    q, k, v = (normal(2, tokens, h, d, seed=i) for i, (h, d) in enumerate([(4, 8), (2, 8), (2, 5)]))
    positions, (phi, varphi) = np.arange(tokens) * 7, MAPS[name]
    rotate = (lambda x: rotate_heads(x, positions)) if rotated else (lambda x: x)
    square = np.ones((tokens, tokens))
    allowed = np.tril(square) if causal else square
    plain = scores(phi(q), varphi(k)) * allowed
    weights = scores(rotate(phi(q)), rotate(varphi(k))) * allowed / plain.sum(-1, keepdims=True)
    expected = np.einsum("bhmn,bnhd->bmhd", weights, np.repeat(v, 2, axis=2))
    options = {"rope": RoPE(), "positions": positions} if rotated else {}
    feature_map = name if name in ("elu", "softmax") else MAPS[name]
    result = attention.linear_attention(q, k, v, feature_map=feature_map, causal=causal, **options)
    # Sums over 300 tokens; the denominators are sums of numbers above zero, and cancel nothing.
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [slow(False), True])
def test_linear_attention_takes_memory_linear_in_tokens(causal):
    """20 000 tokens: a square of them would be 1.6 GB, a state for each token 82 MB."""
    x = normal(20_000, 1, 32).astype(np.float32)
    with rope_xp.use_path("portable"):  # a path that compiles would count its compiler
        tracemalloc.start()
        attention.linear_attention(x, x, x, rope=RoPE(), causal=causal)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    # Both feature maps, plain and rotated, the result as chunks and in one, and the tables.
    assert peak < 8 * x.nbytes, peak / x.nbytes


@pytest.mark.parametrize("causal", [False, True])
def test_linear_attention_without_any_weight_is_zero_and_has_gradients(causal):
    """exp underflows, or a map cuts all features off: nothing is read, and nothing is NaN."""
    x, v = np.full((3, 2, 4), -200.0, np.float32), np.ones((3, 2, 4), np.float32)
    relu = partial(np.maximum, np.float32(0))
    for maps in ("elu", (relu, relu)):
        result = attention.linear_attention(x, x, v, rope=RoPE(), feature_map=maps, causal=causal)
        np.testing.assert_array_equal(result, np.zeros_like(x))
    large = np.array([[[-1e4, 1e4, 300.0, -300.0]]], np.float32)  # which stay finite
    result = attention.linear_attention(large, large, large, causal=causal)
    np.testing.assert_allclose(result, large, rtol=1e-6)
    torch = pytest.importorskip("torch")
    x = torch.tensor(x, requires_grad=True)
    attention.linear_attention(x, x, torch.tensor(v), causal=causal).sum().backward()
    assert torch.isfinite(x.grad).all()


Q, K, V = normal(2, 7, 4, 8, seed=0), normal(2, 7, 2, 8, seed=1), normal(2, 7, 2, 3, seed=2)
MASK = np.random.default_rng(3).random((2, 1, 7, 7)) < 0.6
MASK[1, 0, 2] = False  # a row with nothing to attend to, whose gradient must not be NaN
PADDING = np.arange(7) < np.array([[7], [5]])


HALF, MASKS = RoPE(layout="half"), {"attention": MASK, "spans": PADDING}
LOGITS = {
    "attention": lambda q, k, v, m: attention.attention(q, k, v, rope=HALF, mask=m, causal=True),
    "linear": lambda q, k, v, _: attention.linear_attention(q * 30.0, k, v, rope=RoPE()),
    "causal": lambda q, k, v, _: attention.linear_attention(
        q, k * 30.0, v, rope=RoPE(), causal=True
    ),
    "spans": lambda q, k, v, m: attention.global_pointer(q, k, rope=RoPE(), mask=m),
}


@pytest.mark.parametrize("name", [slow("attention"), slow("linear"), "causal", "spans"])
def test_gradients_of_torch_and_jax_are_finite_differences(name):
    """Those of torch in float64 against finite differences, all others against those."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")

    def function(xp, q, k, v):
        result = LOGITS[name](q, k, v, xp.asarray(MASKS.get(name, MASK)))
        # A loss such as GlobalPointer's: no span adds nothing.
        return xp.exp(result) + 0.0 * v.sum() if name == "spans" else result

    def differentiate(dtype):
        arrays = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in (Q, K, V)]
        loss = function(torch, *arrays).sin().sum()
        return [x.numpy() for x in torch.autograd.grad(loss, arrays)]

    arrays = [torch.tensor(x, requires_grad=True) for x in (Q, K, V)]
    assert torch.autograd.gradcheck(partial(function, torch), arrays, fast_mode=True)
    loss = lambda *arrays: jax.numpy.sin(function(jax.numpy, *arrays)).sum()  # noqa: E731  # one use
    arrays = [jax.numpy.asarray(x, dtype=jax.numpy.float32) for x in (Q, K, V)]
    jitted = jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays)
    single, exact = differentiate(torch.float32), differentiate(torch.float64)
    for a, b, expected in zip(jitted, single, exact, strict=True):
        # float32 throughout, with sums of 56 terms; relative to the largest gradient.
        atol = 2e-5 * max(1.0, np.abs(expected).max())
        np.testing.assert_allclose(a, expected, rtol=0, atol=atol)
        np.testing.assert_allclose(b, expected, rtol=0, atol=atol)
