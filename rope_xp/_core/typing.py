"""Names for what the array API standard has no runtime type for."""

from typing import Any, Literal, TypeAlias, TypeVar

# The standard has no array class.
Array: TypeAlias = Any
Namespace: TypeAlias = Any
Device: TypeAlias = Any

Layout: TypeAlias = Literal["interleaved", "half", "interleaved_to_half"]

# The array class of the argument is that of the result.
ArrayT = TypeVar("ArrayT")
