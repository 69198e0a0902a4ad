"""How the models of transformers write tables of cos and sin: one column a pair, or two."""

from typing import Literal

import torch

Format = Literal["halves", "neighbours", "pairs", "complex"]
"""Columns (0 ... n-1, 0 ... n-1), (0, 0, 1, 1, ...), (0 ... n-1), or cos + i sin of the last."""

FORMATS: tuple[Format, ...] = ("halves", "neighbours", "pairs", "complex")

Tables = tuple[torch.Tensor, ...]
"""cos and sin, or one tensor of complex numbers."""


def written(cos: torch.Tensor, sin: torch.Tensor, form: Format) -> Tables:
    """Return tables of one column a pair in the format of a model."""
    if form == "complex":
        return (torch.complex(cos, sin),)
    return _doubled(cos, form), _doubled(sin, form)


def _doubled(table: torch.Tensor, form: Format) -> torch.Tensor:
    if form == "pairs":
        return table
    if form == "halves":
        return torch.cat((table, table), dim=-1)
    return torch.repeat_interleave(table, 2, dim=-1)


def read(tables: Tables, form: Format) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cos and sin of one column a pair."""
    if form == "complex":
        (both,) = tables
        return both.real, both.imag
    cos, sin = tables
    if form == "pairs":
        return cos, sin
    columns = slice(cos.shape[-1] // 2) if form == "halves" else slice(None, None, 2)
    return cos[..., columns], sin[..., columns]
