"""One checked call as plain data: arrays, sources of their angles, and the rotation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._core.typing import Array, Device, Layout

LIMIT = 1 << 31
"""Bound of the modulus of positions."""
DIGIT_BITS = 11
DIGIT = 1 << DIGIT_BITS
"""Base of the digits of positions, see :mod:`rope_xp._rotation.tables`."""


class PositionRange(NamedTuple):
    """Bounds of positions that are known before lookup."""

    digits: int
    """Number of digits, 1 to 3."""
    signed: bool
    """Whether some may be negative."""
    checked: bool
    """Whether all lie within the limit."""


UNKNOWN = PositionRange(digits=3, signed=True, checked=False)
COUNTED = PositionRange(digits=3, signed=False, checked=True)
"""Of 0, 1, ... up to a length that is a compiler's symbol."""


def get_position_range(lowest: int, highest: int) -> PositionRange:
    """Return the range of positions between lowest and highest, both within the limit."""
    bound = max(-lowest, highest)
    digits = 1 + (bound >= DIGIT) + (bound >= DIGIT * DIGIT)
    return PositionRange(digits, signed=lowest < 0, checked=True)


class Axes(NamedTuple):
    """Where the named axes of an array lie, counted from its front."""

    names: str
    tokens: int
    heads: int | None
    batch: tuple[int, ...]
    in_order: bool
    """Whether batch, then tokens, have the order of positions."""

    @property
    def batch_tokens(self) -> tuple[int, ...]:
        """The axes that positions have: batch, then tokens."""
        return (*self.batch, self.tokens)


def make_axes(names: str) -> Axes:
    """Return where the axes of checked names lie."""
    tokens, heads = names.index("s"), names.index("h") if "h" in names else None
    batch = tuple(i for i, name in enumerate(names) if name not in "shd")
    in_order = not batch or batch[-1] < tokens
    return Axes(names, tokens, heads, batch, in_order)


class NormSpec(NamedTuple):
    """RMSNorm of every array of a call before its rotation, weights aside."""

    eps: float
    weight_offset: float
    """Added to weights."""
    round_between: bool
    """Whether to round to the dtype of the array before the rotation too."""
    over_slice: bool
    """Whether the rotated slice alone is normalized."""


class RotationSpec(NamedTuple):
    """The rotation of every array of a call, angles aside."""

    axes: Axes
    layout: Layout
    rotary_dim: int
    rotary_offset: int
    """Start of the rotated slice of head_dim, not negative."""
    inverse: bool
    """Whether to rotate by the negative angle, with input and output layouts swapped."""
    norm: NormSpec | None = None


def get_interleaved(spec: RotationSpec) -> tuple[bool, bool]:
    """Return whether pairs are neighbouring components on input, and on output.

    No property: torch.compile traces none of a NamedTuple before torch 2.8.
    """
    on_input, on_output = spec.layout != "half", spec.layout == "interleaved"
    return (on_output, on_input) if spec.inverse else (on_input, on_output)


# The next three are immutable by convention: frozen classes would cost each call 2 us.
@dataclass(slots=True, eq=False)
class TableLookup:
    """Positions, and the tables on their device to look them up in."""

    tables: DigitTables
    whole: Array | None
    """Integer part of the positions, (batch..., tokens), with a leading axis of components if there
    are several. None: 0, 1, ... tokens - 1."""
    part: Array | None
    """Fractional part in (-1, 1), same shape; None for integer positions."""
    device: Device
    tokens: int
    """Length of the tokens axis, read where ``whole`` is None."""
    position_range: PositionRange
    components: int
    """Length of the leading axis of components, 0 without one."""
    table_key: TableKey | None = None
    """The key of the tables; None in what a compiler traces."""


@dataclass(slots=True, eq=False)
class CosSin:
    """cos and sin of the caller, (batch..., tokens, r/2).

    With (batch..., tokens, heads, r/2), as many axes as the arrays have, they differ by head, until
    :mod:`rope_xp._dispatch.heads` makes heads a batch axis.
    """

    cos: Array
    sin: Array


@dataclass(slots=True, eq=False)
class Slots:
    """Slots of a cache, to which the keys of a call go in place of a result."""

    numbers: Array
    """Integers, (batch..., tokens), or (tokens,) for all sequences; below zero for padding."""
    cache: Array
    """(pages, slots, heads, head_dim), a view of what the caller gave. Slots are numbered through
    all pages, or in each sequence where pages are sequences."""
    of_sequences: bool
    is_padded: bool
    """Whether some may be padding."""


AngleSource: TypeAlias = TableLookup | CosSin


class Leaf(NamedTuple):
    """An array of a source, with its number of axes before and after (batch..., tokens)."""

    array: Array
    lead: int
    trail: int


def leaves(source: AngleSource) -> tuple[Leaf, ...]:
    """Return the arrays that angles depend on, none for implicit positions."""
    if isinstance(source, CosSin):
        return Leaf(source.cos, 0, 1), Leaf(source.sin, 0, 1)
    lead = int(source.components > 0)
    return tuple(Leaf(x, lead, 0) for x in (source.whole, source.part) if x is not None)


def with_leaves(source: AngleSource, arrays: Sequence[Array]) -> AngleSource:
    """Return a source with its leaves replaced."""
    if isinstance(source, CosSin):
        return CosSin(*arrays)
    if source.whole is None:
        return source
    whole, *part = arrays
    return replace(source, whole=whole, part=part[0] if part else None)


@dataclass(slots=True, eq=False)
class Call:
    """One checked call: every shape, dtype and device in it fits."""

    backend: Any  # a Backend, which stands in a layer above
    arrays: tuple[Array, ...]
    """One or two (q and k) with the same axes."""
    angles: tuple[AngleSource, ...]
    """One for each array, or a single one that all share."""
    out: tuple[Array, ...] | None
    """A result for each array, either that array or disjoint from all; None for new arrays."""
    spec: RotationSpec
    weights: tuple[Array | None, ...] = ()
    """Of the norm, one for each array, None for an array without; empty without a norm."""
    slots: Slots | None = None
    """Where k goes in place of ``out[1]``. ``out`` is None where q is new."""

    def split(self, *, one_dtype: bool) -> list["Call"]:
        """Return calls whose arrays share one source of angles, and a dtype if ``one_dtype``."""
        arrays, angles, out = self.arrays, self.angles, self.out
        if len(angles) == 1 and (not one_dtype or arrays[0].dtype == arrays[-1].dtype):
            return [self]
        # Two arrays have one source or two: -1 is the last of either.
        return [
            replace(
                self,
                arrays=(x,),
                angles=(angles[-i],),
                out=None if out is None else out[i : i + 1],
                weights=self.weights[i : i + 1],
            )
            for i, x in enumerate(arrays)
        ]
