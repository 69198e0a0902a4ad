"""Checks of numbers, and of lengths that may be unknown before arrays are computed."""

import dataclasses
import operator
import sys
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from rope_xp._core.errors import RopeError

ROTATED = "the array to rotate"
"""The argument in messages of functions that differ in its name."""


def plain(value: object) -> Any:
    """Return a number of numpy as Python's, and anything else (bools too) as it is."""
    if type(value) in (int, float) or isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return operator.index(value)
    return float(value) if isinstance(value, Real) else value


def is_int(value: object) -> bool:
    """Return whether value is an integer and no bool."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_positive(name: str, value: object, *, or_zero: bool = False) -> Any:
    """Check that value is a positive finite number, or zero; return it as Python's."""
    number = plain(value)
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise TypeError(f"{name} must be a number; got {value!r} ({type(value).__name__})")
    # Spelled without math.isfinite, which torch.compile cannot trace for a symbol.
    if not 0 < number <= sys.float_info.max and not (or_zero and number == 0):
        bound = "at least 0" if or_zero else "positive"
        raise RopeError(f"{name} must be {bound} and finite; got {number!r}")
    return number


def check_int(name: str, value: object) -> int:
    """Check that value is an integer; return it as Python's."""
    if not is_int(value):
        raise TypeError(f"{name} must be an integer; got {value!r} ({type(value).__name__})")
    return plain(value)  # type: ignore[no-any-return]  # an int, as was just checked


def check_positive_int(name: str, value: object) -> int:
    """Check that value is a positive integer; return it as Python's."""
    return check_positive(name, check_int(name, value))  # type: ignore[no-any-return]  # an int


def check_even(name: str, value: object, reason: str = "because pairs are rotated") -> int:
    """Check that value is an even positive integer; return it as Python's."""
    number = check_positive_int(name, value)
    if number % 2:
        raise RopeError(f"{name} must be even and positive, {reason}; got {number}")
    return number


def check_not_negative(name: str, value: object) -> Any:
    """Check that value is a finite number from 0; return it as Python's."""
    return check_positive(name, value, or_zero=True)


def check_share(name: str, value: object) -> Any:
    """Check that value is a number in (0, 1]; return it as Python's."""
    share = check_positive(name, value)
    if share > 1:
        raise RopeError(f"{name} must be above 0 and at most 1; got {value!r}")
    return share


def check_one_of(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise RopeError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")


def same_length(n: int | None, m: int | None) -> bool:
    """Return whether two lengths are equal or unknown: None in the standard, NaN in dask."""
    if n is None or m is None:
        return True
    return n == m or (isinstance(n, float) and isinstance(m, float))


def can_broadcast(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether an array of one shape broadcasts to another, which does not change."""
    pairs = zip(shape, to[len(to) - len(shape) :], strict=False)
    return len(shape) <= len(to) and all(n == 1 or same_length(n, m) for n, m in pairs)


def check_known(argument: str, lengths: Sequence[int | None]) -> None:
    """Check that lengths are known, where a result depends on them."""
    if any(n is None or isinstance(n, float) for n in lengths):
        raise RopeError(
            f"{argument} has an axis of unknown length, which is needed here; compute the length "
            "first, in dask with compute_chunk_sizes()"
        )


def is_identical(a: Any, b: Any) -> bool:
    """Return whether two values are equal and of the same classes, field by field.

    ``==`` is not enough: named tuples of two classes may be equal, and dataclasses ignore fields.
    """
    if a is b:
        return True
    if type(a) in (int, float) and type(b) in (int, float):
        return bool(a == b)
    if type(a) is not type(b):
        return False
    if dataclasses.is_dataclass(a):
        names = [field.name for field in dataclasses.fields(a)]
        return all(is_identical(getattr(a, name), getattr(b, name)) for name in names)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(is_identical, a, b))
    # Unhashable values such as arrays have no single truth value under ``==``.
    return type(a).__hash__ is not None and (a == b) is True


def get_attributes(scaling: Any) -> dict[str, Any]:
    """Return all attributes of a dataclass instance, fields or not."""
    # Dynamo of torch 2.11 cannot trace vars(). Our own classes have no other attributes.
    if hasattr(scaling, "__dict__") and type(scaling).__module__.partition(".")[0] != "rope_xp":
        return dict(vars(scaling))
    return {field.name: getattr(scaling, field.name) for field in dataclasses.fields(scaling)}
