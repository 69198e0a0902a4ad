"""The exceptions of rope_xp. Tracebacks show the public module name."""

from collections.abc import Iterator
from contextlib import contextmanager


class RopeError(ValueError):
    """A shape, value, device or option does not fit the call."""

    __module__ = "rope_xp"


class RopeConfigError(RopeError):
    """A model configuration does not describe a rotary embedding that a RoPE can express."""

    __module__ = "rope_xp"


class MissingBackendError(ImportError):
    """A package that a path or a backend needs is not installed, or is too old."""

    __module__ = "rope_xp"


BROKEN = (ImportError, AttributeError, OSError, RuntimeError, SyntaxError, TypeError, ValueError)
"""Errors that importing a third-party package may raise."""


@contextmanager
def rewording(
    kinds: type[Exception] | tuple[type[Exception], ...],
    before: str,
    after: str = "",
    into: type[RopeError] = RopeError,
) -> Iterator[None]:
    """Raise errors of some kinds as a RopeError whose message says more around theirs."""
    try:
        yield
    except kinds as error:
        raise into(f"{before}{error}{after}") from error
