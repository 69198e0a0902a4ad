"""Measure what inexact angles do to attention scores.

A score is q . k / sqrt(head_dim) of normally distributed q and k, so scores have a standard
deviation of 1. Errors are root mean squares against float64. Half of the keys lie within 512 tokens
of their query, half anywhere before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from measured_group import Rows
from torch import Tensor

import rope_xp

HEAD_DIM, SAMPLES = 128, 4096
BASE = 5e5  # of Llama 3
LENGTHS = {"4k": 2**12, "32k": 2**15, "128k": 2**17, "1M": 2**20}
CosSinPair: TypeAlias = tuple[Tensor, Tensor]
Rotation: TypeAlias = Callable[[Tensor, np.ndarray], Tensor]


def compute_product_tables(base: float, positions: np.ndarray) -> CosSinPair:
    """Return cos and sin of float32 products, as transformers, vLLM and Megatron make them."""
    exponents = torch.arange(0, HEAD_DIM, 2, dtype=torch.int64).float() / HEAD_DIM
    frequencies = 1.0 / (base**exponents)
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


def rows() -> Rows:
    """Return the errors of scores of each way, by length."""
    found = measure_scores(BASE).items()
    return {f"Llama 3: {way}": dict(zip(LENGTHS, errors, strict=True)) for way, errors in found}
