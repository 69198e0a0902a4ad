"""How q, k and their results lie, for both planners: rows, heads, what is copied beside a slice."""

from collections.abc import Sequence
from typing import NamedTuple

from rope_xp._contract.call import RotationSpec
from rope_xp._contract.memory import Ints, Rows, StridedLayout, rows


class Layout(NamedTuple):
    """Where the rows of one array or two lie. Steps are in bytes or elements, as strides were."""

    rows: list[Rows]
    """As few axes as lead to all, with steps of arrays, of results and of angles."""
    heads: Ints
    """Of each array."""
    head_steps: Ints
    """Of arrays, then results; 0 where there is one head."""
    copies: bool
    """Whether components beside the rotated slice go to new memory."""

    def steps(self) -> list[Ints]:
        """Return those of each array, then of each result: along all rows, then along heads."""
        return [
            (*(row.steps[i] for row in self.rows), head) for i, head in enumerate(self.head_steps)
        ]


def layout(
    turn: RotationSpec,
    arrays: Sequence[StridedLayout],
    angles: Sequence[StridedLayout],
    in_place: Sequence[bool],
) -> Layout:
    """Return how arrays, and then as many results, lie beside angles with axes (batch..., tokens).

    No angles stand for positions that are counted.
    """
    n, axis = len(in_place), turn.axes.heads
    heads = tuple([1 if axis is None else x.shape[axis] for x in arrays[:n]])
    head_steps = tuple(
        [0 if axis is None or heads[i % n] == 1 else x.strides[axis] for i, x in enumerate(arrays)]
    )
    copies = arrays[0].shape[-1] > turn.rotary_dim and not all(in_place)
    return Layout(rows(turn.axes.rows, arrays, angles), heads, head_steps, copies)
