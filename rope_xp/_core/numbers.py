"""Checks of plain numbers, and of lengths that some libraries do not know before they compute."""

import dataclasses
import operator
import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from rope_xp._core.errors import RopeError

ROTATED = "the array to rotate"
"""How messages call it where several arguments may be meant."""


def plain(value: object) -> Any:
    """Return a number of numpy as Python's, which is hashed, pickled and printed as one.

    Anything else is returned as it is, truth values too.
    """
    if type(value) in (int, float) or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return operator.index(value)
    return float(value) if isinstance(value, Real) else value


def is_int(value: object) -> bool:
    """Return whether value is an integer and no truth value."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_positive(name: str, value: object) -> Any:
    """Check that value is a positive finite number; return it as Python's."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        msg = f"{name} must be a number; got {value!r} ({type(value).__name__})"
        raise TypeError(msg)
    # Spelled without math.isfinite, which torch.compile cannot trace for a symbol.
    if not 0 < number <= sys.float_info.max:
        msg = f"{name} must be positive and finite; got {number!r}"
        raise RopeError(msg)
    return number


def check_int(name: str, value: object) -> int:
    """Check that value is an integer; return it as Python's."""
    if not is_int(value):
        msg = f"{name} must be an integer; got {value!r} ({type(value).__name__})"
        raise TypeError(msg)
    return plain(value)  # type: ignore[no-any-return]  # an int, as was just checked


def check_positive_int(name: str, value: object) -> int:
    """Check that value is a positive integer; return it as Python's."""
    return check_positive(name, check_int(name, value))  # type: ignore[no-any-return]  # likewise


def check_not_negative(name: str, value: object) -> Any:
    """Check that value is a finite number from 0; return it as Python's."""
    is_zero = not isinstance(value, bool) and value == 0
    return plain(value) if is_zero else check_positive(name, value)


def check_share(name: str, value: object) -> Any:
    """Check that value is a number above 0, and 1 at most; return it as Python's."""
    share = check_positive(name, value)
    if share > 1:
        msg = f"{name} must be a share, above 0 and at most 1; got {value!r}"
        raise RopeError(msg)
    return share


def check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    """Check that value is one of a few words."""
    if value not in known:
        msg = f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}"
        raise RopeError(msg)


def check_greater(
    name: str, value: float, than: str, bound: float, *, or_equal: bool = False
) -> None:
    """Check that a field exceeds another, or a number that has no name."""
    if value > bound or (or_equal and value == bound):
        return
    relation = "not be below" if or_equal else "exceed"
    other = f"{than} = {bound!r}" if than else repr(bound)
    msg = f"{name} must {relation} {other}; got {value!r}"
    raise RopeError(msg)


def same_length(n: int | None, m: int | None) -> bool:
    """Return whether two axes are equally long, as far as it is known.

    The standard has None for a length that is not known yet, and so has ndonnx; dask has NaN.
    """
    if n is None or m is None:
        return True
    return n == m or (isinstance(n, float) and isinstance(m, float))


def check_known(argument: str, lengths: Sequence[int | None]) -> None:
    """Check that lengths are numbers. Asked where they matter."""
    if any(n is None or isinstance(n, float) for n in lengths):
        msg = (
            f"{argument} has an axis whose length is not known before it is computed, and it is "
            "needed here; give it a number, in dask by compute_chunk_sizes()"
        )
        raise RopeError(msg)


def alike(a: Any, b: Any) -> bool:
    """Return whether two values are of the same classes through and through, and equal.

    Named tuples of two classes are equal, and so may be dataclasses of which fields differ.
    """
    if a is b:
        return True
    if type(a) in (int, float) and type(b) in (int, float):
        return bool(a == b)
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        return all(alike(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    # What has no hash is an array perhaps, which has more than one answer.
    return type(a).__hash__ is not None and (a == b) is True


def held_by(rule: Any) -> dict[str, Any]:
    """Return what an instance of a dataclass holds, also what dataclasses.fields does not name."""
    # Dynamo of torch 2.11 cannot list what an instance holds. Our own classes hold their fields.
    if hasattr(rule, "__dict__") and type(rule).__module__.partition(".")[0] != "rope_xp":
        return dict(vars(rule))
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}
