"""Names for what the array API standard has no runtime type for."""

from typing import Any, Literal, TypeAlias, TypeVar

# The standard names no array class, so a checker can only be told "some array".
Array: TypeAlias = Any
Namespace: TypeAlias = Any
Device: TypeAlias = Any

Layout: TypeAlias = Literal["interleaved", "half", "interleaved_to_half"]

# "The same kind back": whatever array class goes in comes out.
ArrayT = TypeVar("ArrayT")
