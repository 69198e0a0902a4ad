"""Kernel parameters: lengths and strides of arrays, as int64 numbers. No address is among them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, count, islice, pairwise, product
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from rope_xp._core.call import RotationSpec
from rope_xp._core.dtypes import FLOATS
from rope_xp._core.memory import (
    CollapsedDim,
    Extent,
    StridedLayout,
    collapse_dims,
)

NARROW_STEP = 8
"""Pairs of the smallest vector step, but for the last ones of a head."""
BLOCK = 64
"""Tokens whose cos and sin stay in the first cache: 32 KB at head_dim 128."""
BYTES_TO_RELEASE = 1 << 15
"""Larger arrays are rotated while other threads run Python. Smaller ones take a microsecond."""
STREAMED_MIN_BYTES = 1 << 22
STREAMED_BLOCK_BYTES = 1 << 21
"""Bytes of cos and sin of a thread (twice as many with mixed components), where tokens of a head
are adjacent, heads far apart, and arrays have ``STREAMED_MIN_BYTES``: reading many tokens in a row
streams memory, and fills a new page soon after the kernel zeroed it. 4096 tokens at head_dim 128,
in float32, take 0.7 of the time of 64 on one core and two of Zen 4."""
STREAM, CHECK = 1, 2
"""Bits of a kernel's mode: to write results past the caches, and to check positions first."""
NO_MEMORY, OUT_OF_RANGE = 1, 2
"""What a kernel returns that has written nothing; else 0."""
OPERAND_FIELDS = (
    *("heads", "x_batch", "x_token", "x_head", "x_skip", "y_batch", "y_token", "y_head", "y_skip"),
    *("offset_batch", "offset_token", "offset_skip"),
)
"""``offset`` are further offsets of the tokens of y, which an array holds."""
TABLES = ("low", "middle", "high", "frequencies", "component")
"""Addresses of tables, in the order of DigitTables."""
FIELDS = (
    *("rows", "length", "components", "block", "inverse", "negate_given", "copies_given"),
    *("before", "after", "use_tables", "implicit_positions", "has_fraction"),
    *("segments", "needs_select"),
    *("a_skip", "a_batch", "a_token", "a_segment", "b_skip", "b_batch", "b_token", "b_segment"),
    *(f"q_{name}" for name in OPERAND_FIELDS),
    *(f"k_{name}" for name in OPERAND_FIELDS),
)
"""Strides and offsets are in bytes. ``a`` and ``b`` are positions and their fractions, or cos and
sin; ``segment`` is the stride of their last axis, components or pairs. The bounds of the segments
follow the fields, see :func:`split_segments`."""


class NormKey(NamedTuple):
    """The norm that a kernel is compiled for."""

    weight: str
    """The dtype of weights, "" for none."""
    before: int
    """Normalized components before the rotated slice."""
    after: int

    @property
    def has_rest(self) -> bool:
        """Whether components outside the slice are normalized too."""
        return self.before + self.after > 0


class KernelKey(NamedTuple):
    """What a kernel is compiled for."""

    dtype: str
    interleaved_in: bool
    """Whether pairs of the input are neighbours, (2i, 2i+1), and not (i, i + r/2)."""
    interleaved_out: bool
    """Whether those of the output are."""
    pairs: int
    """Pairs of a row."""
    norm: NormKey | None = None
    whole: bool = True
    """Whether all pairs read the same component."""
    scatters: bool = False
    """Whether tokens of k have offsets in its result, which cost small heads up to a tenth."""
    rounds_bfloat16: bool = False
    """Whether the processor rounds vectors to bfloat16. Only the compiler sets this."""

    @property
    def size(self) -> int:
        return FLOATS[self.dtype]

    @property
    def double(self) -> bool:
        """Whether arithmetic and angles are float64, not float32."""
        return self.dtype == "float64"

    @property
    def width(self) -> int:
        """The bytes of a number in arithmetic."""
        return 8 if self.double else 4


class Layouts(NamedTuple):
    """Where the elements of all that a call reads and writes lie around addresses, in bytes."""

    in_place: tuple[bool, ...]
    """Whether each result is the array itself."""
    arrays: tuple[Extent, ...]
    weights: tuple[Extent, ...]
    """Of a norm."""
    angles: tuple[Extent, ...]
    """Of positions and their fractions, (batch..., tokens, components), or of cos and sin."""
    offsets: tuple[Extent, ...]
    """Of offsets of the tokens of k in its result, with the axes of the call; empty without any."""
    results: tuple[Extent, ...]


@dataclass(frozen=True, eq=False, slots=True)
class CpuPlan:
    """A function of layouts and of the rotation alone, so that it fits all arrays of these."""

    params: tuple[np.ndarray, ...]
    """One row for each kernel call."""
    addresses: tuple[int, ...]
    """Of these rows."""
    rows: int
    """Batch times tokens of a kernel call."""
    bytes: int
    """Of all arrays, without results."""
    elements: int
    """Of the same."""
    releases: bool
    """Whether other threads run Python meanwhile, which takes longer than to rotate few bytes."""
    in_place: bool
    """Whether each result is its array."""
    extents: tuple[Extent, ...]
    """Of arrays, weights, angles and offsets, then of results unless in place, around the addresses
    that a launch is given."""
    overlaps: tuple[tuple[int, int, int, int], ...]
    """Which of these must not overlap: a result, and whatever else is read or written. They may
    where the distance of the second from the first lies between two numbers."""
    arrange: Callable[[Sequence[int]], tuple[int, ...]]
    """Puts the addresses of these, and a 0 behind them, in the order of a kernel's arguments."""
    norm: tuple[int, ...]
    """The bits of eps and of the offset of weights; zeros without a norm."""


def build_plan(
    layouts: Layouts, spec: RotationSpec, use_tables: bool, component: Sequence[int]
) -> CpuPlan:
    """Return the plan of one array or two, which share their angles.

    These are looked up if ``use_tables``, and else given as cos and sin. ``component`` holds that
    of positions which each frequency reads; it is empty without components.
    """
    axes, pairs = spec.axes, int(spec.rotary_dim) // 2  # torch.jit.trace has tensors
    xs, angles = [x.memory for x in layouts.arrays], [x.memory for x in layouts.angles]
    itemsize, sizes = xs[0].itemsize, [x.itemsize * int(np.prod(x.shape)) for x in xs]
    operands = list(zip(xs, [y.memory for y in layouts.results], strict=True))
    arrays = [*chain(*operands), *(x.memory for x in layouts.offsets)]
    rows_of_angles = [StridedLayout(a.shape[:-1], a.strides[:-1]) for a in angles]
    dims = collapse_dims(axes.batch_tokens, arrays, rows_of_angles)
    no_dim = CollapsedDim(1, (0,) * (len(arrays) + max(len(rows_of_angles), 1)))
    if not rows_of_angles and not (dims and dims[-1].steps[-1]):
        dims.append(no_dim)  # the single token, whose axis counts implicit positions
    *outer, batch, token = [no_dim] * (2 - len(dims)) + dims
    heads_apart, numbers = False, dict[str, int]()
    for i, (name, (x, y)) in enumerate(zip("qk", operands, strict=False)):
        numbers[f"{name}_heads"] = 1
        if axes.heads is not None:
            numbers[f"{name}_heads"], step = x.shape[axes.heads], x.strides[axes.heads]
            numbers[f"{name}_x_head"], numbers[f"{name}_y_head"] = step, y.strides[axes.heads]
            heads_apart |= x.shape[axes.heads] > 1 and abs(step) > abs(token.steps[2 * i])
    block = BLOCK
    if heads_apart and sum(sizes) >= STREAMED_MIN_BYTES:
        block = max(BLOCK, STREAMED_BLOCK_BYTES // (2 * max(itemsize, 4) * pairs))
    segments, needs_select = split_segments(component, pairs)
    numbers |= {
        "rows": batch.length * token.length,
        "components": max(component, default=0) + 1,
        "length": token.length,
        "block": min(block, token.length),
        "inverse": spec.inverse,
        "negate_given": spec.inverse and not use_tables,
        "copies_given": not use_tables and any(a.strides[-1] != max(itemsize, 4) for a in angles),
        "before": spec.rotary_offset * itemsize,
        "after": (arrays[0].shape[-1] - spec.rotary_offset - 2 * pairs) * itemsize,
        "use_tables": use_tables,
        "implicit_positions": not angles,
        "has_fraction": use_tables and len(angles) > 1,
        "segments": len(segments),
        "needs_select": needs_select,
        **{f"{name}_segment": a.strides[-1] for name, a in zip("ab", angles, strict=False)},
    }
    names = ["q_x", "q_y", "k_x", "k_y", "k_offset"][: len(arrays)]
    names += "ab"[: len(angles)]
    for i, name in enumerate(names):
        numbers[f"{name}_batch"], numbers[f"{name}_token"] = batch.steps[i], token.steps[i]
    params = []
    for index in product(*(range(dim.length) for dim in outer)):
        for i, name in enumerate(names):
            numbers[f"{name}_skip"] = sum(n * d.steps[i] for n, d in zip(index, outer, strict=True))
        fields = [numbers.get(name, 0) for name in FIELDS]
        params.append(np.array([*fields, *(n for segment in segments for n in segment)], np.int64))
    addresses = tuple([row.ctypes.data for row in params])
    in_place = all(layouts.in_place)
    groups, places = layouts[1:-1] if in_place else layouts[1:], count()
    extents = tuple(chain(*groups))
    given, weights, inputs, offsets, *written = ([*islice(places, len(g))] for g in groups)
    results = written[0] if written else given
    read = [*(i for i in given if not layouts.in_place[i]), *weights, *inputs, *offsets]
    overlaps = [
        (i, j, extents[i].start - extents[j].end, extents[i].end - extents[j].start)
        for i, j in (*combinations(results, 2), *product(results, read))
    ]
    pairs_of = ([*group, -1, -1][:2] for group in (given, results, inputs, weights))
    return CpuPlan(
        tuple(params),
        addresses,
        numbers["rows"],
        sum(sizes),
        sum(sizes) // itemsize,
        sum(sizes) > BYTES_TO_RELEASE,
        in_place,
        extents,
        tuple(overlaps),
        itemgetter(*chain(*pairs_of), *[*offsets, -1][:1]),
        tuple(np.array(spec.norm[:2] if spec.norm else (0, 0), np.float64).view(np.int64).tolist()),
    )


def split_segments(component: Sequence[int], pairs: int) -> tuple[list[tuple[int, int, int]], bool]:
    """Return segments (component, first, end) of frequencies, and whether they are mixed.

    Mixed components have one segment each, of all frequencies, from which the kernel selects.
    """
    if not component:
        return [(0, 0, pairs)], False
    starts = [i for i, c in enumerate(component) if i == 0 or c != component[i - 1]]
    components = max(component) + 1
    if len(starts) > components:
        return [(c, 0, pairs) for c in range(components)], True
    # In whole vector steps: the next segment overwrites the surplus.
    ends = [a + -(-(b - a) // NARROW_STEP) * NARROW_STEP for a, b in pairwise([*starts, pairs])]
    return [(component[a], a, min(b, pairs)) for a, b in zip(starts, ends, strict=True)], False
