"""Move keys for LMCache's blending by a RoPE of any kind: partial, scaled, or of part of a head."""

from dataclasses import dataclass

from torch import Tensor

from rope_xp import RoPE


@dataclass(frozen=True)
class FusedRope:
    """Called as ``lmcache.v1.compute.positional_encoding.FusedRope`` is, in its place."""

    rope: RoPE
    head_size: int

    def __call__(self, old_positions: Tensor, new_positions: Tensor, k: Tensor) -> Tensor:
        """Move keys (tokens, heads * head_size) in place, and return them."""
        heads = k.view(len(k), -1, self.head_size)
        self.rope.rerotate(heads, old_positions, new_positions, axes="shd", out=heads)
        return k
