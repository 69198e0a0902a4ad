"""The exceptions of rope_xp. Tracebacks show the public module name."""


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
