"""Gradients: torch's and jax's agree, and both with finite differences of numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support import attention_oracles as oracles
from support.exhaustive import exhaustive

from rope_xp import RoPE
from rope_xp.papers import attention

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")


def normal(*shape: int, seed: int) -> np.ndarray:
    return oracles.normal(*shape, seed=seed, dtype="float64")


Q, K, V = normal(2, 7, 4, 8, seed=0), normal(2, 7, 2, 8, seed=1), normal(2, 7, 2, 3, seed=2)
MASK = np.random.default_rng(3).random((2, 1, 7, 7)) < 0.6
MASK[1, 0, 2] = False  # a row with nothing to attend to, whose gradient must not be NaN
PADDING = np.arange(7) < np.array([[7], [5]])


def softmax(xp: Any, q: Any, k: Any, v: Any) -> Any:
    mask = xp.asarray(MASK)
    return attention.attention(q, k, v, rope=RoPE(layout="half"), mask=mask, causal=True)


def linear(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return attention.linear_attention(q * 30.0, k, v, rope=RoPE(), feature_map="elu")


def linear_causal(xp: Any, q: Any, k: Any, v: Any) -> Any:
    return attention.linear_attention(q, k * 30.0, v, rope=RoPE(), causal=True)


def spans(xp: Any, q: Any, k: Any, v: Any) -> Any:
    logits = attention.global_pointer(q, k, rope=RoPE(), mask=xp.asarray(PADDING))
    return xp.exp(logits)  # a loss such as GlobalPointer's; what is no span adds nothing


CASES = [softmax, exhaustive(linear), linear_causal, spans]


def from_torch(function: Callable[..., Any], dtype: Any) -> list[np.ndarray]:
    arrays = [torch.tensor(x, dtype=dtype, requires_grad=True) for x in (Q, K, V)]
    function(torch, *arrays).sin().sum().backward()
    return [np.zeros(x.shape) if x.grad is None else x.grad.numpy() for x in arrays]


@pytest.mark.parametrize("function", CASES)
def test_torch_and_jax_agree(function: Callable[..., Any]) -> None:
    def loss(*arrays: Any) -> Any:
        return jax.numpy.sin(function(jax.numpy, *arrays)).sum()

    arrays = [jax.numpy.asarray(x, dtype=jax.numpy.float32) for x in (Q, K, V)]
    expected = from_torch(function, torch.float64)
    for jitted, single, exact in zip(
        jax.jit(jax.grad(loss, (0, 1, 2)))(*arrays),
        from_torch(function, torch.float32),
        expected,
        strict=True,
    ):
        assert np.isfinite(jitted).all()
        # float32 throughout, with sums of 56 terms; relative to the largest gradient.
        atol = 2e-5 * max(1.0, np.abs(exact).max())
        for gradient in (jitted, single):
            np.testing.assert_allclose(gradient, exact, rtol=0, atol=atol)


@pytest.mark.parametrize("function", CASES)
def test_against_finite_differences(function: Callable[..., Any]) -> None:
    """Along one random direction for each array, in float64."""

    def loss(arrays: list[np.ndarray]) -> float:
        return float(np.sin(function(np, *arrays)).sum())

    gradients = from_torch(function, torch.float64)
    for i, gradient in enumerate(gradients):
        direction, step = normal(*gradient.shape, seed=9), 1e-6
        losses = []
        for sign in (1, -1):
            arrays = [Q, K, V]
            arrays[i] = arrays[i] + sign * step * direction
            losses.append(loss(arrays))
        slope = (losses[0] - losses[1]) / (2 * step)
        # Rounding of the loss, of order 100 eps / step = 2e-8, and curvature of order step**2.
        assert slope == pytest.approx(float((gradient * direction).sum()), rel=1e-5, abs=1e-6)
