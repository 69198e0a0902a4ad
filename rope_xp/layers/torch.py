"""A RoPE as a module of torch."""

from typing import Any

import torch

from rope_xp._core.errors import RopeError
from rope_xp.angles import Angles
from rope_xp.layers import _checkpoint, _learnable
from rope_xp.rope import Positions, RoPE


class Rotary(_learnable.LearnableRotary):
    """Rotates queries and keys by their positions, as :meth:`rope_xp.RoPE.apply` does.

    It has no parameters and no buffers. So casts of a model leave its angles exact, and there is
    nothing to shard, to save, or to initialise after ``to_empty``. It loads a checkpoint that has
    ``inv_freq`` of another module in its place, if these are the frequencies of the RoPE.

    Parameters
    ----------
    rope : RoPE
        Such as :func:`rope_xp.from_hf_config` returns.
    axes : str, optional
        Names of the axes of q and k; see :func:`rope_xp.apply`.
    learn : {"shared", "head"}, optional
        Make the frequencies a parameter, one set or one for each head. It starts from the RoPE, is
        float32 after casts too, and the layer rotates as :func:`rope_xp.apply_frequencies` does.
    head_dim, heads : int, optional
        For ``learn``: components of a head, and, for "head", heads of k.

    Examples
    --------
    >>> import torch
    >>> import rope_xp
    >>> from rope_xp.layers.torch import Rotary
    >>> rotary = Rotary(rope_xp.RoPE(base=5e5, layout="half"), axes="bhsd")
    >>> rotary
    Rotary(base=500000.0, layout='half', axes='bhsd')
    >>> q, k = torch.ones(1, 8, 5, 64), torch.ones(1, 2, 5, 64)
    >>> q_rotated, k_rotated = rotary(q, k, 1000 + torch.arange(5))
    """

    def __init__(
        self,
        rope: RoPE,
        *,
        axes: str | None = None,
        learn: _learnable.Learn = None,
        head_dim: int | None = None,
        heads: int | None = None,
    ) -> None:
        super().__init__(rope, axes, learn, head_dim, heads)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        positions: Positions = None,
        *,
        k_positions: Positions = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries and keys; see :func:`rope_xp.apply`."""
        if self.learn is not None:
            return self._rotate(q, k, positions, k_positions)
        return self.rope.apply(q, k, positions, axes=self.axes, k_positions=k_positions)

    def at(self, positions: Positions, *, like: torch.Tensor) -> Angles:
        """Return the angles of a forward pass, for all its layers; see :meth:`rope_xp.RoPE.at`."""
        if self.learn is not None:
            raise RopeError(
                "at computes angles for all layers of a forward pass, and each layer that learns "
                "its frequencies has its own; call the layer, rotary(q, k, positions)"
            )
        return self.rope.at(positions, like=like)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        *_, errors = rest
        key = f"{prefix}inv_freq"  # a buffer of other modules, which the RoPE determines here
        if (saved := state_dict.pop(key, None)) is not None:
            errors.extend(_checkpoint.find_mismatches(self.rope, key, saved))
            if self.learn is not None:  # the other module learned none: start from the RoPE's
                state_dict.setdefault(f"{prefix}frequencies", self._initial_frequencies())
        super()._load_from_state_dict(state_dict, prefix, *rest)
