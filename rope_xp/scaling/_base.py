"""The base class of scalings, public in :mod:`rope_xp.scaling`, and checks of any scaling."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError


class Scaling(ABC):
    """Base class of scalings: derive a frozen dataclass from it, and define ``frequencies``.

    All other members have defaults. A scaling must be hashable, because tables are cached for it.
    It is if all fields are numbers, strings or tuples.

    Examples
    --------
    A scaling that slows down every second pair:

    >>> from dataclasses import dataclass
    >>> import rope_xp
    >>> from rope_xp.scaling import Scaling, inverse_frequencies
    >>> @dataclass(frozen=True)
    ... class Alternate(Scaling):
    ...     factor: float
    ...
    ...     def frequencies(self, base, rotary_dim):
    ...         frequencies = inverse_frequencies(base, rotary_dim)
    ...         frequencies[1::2] /= self.factor
    ...         return frequencies
    >>> rope_xp.RoPE(scaling=Alternate(2.0)).frequencies(8).tolist()
    [1.0, 0.05, 0.01, 0.0005]
    """

    attention_factor: float | None = 1.0
    """Factor on cos and sin; None if ``effective_attention_factor`` computes it."""
    softmax_scale: float = 1.0
    """Factor for the softmax scale of your attention; it is not applied here."""

    @abstractmethod
    def frequencies(self, base: float, rotary_dim: int) -> NDArray[np.float64]:
        """Return the scaled frequencies in radians per token, shape (rotary_dim / 2,)."""

    @property
    def effective_attention_factor(self) -> float:
        """The factor on cos and sin, also if ``attention_factor`` is None."""
        return self.attention_factor  # type: ignore[return-value]  # RoPE checks it

    def for_length(self, n: int) -> "Scaling":
        """Return the scaling for a context of n tokens; itself if it does not depend on length."""
        return self

    def _check(self, check: Callable[[str, Any], Any], *names: str) -> None:
        """Check fields by a function of :mod:`rope_xp._core.numbers`; a default of None passes."""
        for name in names:
            value = getattr(self, name)
            if value is None and getattr(type(self), name, ...) is None:
                continue
            object.__setattr__(self, name, check(f"{type(self).__name__}.{name}", value))

    def _check_not_below(self, name: str, other: str) -> None:
        value, bound = getattr(self, name), getattr(self, other)
        if value < bound:
            label = f"{type(self).__name__}.{name}"
            raise RopeError(f"{label} must not be below {other} = {bound!r}; got {value!r}")

    def _check_items(self, check: Callable[[str, Any], Any], name: str, item: str) -> None:
        """Check a field that is a sequence of numbers, one for each item; make it a tuple."""
        label, values = f"{type(self).__name__}.{name}", getattr(self, name)
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise TypeError(f"{label} must be a tuple of numbers, one per {item}; got {values!r}")
        checked = tuple([check(f"{label}[{i}]", value) for i, value in enumerate(values)])
        if not checked:
            raise RopeError(f"{label} is empty; it needs a number for each {item}")
        object.__setattr__(self, name, checked)


def no_length(scaling: Scaling) -> RopeError:
    """Return the error of a scaling whose frequencies depend on the length of the context."""
    return RopeError(
        f"the frequencies of {type(scaling).__name__} depend on the length of the context; fix it "
        "first with rope = rope.for_length(n), with the same n for all keys of one attention"
    )


def check_scaling(scaling: Any) -> None:
    """Check that scaling is a hashable :class:`rope_xp.scaling.Scaling` with positive factors."""
    if not isinstance(scaling, Scaling):
        raise TypeError(
            "scaling must be an instance such as rope_xp.scaling.Linear(factor=4.0), one derived "
            f"from rope_xp.scaling.Scaling, or None; got {scaling!r}"
        )
    for name in ("effective_attention_factor", "softmax_scale"):
        numbers.check_positive(f"{type(scaling).__name__}.{name}", getattr(scaling, name))
    if _may_be_unhashable(scaling):
        try:
            hash(scaling)
        except TypeError as error:
            msg = f"scaling must be hashable, because tables are cached: {error} in {scaling!r}"
            raise TypeError(msg) from error


def _may_be_unhashable(value: object) -> bool:
    """Return whether to call hash, which torch.compile (seen in torch 2.11) cannot trace."""
    # It need not raise then: a dataclass may leave a field out of its hash, or define its own.
    members: Any = value if isinstance(value, tuple) else ()
    if dataclasses.is_dataclass(value):
        members = numbers.get_attributes(value).values()
    return type(value).__hash__ is None or any(map(_may_be_unhashable, members))


def check_components(scaling: Any, position_axes: tuple[int, ...] | None) -> None:
    """Check that a scaling for several components of positions comes with position_axes."""
    components = getattr(scaling, "axes", 1)
    if position_axes is None and numbers.is_int(components) and components > 1:
        raise RopeError(
            f"scaling has frequencies for {components} components of a position, but position_axes "
            f"is None, so all pairs would read the same one; got {scaling!r}. Use "
            "RoPE.axial(sections), which sets both, or pass position_axes"
        )
