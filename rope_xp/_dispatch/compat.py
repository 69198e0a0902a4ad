"""The only door to array-api-compat."""

import array_api_compat

from rope_xp._contract.typing import Array, Device, Namespace


def namespace_of(x: Array) -> Namespace | None:
    """Return the array API namespace of x, or None if x is no array of the standard."""
    try:
        return array_api_compat.array_namespace(x)
    except TypeError:
        return None


def device_of(x: Array) -> Device:
    """Return the device of x."""
    return array_api_compat.device(x)
