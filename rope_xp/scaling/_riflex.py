"""The rule for longer videos. Public in :mod:`rope_xp.scaling`."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp.scaling._axial import Axial, places
from rope_xp.scaling._rule import Scaling


@dataclass(frozen=True)
class RIFLEx(Scaling):
    """One pair of the frames slowed down, so that a longer video does not repeat itself.

    A pair whose turn is as long as the videos of training makes a longer one start again. It gets a
    turn that the video at hand does not complete.

    Parameters
    ----------
    k : int
        The pair among those of the frames, counted from 1: the one whose wavelength is nearest to
        the frames at which the model repeats itself. Positive.
    length : int
        Frames of the video at hand, as patches, L. Positive.
    rule : Axial, optional
        That of a RoPE of several components. None: all pairs read the frame.
    axis : int, default 0
        The component of positions that is the frame.
    share : float, default 0.9
        Of a whole turn, how much the video makes. Positive.

    Raises
    ------
    RopeError
        If a field is out of range; in ``frequencies``, where the frames have fewer than k pairs.
    TypeError
        If rule is no Axial.

    Notes
    -----
    Frequency k becomes ``share * 2 pi / L``, and the others stay. Zhao et al., "RIFLEx: A Free
    Lunch for Length Extrapolation in Video Diffusion Transformers", arXiv 2502.15894, whose code
    has the share 0.9.

    Examples
    --------
    >>> import rope_xp
    >>> rule = rope_xp.scaling.RIFLEx(k=2, length=42)
    >>> rope_xp.RoPE(scaling=rule).frequencies(8).round(4).tolist()
    [1.0, 0.1346, 0.01, 0.001]
    """

    k: int
    length: int
    rule: Axial | None = None
    axis: int = 0
    share: float = 0.9

    def __post_init__(self) -> None:
        self._check(numbers.check_positive_int, "k", "length")
        self._check(numbers.check_positive, "share")
        self._check(numbers.check_int, "axis")
        if self.rule is not None and not isinstance(self.rule, Axial):
            raise TypeError(f"RIFLEx.rule must be a rope_xp.scaling.Axial; got {self.rule!r}")
        if not 0 <= self.axis < self.axes:
            msg = f"RIFLEx.axis must be one of {self.axes} components, from 0; got {self.axis!r}"
            raise RopeError(msg)
        if self.rule is not None and self.rule.order == "strided":
            msg = "RIFLEx.rule must have a series for each axis; order 'strided' has one for all"
            raise RopeError(msg)

    @property
    def axes(self) -> int:
        """How many components of a position have frequencies of their own."""
        return 1 if self.rule is None else self.rule.axes

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return those of the rule, and the slow one among them."""
        rule = Axial(1) if self.rule is None else self.rule
        found = rule.frequencies(base, rotary_dim)
        sections = rule.sections or (rotary_dim // rule.axes,) * rule.axes
        if self.k > sections[self.axis] // 2:
            msg = (
                f"RIFLEx.k = {self.k} names no pair: axis {self.axis} has "
                f"{sections[self.axis] // 2} of the {rotary_dim // 2} pairs"
            )
            raise RopeError(msg)
        pair = places(sections, rule.order).index((self.axis, self.k - 1))
        found[pair] = self.share * 2.0 * math.pi / self.length
        return found
