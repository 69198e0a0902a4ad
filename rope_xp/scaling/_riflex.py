"""The scaling for longer videos. Public in :mod:`rope_xp.scaling`."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp.scaling._axial import Axial, assign_pairs
from rope_xp.scaling._base import Scaling


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
    scaling : Axial, optional
        The frequencies to change, those of several components. None: all pairs read the frame.
    axis : int, default 0
        The component of positions that counts frames.
    share : float, default 0.9
        The share of a whole turn that the video makes. Positive.

    Raises
    ------
    RopeError
        In ``frequencies``, if the frames have fewer than k pairs.

    Notes
    -----
    Frequency k becomes ``share * 2 pi / L``, and the others stay. Zhao et al., "RIFLEx: A Free
    Lunch for Length Extrapolation in Video Diffusion Transformers", arXiv 2502.15894, whose code
    has the share 0.9.

    Examples
    --------
    >>> import rope_xp
    >>> scaling = rope_xp.scaling.RIFLEx(k=2, length=42)
    >>> rope_xp.RoPE(scaling=scaling).frequencies(8).round(4).tolist()
    [1.0, 0.1346, 0.01, 0.001]
    """

    k: int
    length: int
    scaling: Axial | None = None
    axis: int = 0
    share: float = 0.9

    def __post_init__(self) -> None:
        self._check(numbers.check_positive_int, "k", "length")
        self._check(numbers.check_positive, "share")
        self._check(numbers.check_int, "axis")
        if self.scaling is not None and not isinstance(self.scaling, Axial):
            raise TypeError(f"RIFLEx.scaling must be a rope_xp.scaling.Axial; got {self.scaling!r}")
        if not 0 <= self.axis < self.axes:
            msg = f"RIFLEx.axis must be one of {self.axes} components, from 0; got {self.axis!r}"
            raise RopeError(msg)
        if self.scaling is not None and self.scaling.order == "strided":
            msg = "RIFLEx.scaling must have a series for each axis; order 'strided' has one for all"
            raise RopeError(msg)

    @property
    def axes(self) -> int:
        """The number of components of a position."""
        return 1 if self.scaling is None else self.scaling.axes

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the frequencies of ``scaling``, one of them slowed down."""
        scaling = Axial(1) if self.scaling is None else self.scaling
        frequencies = scaling.frequencies(base, rotary_dim)
        sections = scaling.sections or (rotary_dim // scaling.axes,) * scaling.axes
        if self.k > sections[self.axis] // 2:
            raise RopeError(
                f"RIFLEx.k = {self.k} names no pair: axis {self.axis} has "
                f"{sections[self.axis] // 2} of the {rotary_dim // 2} pairs"
            )
        pair = assign_pairs(sections, scaling.order).index((self.axis, self.k - 1))
        frequencies[pair] = self.share * 2.0 * math.pi / self.length
        return frequencies
