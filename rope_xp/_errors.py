"""The exceptions of rope_xp."""


class RopeError(ValueError):
    """A shape, value, device or option that cannot be rotated as asked."""


class RopeConfigError(RopeError):
    """A model configuration that does not describe a rotary embedding."""


class MissingBackendError(ImportError):
    """A path was asked for by name, and the package that it needs is not installed."""
