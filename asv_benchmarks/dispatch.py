"""What is left of a call when nothing is computed: recognising, checking, choosing."""

from collections.abc import Callable
from unittest import mock

import numpy as np

import rope_xp
from rope_xp._arguments import positions as _positions
from rope_xp._bench import clock
from rope_xp._contract.call import UNKNOWN
from rope_xp._rotation import angles, pairs

from . import common

ROPE = rope_xp.RoPE(layout="half")


def _constant(value: object) -> Callable[..., object]:
    # A Mock would do the same in 20 us.
    def same(*_: object, **__: object) -> object:
        return value

    return same


def track_overhead() -> float:
    """Microseconds of an apply() in numpy that are neither rotation nor angles: at most 5.

    All that computes is replaced by constants. What is left recognises and checks arguments and
    picks the path.
    """
    target, q, k, positions = common.case("numpy:cpu", 1, common.POSITION)
    table = np.ones((1, 64), np.float32)
    tables = target.backend.tables(ROPE, 128, False, False, q)
    resolved = (positions, None, UNKNOWN)
    loops, rounds = common.LOOPS

    with (
        mock.patch.object(angles, "cos_sin", _constant((table, table))),
        mock.patch.object(pairs, "rotate", _constant(q)),
        mock.patch.object(_positions, "resolve_positions", _constant(resolved)),
        mock.patch.object(target.backend, "tables", _constant(tables)),
        rope_xp.use_backend("portable"),
    ):
        return clock.best_microseconds(
            target, lambda: ROPE.apply(q, k, positions), 10 * loops, rounds
        )


track_overhead.unit = "us"
track_overhead.version = "1"
