"""The exceptions of rope_xp, which give its name as their module: tracebacks are public too."""


class RopeError(ValueError):
    """A shape, value, device or option that cannot be rotated as asked."""

    __module__ = "rope_xp"


class RopeConfigError(RopeError):
    """A model configuration that does not describe a rotary embedding."""

    __module__ = "rope_xp"


class MissingBackendError(ImportError):
    """A path was asked for by name, and the package that it needs is not installed."""

    __module__ = "rope_xp"


BROKEN = (ImportError, AttributeError, OSError, RuntimeError, SyntaxError, TypeError, ValueError)
"""What importing somebody's package may raise; nobody asked for it by name, so the others go on."""
