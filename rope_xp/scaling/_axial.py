"""The rule of positions with several components. Public in :mod:`rope_xp.scaling`."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rope_xp._contract import numbers
from rope_xp._contract.errors import RopeError
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.scaling._rule import Rule

ORDERS = ("blocks", "alternating", "dealt")


@dataclass(frozen=True)
class Axial(Rule):
    """Frequencies for positions of several components, such as the row and column of a patch.

    Goes with ``position_axes`` of :class:`rope_xp.RoPE`, which says what component each pair reads.

    Parameters
    ----------
    axes : int, default 2
        Components, a. They divide the r/2 pairs evenly.
    order : {"blocks", "alternating", "dealt"}, default "blocks"
        "blocks": each component has a series of r/(2a) frequencies of its own, one after the other
        (vision towers of Qwen-VL). "alternating": the same, but the pairs of the components take
        turns (Kimi). "dealt": one series of r/2, dealt out in turns, then grouped by component
        (Pixtral).

    Raises
    ------
    RopeError
        If axes is not positive, order is none of the three, or in ``frequencies``, where axes does
        not divide the pairs.

    Notes
    -----
    With n = r / a, "blocks" and "alternating" have ``base ** (-2 j / n)``, j = 0 ... n/2 - 1, for
    each component. Heo et al., "Rotary Position Embedding for Vision Transformer", arXiv
    2403.13298, describe axial frequencies; the orders are those of models in transformers.

    Examples
    --------
    >>> import rope_xp
    >>> rule = rope_xp.scaling.Axial(axes=2)
    >>> rope = rope_xp.RoPE(scaling=rule, position_axes=(0, 0, 1, 1))
    >>> rope.frequencies(8).tolist()
    [1.0, 0.01, 1.0, 0.01]
    >>> rope_xp.RoPE(scaling=rope_xp.scaling.Axial(order="dealt")).frequencies(8).tolist()
    [1.0, 0.01, 0.1, 0.001]
    """

    axes: int = 2
    order: str = "blocks"

    def __post_init__(self) -> None:
        numbers.check_positive_int("Axial.axes", self.axes)
        numbers.check_one_of("Axial.order", self.order, ORDERS)

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the series of all components, in order."""
        if rotary_dim % (2 * self.axes):
            pairs = rotary_dim // 2
            msg = f"Axial.axes = {self.axes} does not divide the {pairs} rotated pairs evenly"
            raise RopeError(msg)
        if self.order == "dealt":
            return inverse_frequencies(base, rotary_dim).reshape(-1, self.axes).T.ravel()
        series = inverse_frequencies(base, rotary_dim // self.axes)
        repeat = np.tile if self.order == "blocks" else np.repeat
        return repeat(series, self.axes)
