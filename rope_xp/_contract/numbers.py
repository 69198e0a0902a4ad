"""Checks of plain numbers, and of lengths that some libraries do not know before they compute."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from rope_xp._contract.errors import RopeError

ROTATED = "the array to rotate"
"""How messages call it where several arguments may be meant."""


def is_int(value: object) -> bool:
    """Return whether value is an integer and no truth value."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_positive(name: str, value: object) -> None:
    """Check that value is a positive finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        msg = f"{name} must be a number; got {value!r} ({type(value).__name__})"
        raise TypeError(msg)
    # Spelled without math.isfinite, which torch.compile cannot trace for a symbol.
    if not 0 < value <= sys.float_info.max:
        msg = f"{name} must be positive and finite; got {value!r}"
        raise RopeError(msg)


def check_positive_int(name: str, value: object) -> None:
    """Check that value is a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        msg = f"{name} must be an integer; got {value!r} ({type(value).__name__})"
        raise TypeError(msg)
    check_positive(name, value)


def check_not_negative(name: str, value: object) -> None:
    """Check that value is a finite number from 0."""
    if value != 0 or isinstance(value, bool):
        check_positive(name, value)


def check_share(name: str, value: object) -> None:
    """Check that value is a number above 0, and 1 at most."""
    check_positive(name, value)
    if value > 1:  # type: ignore[operator]  # a number, as was just checked
        msg = f"{name} must be a share, above 0 and at most 1; got {value!r}"
        raise RopeError(msg)


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


def check_length(n: object) -> None:
    """Check that n is a positive number of tokens."""
    if not is_int(n):
        msg = f"n must be an integer number of tokens; got {n!r}"
        raise TypeError(msg)
    if not 0 < n <= sys.float_info.max:  # type: ignore[operator]  # an int, as checked above
        msg = f"n must be a positive number of tokens, within what a float holds; got {n}"
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
    kind = type(rule)
    # Dynamo of torch 2.11 cannot list what an instance holds. Our own classes say it.
    if hasattr(rule, "__dict__") and kind.__module__.partition(".")[0] != "rope_xp":
        return dict(vars(rule))
    names = [field.name for field in dataclasses.fields(rule)]
    return {name: getattr(rule, name) for name in (*names, *getattr(kind, "HELD_TOO", ()))}
