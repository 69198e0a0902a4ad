"""In what two ropes differ, in words."""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from rope_xp.rope import RoPE


def differences(found: RoPE, expected: RoPE, head_dim: int) -> list[str]:
    """Return in what two ropes differ that turn heads of head_dim, in words."""
    said = []
    for name in ("layout", "rotary_dim", "rotary_offset", "position_axes"):
        one, other = (_told(rope, name, head_dim) for rope in (found, expected))
        if one != other:
            said.append(f"{name} is {one!r}, and not {other!r}")
    short = [fixed(rope, head_dim) for rope in (found, expected)]
    one, other = (rope.frequencies(head_dim) for rope in short)
    if one.shape != other.shape or not np.allclose(one, other, rtol=1e-5, atol=1e-12):
        if found.base != expected.base:
            said.append(f"base is {found.base:g}, and not {expected.base:g}")
        if found.scaling != expected.scaling or found.base == expected.base:
            said.append(f"scaling is {found.scaling}, and not {expected.scaling}")
    if not math.isclose(found.attention_factor, expected.attention_factor, rel_tol=1e-4):
        said.append(
            f"attention factor is {found.attention_factor:.6g}, and not "
            f"{expected.attention_factor:.6g}"
        )
    return said


def _told(rope: RoPE, name: str, head_dim: int) -> Any:
    """Return a field with its defaults filled in."""
    value = getattr(rope, name)
    if name == "rotary_dim":
        return value or head_dim
    return value % head_dim if name == "rotary_offset" else value


def fixed(rope: RoPE, head_dim: int) -> RoPE:
    """Return a rope for short contexts, whose slice is that of a head."""
    return replace(rope.for_length(1), rotary_dim=rope.rotary_dim or head_dim)
