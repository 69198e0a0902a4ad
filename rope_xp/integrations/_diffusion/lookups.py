"""Cos and sin of positions that lie on a grid, or anywhere, in float32 of torch."""

from collections.abc import Sequence
from typing import TypeAlias, cast

import torch

from rope_xp.rope import RoPE

Tables: TypeAlias = tuple[torch.Tensor, torch.Tensor]


def looked_up(rope: RoPE, positions: torch.Tensor) -> Tables:
    """Return cos and sin (..., r/2) of positions (components, ...), in float32."""
    if positions.is_floating_point():
        positions = positions.float()
    r = cast("int", rope.rotary_dim)  # as all have that from_config returns
    cos, sin = rope.cos_sin(positions, r, dtype=torch.float32)
    return cos, sin


def on_grid(rope: RoPE, lines: Sequence[torch.Tensor]) -> Tables:
    """Return cos and sin (tokens, r/2) of all cells of a grid, given the positions along each axis.

    A frequency reads one axis, so each angle is computed once for an axis, and not for each cell.
    """
    longest = max(len(line) for line in lines)
    padded = [torch.nn.functional.pad(line, (0, longest - len(line))) for line in lines]
    shares = [(rope.position_axes or ()).count(axis) for axis in range(len(lines))]
    lengths = [len(line) for line in lines]

    def spread(table: torch.Tensor) -> torch.Tensor:
        parts = []
        for axis, part in enumerate(torch.split(table, shares, dim=-1)):
            shape = [1] * len(lines) + [shares[axis]]
            shape[axis] = lengths[axis]
            parts.append(part[: lengths[axis]].view(shape).expand(*lengths, shares[axis]))
        return torch.cat(parts, dim=-1).flatten(0, -2)

    cos, sin = looked_up(rope, torch.stack(padded))
    return spread(cos), spread(sin)


def counted(lengths: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """Return the positions along axes that are counted from 0."""
    return [torch.arange(n, dtype=torch.int32, device=device) for n in lengths]


def centred(n: int, device: torch.device) -> torch.Tensor:
    return torch.arange(n, dtype=torch.int32, device=device) - (n - n // 2)
