"""Linear attention against its quadratic form."""

from __future__ import annotations

import tracemalloc
from functools import partial
from typing import Any

import numpy as np
import pytest
from support import attention_oracles as oracles
from support.exhaustive import exhaustive

import rope_xp
from rope_xp import RoPE
from rope_xp.papers import attention


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return oracles.normal(*shape, seed=seed, dtype="float64")


MAPS = {
    "elu": (oracles.elu_plus_one, oracles.elu_plus_one),
    "softmax": (lambda q: oracles.softmax(q, -1), lambda k: oracles.softmax(k, -3)),
    "functions": (lambda q: q * q, lambda k: k * k + 1.0),
}


# All to all, and causal with numbers of tokens on both sides of the edges of chunks.
CASES = [
    *((name, False, 40) for name in MAPS),
    *((name, True, n) for name in ("elu", "functions") for n in (1, 128, 300)),
]


@pytest.mark.parametrize("rotated", [False, True])
@pytest.mark.parametrize(("name", "causal", "tokens"), CASES)
def test_against_the_quadratic_form(name: str, rotated: bool, causal: bool, tokens: int) -> None:
    q, k, v = (normal(2, tokens, 4, 8), normal(2, tokens, 2, 8, seed=1), normal(2, tokens, 2, 5))
    positions = np.arange(tokens) * 7
    rotate = (lambda x: oracles.paper(x, positions)) if rotated else (lambda x: x)
    expected = oracles.linear_attention(q, k, v, *MAPS[name], rotate, causal)
    options: dict[str, Any] = {"rope": RoPE(), "positions": positions} if rotated else {}
    feature_map = MAPS[name] if name == "functions" else name
    got = attention.linear_attention(q, k, v, feature_map=feature_map, causal=causal, **options)
    # Sums over 300 tokens; the denominators are sums of numbers above zero, and cancel nothing.
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tokens", [0, 1, 127, 128, 129])
def test_a_prefix_knows_nothing_of_what_follows(tokens: int) -> None:
    arrays = normal(2, 300, 4, 4), normal(2, 300, 2, 4, seed=1), normal(2, 300, 2, 3)
    whole = attention.linear_attention(*arrays, rope=RoPE(), causal=True)
    prefix = attention.linear_attention(*(x[:, :tokens] for x in arrays), rope=RoPE(), causal=True)
    np.testing.assert_allclose(prefix, whole[:, :tokens], rtol=0, atol=1e-13)


def test_features_may_be_more_than_head_dim() -> None:
    q, k, v = normal(9, 2, 4), normal(9, 2, 4, seed=1), normal(9, 2, 3)
    double = lambda x: np.exp(np.concatenate([x, -x], axis=-1))  # noqa: E731  # one line, used once
    expected = oracles.linear_attention(
        q, k, v, double, double, lambda x: oracles.llama(x, np.arange(9)), True
    )
    got = attention.linear_attention(
        q, k, v, rope=RoPE(layout="half"), feature_map=(double, double), causal=True
    )
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [exhaustive(False), True])
def test_memory_is_linear_in_tokens(causal: bool) -> None:
    """20 000 tokens: a square of them would be 1.6 GB, a state for each token 82 MB."""
    tokens, d = 20_000, 32
    x = normal(tokens, 1, d).astype(np.float32)
    with rope_xp.use_path("portable"):  # a path that compiles would count its compiler
        tracemalloc.start()
        got = attention.linear_attention(x, x, x, rope=RoPE(), causal=causal)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert got.shape == x.shape
    # Both feature maps, plain and rotated, the result as chunks and in one, and the tables.
    assert peak < 8 * x.nbytes, peak / x.nbytes


def test_large_numbers_stay_finite() -> None:
    x = np.array([[[-1e4, 1e4, 300.0, -300.0]]], np.float32)
    got = attention.linear_attention(x, x, x)
    np.testing.assert_allclose(got, x, rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "relu"])
def test_zeros_where_no_weight_is_left(causal: bool, feature_map: str) -> None:
    """exp underflows, or a map cuts all features off: nothing is read, and nothing is NaN."""
    x, v = np.full((3, 2, 4), -200.0, np.float32), np.ones((3, 2, 4), np.float32)
    relu = partial(np.maximum, np.float32(0))
    maps: Any = "elu" if feature_map == "elu" else (relu, relu)
    got = attention.linear_attention(x, x, v, rope=RoPE(), feature_map=maps, causal=causal)
    np.testing.assert_array_equal(got, np.zeros_like(x))


def test_gradients_where_no_weight_is_left() -> None:
    torch = pytest.importorskip("torch")
    x = torch.full((3, 2, 4), -200.0, requires_grad=True)
    attention.linear_attention(x, x, torch.ones(3, 2, 4), causal=True).sum().backward()
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()
