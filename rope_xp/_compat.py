"""The only door to array-api-compat."""

from types import ModuleType

import array_api_compat

from rope_xp._typing import Array, Device, Namespace


def namespace_of(x: Array) -> Namespace | None:
    """Return the array API namespace of x, or None if x is no array of the standard."""
    try:
        return array_api_compat.array_namespace(x)
    except TypeError:
        return None


def device_of(x: Array) -> Device:
    """Return the device of x."""
    return array_api_compat.device(x)


def standard_namespace(module: ModuleType) -> Namespace:
    """Return the namespace of the standard for a library's own module (numpy, torch, ...)."""
    name = module.__name__
    if name in ("numpy", "torch", "cupy"):
        # Their own modules lack parts of the standard that array_api_compat adds.
        return __import__(f"array_api_compat.{name}", fromlist=["*"])
    return module
