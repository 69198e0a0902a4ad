"""Collapsed layouts of q, k and their results, for both planners."""

from collections.abc import Sequence
from typing import NamedTuple

from rope_xp._core.call import RotationSpec
from rope_xp._core.memory import CollapsedDim, Ints, StridedLayout, collapse_dims


class OperandLayout(NamedTuple):
    """Axes and strides of one array or two. Strides are in bytes or elements, as given."""

    rows: list[CollapsedDim]
    """Batch and token axes, collapsed, with strides of arrays, results and angles."""
    heads: Ints
    """Of each array."""
    head_strides: Ints
    """Of arrays, then results; 0 where there is one head."""
    copies: bool
    """Whether components beside the rotated slice go to new memory."""

    def strides(self) -> list[Ints]:
        """Return the strides of arrays, then of results: along all rows, then along heads."""
        return [
            (*(row.steps[i] for row in self.rows), head) for i, head in enumerate(self.head_strides)
        ]


def collapse_operands(
    spec: RotationSpec,
    arrays: Sequence[StridedLayout],
    angles: Sequence[StridedLayout],
    in_place: Sequence[bool],
) -> OperandLayout:
    """Collapse the axes of arrays, and of as many results, beside angles (batch..., tokens).

    No angles stand for implicit positions 0, 1, 2, ...
    """
    n, axis = len(in_place), spec.axes.heads
    heads = tuple([1 if axis is None else x.shape[axis] for x in arrays[:n]])
    strides = tuple(
        [0 if axis is None or heads[i % n] == 1 else x.strides[axis] for i, x in enumerate(arrays)]
    )
    copies = arrays[0].shape[-1] > spec.rotary_dim and not all(in_place)
    return OperandLayout(
        collapse_dims(spec.axes.batch_tokens, arrays, angles), heads, strides, copies
    )
