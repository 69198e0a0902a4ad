"""Checks of scalings, those of other packages too."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError

_METHODS = {
    "frequencies": "frequencies(base, rotary_dim), which returns radians per token, one a pair",
    "for_length": "for_length(n), which returns the scaling for a context of n tokens",
}
_FACTORS = {
    "effective_attention_factor": "which multiplies cos and sin",
    "softmax_scale": "by which the caller multiplies its softmax scale",
}


def check_scaling(scaling: Any) -> None:
    """Check that scaling has each member of :class:`rope_xp.scaling.Scaling`."""
    if isinstance(scaling, type) or not hasattr(scaling, "frequencies"):
        raise TypeError(
            "scaling must be an instance such as rope_xp.scaling.Linear(factor=4.0), one derived "
            f"from rope_xp.scaling.Scaling, or None; got {scaling!r}"
        )
    for name, signature in _METHODS.items():
        if not callable(getattr(scaling, name, None)):
            raise _wrong_member(scaling, name, f"the method {signature}")
    for name, purpose in _FACTORS.items():
        factor = numbers.plain(getattr(scaling, name, None))
        is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not is_number or not 0 < factor < float("inf"):
            raise _wrong_member(scaling, name, f"a positive finite number, {purpose}")
    if _may_be_unhashable(scaling):
        try:
            hash(scaling)
        except TypeError as error:
            msg = f"scaling must be hashable, as tables are cached for it: {error} in {scaling!r}"
            raise TypeError(msg) from error


def _wrong_member(scaling: Any, name: str, needed: str) -> RopeError:
    state = f"is {getattr(scaling, name)!r}" if hasattr(scaling, name) else "is missing"
    return RopeError(
        f"{type(scaling).__name__}.{name} {state}; a scaling needs {needed}. A class that is "
        "derived from rope_xp.scaling.Scaling has defaults for all but frequencies; got "
        f"{scaling!r}"
    )


def _may_be_unhashable(value: object) -> bool:
    """Return whether to call hash, which torch.compile (seen in torch 2.11) cannot trace.

    It need not raise then: a dataclass may leave a field out of its hash, or define its own.
    """
    members: Any = value if isinstance(value, tuple) else ()
    if dataclasses.is_dataclass(value):
        members = numbers.get_attributes(value).values()
    return type(value).__hash__ is None or any(map(_may_be_unhashable, members))


def check_fixed(scaling: Any, fixed: Any, n: int) -> None:
    """Check that ``for_length`` returned a scaling: None would drop it."""
    if fixed is None:
        raise RopeError(
            f"{type(scaling).__name__}.for_length({n}) returned None; it must return a scaling, "
            f"itself if the length of the context does not matter; got {scaling!r}"
        )


def check_components(scaling: Any, position_axes: tuple[int, ...] | None) -> None:
    """Check that a scaling for several components of positions comes with position_axes."""
    components = getattr(scaling, "axes", 1)
    if position_axes is None and numbers.is_int(components) and components > 1:
        raise RopeError(
            f"scaling has frequencies for {components} components of a position, and position_axes "
            f"is None, so that all pairs would read one; got {scaling!r}. Write "
            "RoPE.axial(sections), which makes both, or give position_axes"
        )


def check_frequencies(scaling: Any, frequencies: NDArray[np.float64], pairs: int) -> None:
    """Check the shape and values of scaled frequencies."""
    if frequencies.shape != (pairs,) or not np.isfinite(frequencies).all():
        raise RopeError(
            f"scaling {scaling!r} must return {pairs} finite frequencies, one a pair; got shape "
            f"{frequencies.shape}: {frequencies}"
        )
