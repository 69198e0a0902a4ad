"""List how two ropes differ, in words."""

import math
from dataclasses import replace

import numpy as np

from rope_xp.rope import RoPE


def list_differences(actual: RoPE, expected: RoPE, head_dim: int) -> list[str]:
    """Return how two ropes differ that rotate heads of head_dim, in sentences."""
    one, other = fix_length(actual, head_dim), fix_length(expected, head_dim)
    sentences = [
        f"{name} is {getattr(one, name)!r}, and not {getattr(other, name)!r}"
        for name in ("layout", "rotary_dim", "rotary_offset", "position_axes")
        if getattr(one, name) != getattr(other, name)
    ]
    series = one.frequencies(head_dim), other.frequencies(head_dim)
    same_length = series[0].shape == series[1].shape
    if not (same_length and np.allclose(*series, rtol=1e-5, atol=1e-12)):
        if actual.base != expected.base:
            sentences.append(f"base is {actual.base:g}, and not {expected.base:g}")
        if actual.scaling != expected.scaling or actual.base == expected.base:
            sentences.append(f"scaling is {actual.scaling}, and not {expected.scaling}")
    factors = actual.attention_factor, expected.attention_factor
    if not math.isclose(*factors, rel_tol=1e-4):
        sentences.append(f"attention factor is {factors[0]:.6g}, and not {factors[1]:.6g}")
    return sentences


def fix_length(rope: RoPE, head_dim: int) -> RoPE:
    """Return a rope for short contexts, with its slice of the head filled in."""
    rotary_dim = rope.rotary_dim or head_dim
    offset = rope.rotary_offset % head_dim
    return replace(rope.for_length(1), rotary_dim=rotary_dim, rotary_offset=offset)
