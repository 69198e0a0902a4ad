"""Scalings for positions with several components. Public in :mod:`rope_xp.scaling`."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.scaling._base import Scaling


@dataclass(frozen=True)
class Axial(Scaling):
    """Frequencies for positions with several components, such as the row and column of a patch.

    ``position_axes`` of the RoPE gives the component for each pair; :meth:`rope_xp.RoPE.axial` sets
    both. "blocks" and "alternating" have ``base ** (-2 j / n)``, j = 0 ... n/2 - 1, for each
    component of a position, where n is its section. Without sections n = r / a. Heo et al., "Rotary
    Position Embedding for Vision Transformer", arXiv 2403.13298, describe axial frequencies; the
    orders are those of models in transformers and diffusers.

    Parameters
    ----------
    axes : int, default 2
        Components of a position, a. Without sections, a must divide the r/2 pairs evenly.
    order : {"blocks", "alternating", "strided"}, default "blocks"
        "blocks": each component has its own series of frequencies, one after the other (vision
        towers of Qwen-VL, diffusion transformers). "alternating": the same series, but pairs of the
        components alternate (Kimi). "strided": component c has every a-th frequency of one series
        of r/2, starting at the c-th (Pixtral).
    sections : tuple of int, optional
        Rotated components of a head for each component of a position: even numbers that sum to r,
        such as (16, 56, 56). They determine axes. None: equal shares. Not for "strided".
    bases : tuple of float, optional
        A base for each component. None: the base of the RoPE for all. Not for "strided".

    Examples
    --------
    >>> from rope_xp.scaling import Axial
    >>> Axial().frequencies(10000.0, 8).tolist()
    [1.0, 0.01, 1.0, 0.01]
    >>> Axial(order="strided").frequencies(10000.0, 8).tolist()
    [1.0, 0.01, 0.1, 0.001]
    >>> Axial(sections=(2, 4), bases=(100.0, 256.0)).frequencies(10000.0, 6).tolist()
    [1.0, 1.0, 0.0625]
    """

    axes: int = 2
    order: str = "blocks"
    sections: tuple[int, ...] | None = None
    bases: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._check(numbers.check_positive_int, "axes")
        numbers.check_one_of("Axial.order", self.order, ("blocks", "alternating", "strided"))
        if self.sections is not None:
            self._check_items(numbers.check_even, "sections", "axis")
            if self.axes not in (type(self).axes, len(self.sections)):
                raise RopeError(f"Axial.axes={self.axes} but sections={self.sections}; drop axes")
            object.__setattr__(self, "axes", len(self.sections))
        if self.bases is not None:
            self._check_items(numbers.check_positive, "bases", "axis")
            if len(self.bases) != self.axes:
                msg = f"Axial.bases must be {self.axes} numbers, one per axis; got {self.bases}"
                raise RopeError(msg)
        if self.order == "strided" and (self.sections, self.bases) != (None, None):
            raise RopeError(
                "Axial.order = 'strided' has one series for all axes, so it takes neither sections "
                f"nor bases; got {self.sections} and {self.bases}"
            )

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the frequencies of all components, in order."""
        sections, pairs = self.sections, rotary_dim // 2
        if sections is None:
            if pairs % self.axes:
                raise RopeError(f"Axial.axes = {self.axes} does not divide {pairs} rotated pairs")
            if self.order == "strided":
                return inverse_frequencies(base, rotary_dim).reshape(-1, self.axes).T.ravel()
            sections = (rotary_dim // self.axes,) * self.axes
        elif sum(sections) != rotary_dim:
            total = sum(sections)
            raise RopeError(f"Axial.sections={sections} sum to {total}; rotary_dim is {rotary_dim}")
        bases = (base,) * self.axes if self.bases is None else self.bases
        series = [inverse_frequencies(b, n) for b, n in zip(bases, sections, strict=True)]
        return np.array([series[axis][j] for axis, j in assign_pairs(sections, self.order)])


def assign_pairs(sections: Iterable[int], order: str) -> list[tuple[int, int]]:
    """Return for each pair its axis and its index in the series of that axis."""
    blocks = [[(axis, j) for j in range(n // 2)] for axis, n in enumerate(sections)]
    if order == "blocks":
        return [pair for block in blocks for pair in block]
    rounds = itertools.zip_longest(*blocks)
    return [pair for pairs in rounds for pair in pairs if pair is not None]


@dataclass(frozen=True)
class RIFLEx(Scaling):
    """Slow down one pair of the frame axis, so that a longer video does not repeat itself.

    If that pair completes a turn within a video, the video repeats. Frequency k becomes
    ``share * 2 pi / L``; the others do not change. Zhao et al., "RIFLEx: A Free Lunch for Length
    Extrapolation in Video Diffusion Transformers", arXiv 2502.15894; their code has share 0.9.

    Parameters
    ----------
    k : int
        Number of the pair on the frame axis, counted from 1. Choose the pair whose wavelength is
        nearest to the frame at which the model repeats itself.
    length : int
        Frames of the video, in patches, L.
    scaling : Axial, optional
        Scaling of several components to change. None: all pairs read the frame.
    axis : int, default 0
        Component of positions that counts frames.
    share : float, default 0.9
        Share of a turn that pair k makes within the video.

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
            raise RopeError(f"RIFLEx.axis must be from 0 to {self.axes - 1}; got {self.axis!r}")
        if self.scaling is not None and self.scaling.order == "strided":
            raise RopeError("RIFLEx.scaling must have a series per axis; order 'strided' has one")

    @property
    def axes(self) -> int:
        """The number of components of a position."""
        return 1 if self.scaling is None else self.scaling.axes

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the frequencies of ``scaling`` with one of them slowed down."""
        scaling = Axial(1) if self.scaling is None else self.scaling
        frequencies = scaling.frequencies(base, rotary_dim)
        sections = scaling.sections or (rotary_dim // scaling.axes,) * scaling.axes
        pairs = sections[self.axis] // 2
        if self.k > pairs:
            raise RopeError(f"RIFLEx.k is {self.k}, but axis {self.axis} has {pairs} pairs")
        pair = assign_pairs(sections, scaling.order).index((self.axis, self.k - 1))
        frequencies[pair] = self.share * 2.0 * math.pi / self.length
        return frequencies
