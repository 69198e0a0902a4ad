"""torch in the array API standard, which takes 5 ms to import."""

import array_api_compat.torch as xp

__all__ = ["xp"]
