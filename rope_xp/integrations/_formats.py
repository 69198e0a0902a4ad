"""How the models of transformers write tables of cos and sin: one column a pair, or two."""

from typing import Literal

import torch

from rope_xp._arguments.table_forms import doubled, one_per_pair

Format = Literal["halves", "neighbours", "pairs", "complex"]
"""Columns (0 ... n-1, 0 ... n-1), (0, 0, 1, 1, ...), (0 ... n-1), or cos + i sin of the last."""

FORMATS: tuple[Format, ...] = ("halves", "neighbours", "pairs", "complex")

Tables = tuple[torch.Tensor, ...]
"""cos and sin, or one tensor of complex numbers."""


def written(cos: torch.Tensor, sin: torch.Tensor, form: Format) -> Tables:
    """Return tables of one column a pair in the format of a model."""
    if form == "complex":
        return (torch.complex(cos, sin),)
    return doubled(torch, cos, form), doubled(torch, sin, form)


def read(tables: Tables, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of one column a pair."""
    if form == "complex":
        (both,) = tables
        return both.real, both.imag
    cos, sin = tables
    return one_per_pair(cos, form), one_per_pair(sin, form)
