"""Decode: one token, where the limit is what a call costs on the host."""

import importlib
from collections.abc import Callable
from unittest import mock

import numpy as np

import rope_xp
from rope_xp import _angles, _positions, _reference, _rotate

from . import common

ROPE = rope_xp.RoPE(base=common.BASE, layout="half")
POSITION = 5000


class Decode:
    """From positions to rotated q and k: rope_xp beside the formula in common use."""

    params = (common.TARGETS,)
    param_names = ("target",)

    def setup(self, target: str) -> None:
        self.case = common.case(target, 1, POSITION)

    def track_apply(self, target: str) -> float:
        target_, q, k, positions = self.case
        return common.best_microseconds(target_, lambda: ROPE.apply(q, k, positions))

    def track_usual_formula(self, target: str) -> float:
        """The same from the usual formula, its angles shared by q and k; jitted in jax."""
        target_, q, k, positions = self.case
        xp = target_.backend.xp

        def usual(q: object, k: object, positions: object) -> tuple:
            cos, sin = _reference.usual_cos_sin(xp, positions, q.shape[-1], common.BASE)
            return tuple(_reference.usual_apply_tables(xp, x, cos, sin) for x in (q, k))

        if target_.library == "jax":
            usual = importlib.import_module("jax").jit(usual)
        return common.best_microseconds(target_, lambda: usual(q, k, positions))

    track_apply.unit = track_usual_formula.unit = "us"


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
    target, q, k, positions = common.case("numpy:cpu", 1, POSITION)
    table = np.ones((1, 64), np.float32)
    tables = target.backend.tables(ROPE, 128, False, False, q)
    resolved = (positions, None, _angles.UNKNOWN)

    with (
        mock.patch.object(_angles, "cos_sin", _constant((table, table))),
        mock.patch.object(_rotate, "rotate", _constant(q)),
        mock.patch.object(_positions, "resolve", _constant(resolved)),
        mock.patch.object(target.backend, "tables", _constant(tables)),
        rope_xp.use_backend("portable"),
    ):
        return common.best_microseconds(target, lambda: ROPE.apply(q, k, positions), 5000)


track_overhead.unit = "us"
