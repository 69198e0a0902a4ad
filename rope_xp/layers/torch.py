"""A RoPE as a module of torch."""

from typing import Any

import torch

from rope_xp.angles import Angles
from rope_xp.layers import _learned, _loaded
from rope_xp.rope import Positions, RoPE


class Rotary(_learned.Learner):
    """Rotates queries and keys by their positions, as :meth:`rope_xp.RoPE.apply` does.

    It has no parameters and no buffers. So casts of a model leave its angles exact, and nothing is
    to be sharded, saved, or made anew after ``to_empty``. A checkpoint that holds ``inv_freq`` of
    another module at its place can be loaded, if these are the frequencies of the RoPE.

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
        learn: _learned.Learn = None,
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
        """Rotate queries and keys; the arguments are those of :func:`rope_xp.apply`."""
        if self.learn is not None:
            return self._rotate(q, k, positions, k_positions)
        return self.rope.apply(q, k, positions, axes=self.axes, k_positions=k_positions)

    def at(self, positions: Positions, *, like: torch.Tensor) -> Angles:
        """Return the angles of a forward pass, for all its layers; see :meth:`rope_xp.RoPE.at`."""
        if self.learn is not None:
            raise _learned.no_angles()
        return self.rope.at(positions, like=like)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        *_, error_msgs = rest
        # A buffer of other modules, which follows from the rope here.
        if (saved := state_dict.pop(f"{prefix}inv_freq", None)) is not None:
            error_msgs.extend(_loaded.mismatches(self.rope, f"{prefix}inv_freq", saved))
            if self.learn is not None:  # the other module learned none: start from the rope's
                state_dict.setdefault(f"{prefix}frequencies", self._initial_frequencies())
        super()._load_from_state_dict(state_dict, prefix, *rest)
