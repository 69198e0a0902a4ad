"""Measure what inexact angles do to attention scores, and how far engines drift apart.

A score is q . k / sqrt(head_dim) of normally distributed q and k, so scores have a standard
deviation of 1. Errors are root mean squares against float64. Half of the keys lie within 512 tokens
of their query, half anywhere before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import jax.numpy as jnp
import numpy as np
import torch
from measured_group import Rows
from torch import Tensor

import rope_xp

HEAD_DIM, SAMPLES = 128, 4096
MODELS = {"Llama 3": 5e5, "Qwen2.5-1M": 1e7}
LENGTHS = {"4k": 2**12, "32k": 2**15, "128k": 2**17, "1M": 2**20}
CosSinPair: TypeAlias = tuple[Tensor, Tensor]
Rotation: TypeAlias = Callable[[Tensor, np.ndarray], Tensor]


def compute_product_tables(base: float, positions: np.ndarray) -> CosSinPair:
    """Return cos and sin of float32 products, as transformers, vLLM and Megatron make them."""
    exponents = torch.arange(0, HEAD_DIM, 2, dtype=torch.int64).float() / HEAD_DIM
    frequencies = 1.0 / (base**exponents)
    angles = torch.from_numpy(positions).float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def compute_quotient_tables(base: float, positions: np.ndarray) -> CosSinPair:
    """Return cos and sin of float32 quotients in jax, as MaxText makes them."""
    timescales = base ** (2 * jnp.arange(HEAD_DIM // 2) / HEAD_DIM)
    angles = jnp.asarray(positions, jnp.float32)[:, None] / timescales
    return torch.tensor(np.array(jnp.cos(angles))), torch.tensor(np.array(jnp.sin(angles)))


def compute_exponential_tables(base: float, positions: np.ndarray) -> CosSinPair:
    """Return the same with frequencies by exp and log, a common spelling of the power."""
    exponents = torch.arange(0, HEAD_DIM, 2).float() / HEAD_DIM
    frequencies = torch.exp(-math.log(base) * exponents)
    angles = torch.from_numpy(positions).float()[:, None] * frequencies
    return angles.cos(), angles.sin()


def rotate_half(x: Tensor, tables: CosSinPair) -> Tensor:
    """Return x rotated as transformers does, in the dtype of x and its tables."""
    cos, sin = (torch.cat((t, t), -1).to(x.dtype) for t in tables)
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


def list_ways(base: float) -> dict[str, Rotation]:
    """Return the rotations to compare, by name."""
    rope, bfloat16 = rope_xp.RoPE(base=base, layout="half"), torch.bfloat16

    def product_once(x: Tensor, positions: np.ndarray) -> Tensor:
        tables = compute_product_tables(base, positions)
        return rotate_half(x.to(bfloat16).float(), tables).to(bfloat16)

    return {
        "float32, exact angles": lambda x, p: rope.rotate(x.float(), p),
        "float32, float32 product": lambda x, p: rotate_half(
            x.float(), compute_product_tables(base, p)
        ),
        "bfloat16, exact angles": lambda x, p: rope.rotate(x.to(bfloat16), p),
        "bfloat16, float32 product, rounded once": product_once,
        "bfloat16, float32 product, tables and products in bfloat16": lambda x, p: rotate_half(
            x.to(bfloat16), compute_product_tables(base, p)
        ),
    }


def measure_scores(base: float) -> dict[str, list[float]]:
    """Return the root mean square error of scores of each way, one for each length."""
    rope, random = rope_xp.RoPE(base=base, layout="half"), np.random.default_rng(0)
    errors: dict[str, list[float]] = {}
    for length in LENGTHS.values():
        queries = length - 1 - random.integers(0, 2**11, SAMPLES)
        near = np.maximum(queries - random.integers(0, 512, SAMPLES), 0)
        keys = np.where(random.random(SAMPLES) < 0.5, near, random.integers(0, queries))
        q, k = (torch.from_numpy(random.standard_normal((SAMPLES, HEAD_DIM))) for _ in "qk")

        def score(rotate: Rotation) -> Tensor:
            rotated = rotate(q, queries).double() * rotate(k, keys).double()  # noqa: B023  # called in this turn
            return rotated.sum(-1) / HEAD_DIM**0.5

        exact = score(rope.rotate)
        for name, rotate in list_ways(base).items():
            error = (score(rotate) - exact).square().mean().sqrt().item()
            errors.setdefault(name, []).append(error)
    return errors


def measure_drift(base: float) -> dict[str, list[float]]:
    """Return the largest difference of cos and sin between two engines, one for each length."""
    rope = rope_xp.RoPE(base=base, layout="half")
    drift: dict[str, list[float]] = {}
    for length in LENGTHS.values():
        positions = np.arange(length - 1024, length)
        product = compute_product_tables(base, positions)
        rounded = tuple(table.bfloat16().float() for table in product)
        in_torch = rope.cos_sin(torch.from_numpy(positions), HEAD_DIM)
        in_jax = rope.cos_sin(jnp.asarray(positions), HEAD_DIM)
        pairs = {
            "product in torch, quotient in jax": (
                product,
                compute_quotient_tables(base, positions),
            ),
            "frequencies by power, by exp and log": (
                product,
                compute_exponential_tables(base, positions),
            ),
            "product, the same in a bfloat16 table": (product, rounded),
            "product, exact angles": (product, in_torch),
            "rope_xp in torch and in jax": (
                in_torch,
                tuple(torch.tensor(np.array(table)) for table in in_jax),
            ),
        }
        for name, (one, other) in pairs.items():
            difference = max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))
            drift.setdefault(name, []).append(difference)
    return drift


def score_rows() -> Rows:
    """Return the errors of scores of each model and way, by length."""
    return {
        f"{model}: {way}": dict(zip(LENGTHS, errors, strict=True))
        for model, base in MODELS.items()
        for way, errors in measure_scores(base).items()
    }


def drift_rows() -> Rows:
    """Return the largest differences of cos and sin between engines, by length, base 5e5."""
    drift = measure_drift(5e5)
    return {pair: dict(zip(LENGTHS, errors, strict=True)) for pair, errors in drift.items()}
