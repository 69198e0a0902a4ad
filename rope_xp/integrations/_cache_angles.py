"""Angles that move the keys of a cache from old to new positions."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rope_xp._core.typing import Layout
from rope_xp.angles import Angles
from rope_xp.integrations._cache_layers import CacheLayer, Stored
from rope_xp.rope import RoPE

Positions = NDArray[Any]
AXES = {3: "bsd", 4: "bhsd"}  # of keys of indexers, and of keys


def count_context(positions: Positions) -> int:
    return max(1, int(positions.max()) + 1)


class AngleSource:
    """The angles from old to new positions, computed once for layers with the same rope."""

    def __init__(self, old: Positions, new: Positions, targets: Sequence[RoPE | None]) -> None:
        self.positions, self.targets = (old, new), targets
        self.lengths = count_context(old), count_context(new)
        self.known: dict[Any, Angles | None] = {}

    def find(self, layer: CacheLayer, stored: Stored, tokens: Any = None) -> Angles | None:
        """Return the angles of the tokens of an array, None if its rotation stays the same."""
        rope, target = stored.rope, self.targets[layer.index]
        if rope is None or target is None:
            return None
        to = replace(rope, base=target.base, scaling=target.scaling).for_length(self.lengths[1])
        rope, x = rope.for_length(self.lengths[0]), layer.read(stored)
        key = rope, to, stored.start, stored.stop, x.shape[-1], x.dtype == torch.float64, x.device
        if key not in self.known:
            tokens = slice(stored.start, stored.stop) if tokens is None else tokens
            old, new = (p[..., tokens] for p in self.positions)
            is_same = rope == to and np.array_equal(old, new)
            self.known[key] = None if is_same else _build_angles(rope, to, old, new, x)
        return self.known[key]


def _build_angles(rope: RoPE, to: RoPE, old: Positions, new: Positions, x: torch.Tensor) -> Angles:
    """Return the angles of the one rotation from old to new positions, as of ``RoPE.rerotate``.

    They are computed in float64 and rounded once: all layers and many moves share their error.
    """
    if rope.position_axes is not None:  # text has the same position in all components
        lead, rows = (max(rope.position_axes) + 1,), map(np.atleast_2d, (old, new))
        old, new = (np.broadcast_to(p, (*lead, *p.shape)) if p.ndim < 3 else p for p in rows)
    factor, width = rope.attention_factor, x.shape[-1]
    if rope == to:
        cos, sin = rope.cos_sin(new - old, width, dtype=np.float64)
    else:
        old_cos, old_sin = rope.cos_sin(old, width, dtype=np.float64)
        new_cos, new_sin = to.cos_sin(new, width, dtype=np.float64)
        cos, sin = new_cos * old_cos + new_sin * old_sin, new_sin * old_cos - new_cos * old_sin
        factor *= factor
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    cos, sin = (torch.from_numpy(t / factor).to(dtype).to(x.device) for t in (cos, sin))
    # Keys lie in the layout that their rotation wrote.
    layout: Layout = "interleaved" if rope.layout == "interleaved" else "half"
    return replace(rope, layout=layout).with_tables(cos, sin)


def rotate(x: torch.Tensor, angles: Angles) -> torch.Tensor:
    """Return rotated rows, in the memory of x where it can be written to."""
    is_bound = x.requires_grad or x.is_inference() or 0 in x.stride()
    return angles.rotate(x, axes=AXES[x.ndim], out=None if is_bound else x)
