"""How two ropes differ, in words."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from rope_xp.rope import RoPE


def differences(found: RoPE, expected: RoPE, head_dim: int) -> list[str]:
    """Return how two ropes differ that rotate heads of head_dim, in sentences."""
    sentences = []
    for name in ("layout", "rotary_dim", "rotary_offset", "position_axes"):
        one, other = (_field(rope, name, head_dim) for rope in (found, expected))
        if one != other:
            sentences.append(f"{name} is {one!r}, and not {other!r}")
    one, other = (fixed(rope, head_dim).frequencies(head_dim) for rope in (found, expected))
    if one.shape != other.shape or not np.allclose(one, other, rtol=1e-5, atol=1e-12):
        if found.base != expected.base:
            sentences.append(f"base is {found.base:g}, and not {expected.base:g}")
        if found.scaling != expected.scaling or found.base == expected.base:
            sentences.append(f"scaling is {found.scaling}, and not {expected.scaling}")
    factors = found.attention_factor, expected.attention_factor
    if not math.isclose(*factors, rel_tol=1e-4):
        sentences.append(f"attention factor is {factors[0]:.6g}, and not {factors[1]:.6g}")
    return sentences


def _field(rope: RoPE, name: str, head_dim: int) -> Any:
    """Return a field with its defaults filled in."""
    value = getattr(rope, name)
    if name == "rotary_dim":
        return value or head_dim
    return value % head_dim if name == "rotary_offset" else value


def fixed(rope: RoPE, head_dim: int) -> RoPE:
    """Return a rope for short contexts, with rotary_dim filled in."""
    return replace(rope.for_length(1), rotary_dim=rope.rotary_dim or head_dim)
