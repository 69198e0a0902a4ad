"""Checks of scaling rules, those of other packages too."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError

_METHODS = {
    "frequencies": "frequencies(base, rotary_dim), which returns radians per token, one a pair",
    "for_length": "for_length(n), which returns the rule for a context of n tokens",
}
_FACTORS = {
    "effective_attention_factor": "what cos and sin are multiplied by",
    "softmax_scale": "what the caller's softmax scale is to be multiplied by",
}


def check_scaling(scaling: Any) -> None:
    """Check that scaling is a rule, and has each member that a rule needs."""
    if isinstance(scaling, type) or not hasattr(scaling, "frequencies"):
        msg = (
            "scaling must be a rule such as rope_xp.scaling.Linear(factor=4.0), one derived from "
            f"rope_xp.scaling.Scaling, or None; got {scaling!r}"
        )
        raise TypeError(msg)
    for name, what in _METHODS.items():
        if not callable(getattr(scaling, name, None)):
            raise _wrong_member(scaling, name, f"the method {what}")
    for name, what in _FACTORS.items():
        factor = numbers.plain(getattr(scaling, name, None))
        is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not is_number or not 0 < factor < float("inf"):
            raise _wrong_member(scaling, name, f"a positive finite number, {what}")
    if _may_be_unhashable(scaling):
        try:
            hash(scaling)
        except TypeError as error:
            msg = f"scaling must be hashable, as tables are kept for it: {error} in {scaling!r}"
            raise TypeError(msg) from error


def _wrong_member(scaling: Any, name: str, needed: str) -> RopeError:
    kind = type(scaling).__name__
    found = f"is {getattr(scaling, name)!r}" if hasattr(scaling, name) else "is missing"
    return RopeError(
        f"{kind}.{name} {found}; a scaling rule needs {needed}. A class that is derived from "
        f"rope_xp.scaling.Scaling has defaults for all but frequencies; got {scaling!r}"
    )


def _may_be_unhashable(value: object) -> bool:
    """Return whether hash must be asked, which torch.compile (seen in torch 2.11) cannot trace.

    It need not raise then: a dataclass may leave a field out of its hash, or have one of its own.
    """
    held: Any = value if isinstance(value, tuple) else ()
    if dataclasses.is_dataclass(value):
        held = numbers.get_attributes(value).values()
    return type(value).__hash__ is None or any(map(_may_be_unhashable, held))


def check_fixed(scaling: Any, fixed: Any, n: int) -> None:
    """Check what a rule returned for a length: None would drop the rule."""
    if fixed is None:
        msg = (
            f"{type(scaling).__name__}.for_length({n}) returned None; it must return a rule, "
            f"itself where the length of the context does not matter; got {scaling!r}"
        )
        raise RopeError(msg)


def check_components(scaling: Any, position_axes: tuple[int, ...] | None) -> None:
    """Check that a rule of several components of a position knows which pair reads which."""
    components = getattr(scaling, "axes", 1)
    if position_axes is None and numbers.is_int(components) and components > 1:
        msg = (
            f"scaling has frequencies for {components} components of a position, and position_axes "
            f"is None, so that all pairs would read one; got {scaling!r}. Write "
            "RoPE.axial(sections), which makes both, or give position_axes"
        )
        raise RopeError(msg)


def check_frequencies(scaling: Any, frequencies: NDArray[np.float64], pairs: int) -> None:
    """Check what a rule returned."""
    if frequencies.shape != (pairs,) or not np.isfinite(frequencies).all():
        msg = (
            f"scaling {scaling!r} must return {pairs} finite frequencies, one a pair; got shape "
            f"{frequencies.shape}: {frequencies}"
        )
        raise RopeError(msg)
