"""The scaling of positions with several components. Public in :mod:`rope_xp.scaling`."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.scaling._base import Scaling

ORDERS = ("blocks", "alternating", "strided")


@dataclass(frozen=True)
class Axial(Scaling):
    """Frequencies for positions of several components, such as the row and column of a patch.

    Goes with ``position_axes`` of :class:`rope_xp.RoPE`, which says what component each pair reads.
    :meth:`rope_xp.RoPE.axial` makes both.

    Parameters
    ----------
    axes : int, default 2
        Components, a. Without sections, they divide the r/2 pairs evenly.
    order : {"blocks", "alternating", "strided"}, default "blocks"
        "blocks": each component has its own series of frequencies, one after the other (vision
        towers of Qwen-VL, diffusion transformers). "alternating": the same, but the pairs of the
        components alternate (Kimi). "strided": component c has every a-th frequency of one series
        of r/2, from the c-th on (Pixtral).
    sections : tuple of int, optional
        The number of rotated components of a head for each component of a position, even numbers
        such as (16, 56, 56). Then axes is their number. None: equal shares.
    bases : tuple of float, optional
        A base for each component. None: that of the RoPE for all.

    Raises
    ------
    RopeError
        If "strided" has sections or bases, or the number of bases is not that of components; in
        ``frequencies``, if axes does not divide the pairs, or sections do not sum to r.

    Notes
    -----
    With n components of a head, "blocks" and "alternating" have ``base ** (-2 j / n)``,
    j = 0 ... n/2 - 1, for each component of a position. Without sections n = r / a. Heo et al.,
    "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, describe axial
    frequencies; the orders are those of models in transformers and diffusers.

    Examples
    --------
    >>> import rope_xp
    >>> scaling = rope_xp.scaling.Axial(axes=2)
    >>> rope = rope_xp.RoPE(scaling=scaling, position_axes=(0, 0, 1, 1))
    >>> rope.frequencies(8).tolist()
    [1.0, 0.01, 1.0, 0.01]
    >>> rope_xp.scaling.Axial(order="strided").frequencies(10000.0, 8).tolist()
    [1.0, 0.01, 0.1, 0.001]
    >>> scaling = rope_xp.scaling.Axial(sections=(2, 4), bases=(100.0, 256.0))
    >>> scaling.frequencies(10000.0, 6).tolist()
    [1.0, 1.0, 0.0625]
    """

    axes: int = 2
    order: str = "blocks"
    sections: tuple[int, ...] | None = None
    bases: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        self._check(numbers.check_positive_int, "axes")
        numbers.check_one_of("Axial.order", self.order, ORDERS)
        if self.sections is not None:
            sections = _check_per_axis("Axial.sections", self.sections, _check_section)
            if self.axes not in (type(self).axes, len(sections)):
                msg = f"Axial.axes = {self.axes} contradicts sections = {sections}; leave axes out"
                raise RopeError(msg)
            object.__setattr__(self, "sections", sections)
            object.__setattr__(self, "axes", len(sections))
        if self.bases is not None:
            bases = _check_per_axis("Axial.bases", self.bases, numbers.check_positive)
            if len(bases) != self.axes:
                msg = f"Axial.bases must be {self.axes} numbers, one for each axis; got {bases}"
                raise RopeError(msg)
            object.__setattr__(self, "bases", bases)
        if self.order == "strided" and (self.sections, self.bases) != (None, None):
            raise RopeError(
                "Axial.order = 'strided' has one series for all axes; it takes neither sections "
                f"nor bases, got {self.sections} and {self.bases}"
            )

    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the series of all components, in order."""
        sections = self.sections
        if sections is None:
            if rotary_dim % (2 * self.axes):
                pairs = rotary_dim // 2
                msg = f"Axial.axes = {self.axes} does not divide the {pairs} rotated pairs evenly"
                raise RopeError(msg)
            if self.order == "strided":
                return inverse_frequencies(base, rotary_dim).reshape(-1, self.axes).T.ravel()
            sections = (rotary_dim // self.axes,) * self.axes
        elif sum(sections) != rotary_dim:
            raise RopeError(
                f"Axial.sections = {sections} sum to {sum(sections)} components; rotary_dim is "
                f"{rotary_dim}"
            )
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


def _check_per_axis(name: str, values: object, check: Callable[[str, Any], Any]) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a tuple of numbers, one for each axis; got {values!r}")
    checked = tuple([check(name, value) for value in values])
    if not checked:
        raise RopeError(f"{name} is empty; it has a number for each axis")
    return checked


def _check_section(name: str, section: object) -> int:
    components = numbers.check_positive_int(name, section)
    if components % 2:
        raise RopeError(f"{name} must be even, as pairs are rotated; got {components}")
    return components
