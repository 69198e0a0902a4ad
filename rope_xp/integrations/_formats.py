"""The formats of other packages' tables of cos and sin."""

import math
from typing import Any, Literal

import torch

from rope_xp._arguments.table_forms import doubled, one_per_pair

Format = Literal["halves", "neighbours", "pairs", "complex", "matrices"]
"""Columns (0 ... n-1, 0 ... n-1), (0, 0, 1, 1, ...) or (0 ... n-1); of the last, cos + i sin or
[[cos, -sin], [sin, cos]]."""

FORMATS: tuple[Format, ...] = ("halves", "neighbours", "pairs", "complex")  # of transformers
Tables = tuple[torch.Tensor, ...]  # cos and sin, or one tensor of complex numbers or matrices


def write(cos: torch.Tensor, sin: torch.Tensor, form: Format) -> Tables:
    if form == "complex":
        return (torch.complex(cos, sin),)
    if form == "matrices":
        return (torch.stack([cos, -sin, sin, cos], dim=-1).view(*cos.shape, 2, 2),)
    return doubled(torch, cos, form), doubled(torch, sin, form)


def unwrap(tables: Tables) -> Any:
    """Return tables as rotary modules do: a tuple of two, or one tensor."""
    return tables if len(tables) > 1 else tables[0]


def read(tables: Any, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    if form == "complex":
        return tables[0].real, tables[0].imag
    if form == "matrices":
        return tables[0][..., 0, 0], tables[0][..., 1, 0]
    cos, sin = tables
    return one_per_pair(cos, form), one_per_pair(sin, form)


def scaled_error(ours: Any, theirs: Any) -> float:
    """Return the largest difference of tables or arrays; 1 is the most that rounding explains."""
    # It is infinite where shapes differ or a number is NaN.
    if isinstance(ours, tuple):
        fits = isinstance(theirs, tuple | list) and len(theirs) == len(ours)
        return max(map(scaled_error, ours, theirs)) if fits else math.inf
    if not isinstance(theirs, torch.Tensor):
        return math.inf
    if (ours.shape, ours.is_complex()) != (theirs.shape, theirs.is_complex()):
        return math.inf
    # Some round to bfloat16: modules of a model that was cast, and a function of Kandinsky.
    eps = torch.finfo(theirs.dtype).eps
    theirs = theirs.to(device=ours.device, dtype=ours.dtype)
    # Angles of small positions in float32, and one rotation by them.
    error = (ours - theirs).abs() / (max(1e-5, eps) + eps * theirs.abs())
    return float(error.nan_to_num(nan=math.inf).max())
