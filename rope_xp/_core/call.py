"""One checked call, as plain data: arrays, where their angles come from, what is done to them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from rope_xp._core.library import ArrayLibrary, DigitTables, TableKey
from rope_xp._core.typing import Array, Device, Layout

LIMIT = 1 << 31
"""Positions have a modulus below this."""
DIGIT_BITS = 11
DIGIT = 1 << DIGIT_BITS
"""Positions are looked up by their digits in this base, see :mod:`rope_xp._rotation.tables`."""


class PositionRange(NamedTuple):
    """What is known of positions before they are looked up."""

    digits: int
    """How many digits they need, 1 to 3."""
    signed: bool
    """Whether some may be negative."""
    checked: bool
    """Whether all are known to lie within the limit."""


UNKNOWN = PositionRange(digits=3, signed=True, checked=False)
COUNTED = PositionRange(digits=3, signed=False, checked=True)
"""Of 0, 1, ... to a number that only a compiler's symbol stands for."""
_POSITIVE = tuple(PositionRange(digits, signed=False, checked=True) for digits in (1, 2, 3))
_SIGNED = tuple(PositionRange(digits, signed=True, checked=True) for digits in (1, 2, 3))


def range_of(lowest: int, highest: int) -> PositionRange:
    """Return the reach of positions between lowest and highest, both within the limit."""
    if lowest < 0:
        bound = max(-lowest, highest)
        return _SIGNED[(bound >= DIGIT) + (bound >= DIGIT * DIGIT)]
    return _POSITIVE[(highest >= DIGIT) + (highest >= DIGIT * DIGIT)]


class Axes(NamedTuple):
    """Where the named axes of an array lie, counted from its front."""

    names: str
    tokens: int
    heads: int | None
    batch: tuple[int, ...]
    in_order: bool
    """Whether batch, then tokens, stand in the order in which positions have them."""
    after_heads: int
    """How many batch and tokens axes follow the heads axis."""
    insert_heads: tuple[object, ...]
    """The index that gives a table (batch..., tokens, r/2) an axis in place of heads."""

    def __hash__(self) -> int:  # a slice has none before Python 3.12, and names say all
        return hash(self.names)

    @property
    def batch_tokens(self) -> tuple[int, ...]:
        """The axes that positions have: batch, then tokens."""
        return (*self.batch, self.tokens)


class RotationSpec(NamedTuple):
    """What is done to every array of a call."""

    axes: Axes
    """Where tokens, heads and batch axes lie. head_dim is last."""
    layout: Layout
    """How components pair up, see :class:`rope_xp.RoPE`."""
    rotary_dim: int
    rotary_offset: int
    """Of the rotated slice of head_dim; both in range, the offset not negative."""
    inverse: bool
    """Whether arrays turn by the negative angle, with the layouts read and written swapped."""

    @property
    def interleaved(self) -> tuple[bool, bool]:
        """Whether the two of a pair are neighbours where they are read, and where written."""
        read, written = self.layout != "half", self.layout == "interleaved"
        return (written, read) if self.inverse else (read, written)


# --- where angles come from ----------------------------------------------------------------------


# The next four are made anew in every call and written by nobody; freezing them would cost 2 us.
@dataclass(slots=True, eq=False)
class TableLookup:
    """Angles to be looked up: what :func:`rope_xp._rotation.angles.cos_sin` needs.

    Parameters
    ----------
    tables : Digits
        What they are looked up in, on the device of the arrays.
    whole : array or None
        Whole part of the positions, integers, (batch..., tokens); with several position
        components (components, batch..., tokens). None: 0, 1, ... tokens - 1.
    part : array or None
        Fractional part in [0, 1), same shape; None where positions are integers.
    device : device or None
        Where the tables lie.
    tokens : int
        Length of the tokens axis; asked only where positions are counted.
    reach : Reach
        What is known about the size of the positions.
    components : int
        0 where positions have no leading axis of components, else its length.
    recipe : Recipe or None
        What the tables are made of; None where that is over, in what a compiler traces.
    """

    tables: DigitTables
    whole: Array | None
    part: Array | None
    device: Device
    tokens: int
    position_range: PositionRange
    components: int
    table_key: TableKey | None = None


@dataclass(slots=True, eq=False)
class CosSin:
    """Angles that the caller computed: cos and sin, (batch..., tokens, r/2)."""

    cos: Array
    sin: Array


@dataclass(slots=True, eq=False)
class RelativeAngles:
    """The angles of ``new`` less those of ``old``, composed before any array is rotated by them.

    ``old`` was looked up for the inverse, so that its factor on cos and sin is undone.
    """

    new: TableLookup
    old: TableLookup


AngleSource: TypeAlias = TableLookup | CosSin | RelativeAngles


class Leaf(NamedTuple):
    """An array that angles depend on, and how many axes it has around (batch..., tokens)."""

    array: Array
    lead: int
    trail: int


def leaves(source: AngleSource) -> tuple[Leaf, ...]:
    """Return the arrays that angles depend on; those of positions that are counted are none."""
    if isinstance(source, CosSin):
        return Leaf(source.cos, 0, 1), Leaf(source.sin, 0, 1)
    if isinstance(source, RelativeAngles):
        return leaves(source.new) + leaves(source.old)
    lead = int(source.components > 0)
    return tuple(Leaf(x, lead, 0) for x in (source.whole, source.part) if x is not None)


def with_leaves(source: AngleSource, arrays: Sequence[Array]) -> AngleSource:
    """Return a source with other arrays in place of its leaves."""
    if isinstance(source, CosSin):
        return CosSin(*arrays)
    if isinstance(source, RelativeAngles):
        n = len(leaves(source.new))
        return RelativeAngles(
            with_leaves(source.new, arrays[:n]),  # type: ignore[arg-type]  # as of a Lookup
            with_leaves(source.old, arrays[n:]),  # type: ignore[arg-type]  # likewise
        )
    if source.whole is None:
        return source
    whole, *part = arrays
    return replace(source, whole=whole, part=part[0] if part else None)


# --- a call --------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Call:
    """One validated call: every shape, dtype and device in it fits.

    Parameters
    ----------
    backend : ArrayLibrary
        The glue of the library that all arrays belong to.
    arrays : tuple of array
        One or two arrays (q and k) to rotate, each with the same axes.
    angles : tuple of Lookup, Given or Difference
        One for each array, or a single one that all share.
    out : tuple of array or None
        Where to write, one for each array, each either identical with its array or disjoint from
        all of them; None for new arrays.
    turn : Turn
        What is done to each array.
    """

    backend: ArrayLibrary
    arrays: tuple[Array, ...]
    angles: tuple[AngleSource, ...]
    out: tuple[Array, ...] | None
    spec: RotationSpec

    def groups(
        self, out: tuple[Array, ...] = (), *, one_dtype: bool
    ) -> list[tuple[tuple[Array, ...], tuple[Array, ...], AngleSource]]:
        """Return (arrays, out, source) of what can be rotated at once: q and k that share angles.

        With ``one_dtype`` only arrays of the same dtype go together.
        """
        arrays, angles = self.arrays, self.angles
        if len(angles) == 1 and (not one_dtype or arrays[0].dtype == arrays[-1].dtype):
            return [(arrays, out, angles[0])]
        return [
            ((x,), out[i : i + 1], angles[min(i, len(angles) - 1)]) for i, x in enumerate(arrays)
        ]
