"""Linear attention against its quadratic form, and gradients of all attention."""

import tracemalloc
from functools import partial

import numpy as np
import pytest
from support import attention_oracles as oracles
from support.cases import slow

import rope_xp
from rope_xp import RoPE
from rope_xp.papers import attention

normal = partial(oracles.normal, dtype="float64")


def double(x):
    return np.exp(np.concatenate([x, -x], axis=-1))


MAPS = {
    "elu": (oracles.elu_plus_one, oracles.elu_plus_one),
    "softmax": (lambda q: oracles.softmax(q, -1), lambda k: oracles.softmax(k, -3)),
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
    q, k, v = (normal(2, tokens, 4, 8), normal(2, tokens, 2, 8, seed=1), normal(2, tokens, 2, 5))
    positions = np.arange(tokens) * 7
    rotate = (lambda x: oracles.rotate_heads(x, positions)) if rotated else (lambda x: x)
    expected = oracles.linear_attention(q, k, v, *MAPS[name], rotate, causal)
    options = {"rope": RoPE(), "positions": positions} if rotated else {}
    feature_map = name if name in ("elu", "softmax") else MAPS[name]
    result = attention.linear_attention(q, k, v, feature_map=feature_map, causal=causal, **options)
    # Sums over 300 tokens; the denominators are sums of numbers above zero, and cancel nothing.
    np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [slow(False), True])
def test_linear_attention_takes_memory_linear_in_tokens(causal):
    """20 000 tokens: a square of them would be 1.6 GB, a state for each token 82 MB."""
    tokens, d = 20_000, 32
    x = normal(tokens, 1, d).astype(np.float32)
    with rope_xp.use_path("portable"):  # a path that compiles would count its compiler
        tracemalloc.start()
        result = attention.linear_attention(x, x, x, rope=RoPE(), causal=causal)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert result.shape == x.shape
    # Both feature maps, plain and rotated, the result as chunks and in one, and the tables.
    assert peak < 8 * x.nbytes, peak / x.nbytes


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "relu"])
def test_linear_attention_without_any_weight_is_zero_and_has_gradients(causal, feature_map):
    """exp underflows, or a map cuts all features off: nothing is read, and nothing is NaN."""
    x, v = np.full((3, 2, 4), -200.0, np.float32), np.ones((3, 2, 4), np.float32)
    relu = partial(np.maximum, np.float32(0))
    maps = "elu" if feature_map == "elu" else (relu, relu)
    result = attention.linear_attention(x, x, v, rope=RoPE(), feature_map=maps, causal=causal)
    np.testing.assert_array_equal(result, np.zeros_like(x))
    if feature_map == "elu":
        torch = pytest.importorskip("torch")
        x = torch.tensor(x, requires_grad=True)
        attention.linear_attention(x, x, torch.tensor(v), causal=causal).sum().backward()
        assert torch.isfinite(x.grad).all()
        x = np.array([[[-1e4, 1e4, 300.0, -300.0]]], np.float32)  # and large numbers stay finite
        result = attention.linear_attention(x, x, x, causal=causal)
        np.testing.assert_allclose(result, x, rtol=1e-6)


Q, K, V = normal(2, 7, 4, 8, seed=0), normal(2, 7, 2, 8, seed=1), normal(2, 7, 2, 3, seed=2)
MASK = np.random.default_rng(3).random((2, 1, 7, 7)) < 0.6
MASK[1, 0, 2] = False  # a row with nothing to attend to, whose gradient must not be NaN
PADDING = np.arange(7) < np.array([[7], [5]])


def softmax(xp, q, k, v):
    mask = xp.asarray(MASK)
    return attention.attention(q, k, v, rope=RoPE(layout="half"), mask=mask, causal=True)


def linear(xp, q, k, v):
    return attention.linear_attention(q * 30.0, k, v, rope=RoPE(), feature_map="elu")


def linear_causal(xp, q, k, v):
    return attention.linear_attention(q, k * 30.0, v, rope=RoPE(), causal=True)


def spans(xp, q, k, v):
    logits = attention.global_pointer(q, k, rope=RoPE(), mask=xp.asarray(PADDING))
    return xp.exp(logits) + 0.0 * v.sum()  # a loss such as GlobalPointer's: no span adds nothing


@pytest.mark.parametrize("function", [*map(slow, (softmax, linear)), linear_causal, spans])
def test_gradients_of_torch_and_jax_are_finite_differences(function):
    """Those of torch in float64 against finite differences, all others against those."""
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")

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
