"""From a call to launches on a GPU: plans, which are numbers, and kernels of Triton and CUDA."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from rope_xp._core.call import RotationSpec
from rope_xp._core.memory import CollapsedDim, Ints, StridedLayout, collapse_dims

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


class OperandLayout(NamedTuple):
    """Axes and strides of one array or two. Strides are in bytes or elements, as given."""

    rows: list[CollapsedDim]
    """Batch and token axes, collapsed, with strides of arrays, results, angles and slots."""
    heads: Ints
    """Of each array."""
    head_strides: Ints
    """Of arrays, then results; 0 where there is one head."""
    copies: bool
    """Whether components outside the rotated slice go to new memory."""

    def strides(self) -> list[Ints]:
        """Return the strides of arrays, then of results: along all rows, then along heads."""
        heads = enumerate(self.head_strides)
        return [(*(row.steps[i] for row in self.rows), head) for i, head in heads]


def collapse_operands(
    spec: RotationSpec,
    arrays: Sequence[StridedLayout],
    angles: Sequence[StridedLayout | None],
    in_place: Sequence[bool],
) -> OperandLayout:
    """Collapse the axes of arrays, as many results, and angles and slots (batch..., tokens).

    None stands for implicit positions 0, 1, 2, ...
    """
    n, axis = len(in_place), spec.axes.heads
    heads = tuple([1 if axis is None else x.shape[axis] for x in arrays[:n]])
    strides = tuple(
        [0 if axis is None or heads[i % n] == 1 else x.strides[axis] for i, x in enumerate(arrays)]
    )
    copies = arrays[0].shape[-1] > spec.rotary_dim and not all(in_place)
    rows = collapse_dims(spec.axes.batch_tokens, arrays, angles)
    return OperandLayout(rows, heads, strides, copies)


class SlotLayout(NamedTuple):
    """Layout of slots, (batch..., tokens), and of the cache that they number."""

    shape: Ints
    strides: Ints
    dtype: str
    page: int
    """Slots of a page; all where there is one page, or where pages are sequences."""
    limit: int
    """Slots of all pages, or of a sequence."""
    page_step: int
    """Stride of pages, 0 where slots are not numbered through them."""
    slot_step: int


def lay_out_keys(
    cache: StridedLayout,
    k: StridedLayout,
    slots: StridedLayout,
    dtype: str,
    spec: RotationSpec,
    of_sequences: bool,
) -> tuple[StridedLayout, SlotLayout]:
    """Return the strides of k's result in a cache, but for slots, and the layout of slots.

    ``cache`` is (pages, slots, heads, head_dim), as in :class:`rope_xp._core.call.Slots`.
    """
    pages, page = cache.shape[:2]
    page_step, slot_step, head_step, step = cache.strides
    strides = [0] * len(k.shape)
    strides[-1] = step
    if spec.axes.heads is not None:
        strides[spec.axes.heads] = head_step
    for axis in spec.axes.batch if of_sequences else ():  # there is one at most
        strides[axis] = page_step
    through = pages > 1 and not of_sequences
    numbers = page, page * (1 if of_sequences else pages), page_step if through else 0, slot_step
    return StridedLayout(k.shape, tuple(strides)), SlotLayout(*slots, dtype, *numbers)


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let the driver load a module, which it declines in any other capture mode.

    Loading touches no stream, so the graph stays whole; torch allocates in captures the same way.
    """
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except OSError:  # ROCm, Windows or no GPU: a capture there takes kernels that are loaded
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchanged = exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if exchanged:
            exchange(ctypes.byref(mode))
