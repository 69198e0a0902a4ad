"""What is wrong with the angles of a model, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rope_xp.testing._box import Floats

AT = (4097, 131_071)
"""Positions at which effects are told: past a common trained context, and past 128k."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, or will be.

    Parameters
    ----------
    severity : {"error", "warning"}
        An error makes results wrong now; a warning, once something else happens.
    module : str
        The name of the module in the model, or of the configuration.
    kind : str
        What is wrong, in a word or two that do not change: "meta", "not finite", "zero",
        "uninitialised", "cast", "rounded", "unlike the configuration", "tables cast",
        "attention factor", "angles", "autocast", "layout", "missing key", "static cache",
        "two regimes".
    what : str
        What is wrong, in a sentence.
    effect : mapping of int to float, optional
        The largest error of cos and sin at positions 4097 and 131071, at most 2; None where
        there is no number to it.
    mend : str
        What to do.
    """

    severity: Literal["error", "warning"]
    module: str
    kind: str
    what: str
    effect: Mapping[int, float] | None
    mend: str

    def __str__(self) -> str:
        told = "".join(f"; off by {off:.2g} at position {p}" for p, off in self.shown.items())
        return f"{self.severity}: {self.module}: {self.what}{told}. {self.mend}"

    @property
    def shown(self) -> Mapping[int, float]:
        """The effect, empty where there is none."""
        return self.effect or {}


def effect(found: Floats, expected: Floats) -> dict[int, float]:
    """Return how far cos and sin are off where frequencies are, at most 2.

    Examples
    --------
    >>> effect(np.array([1.0, 0.0]), np.array([1.0, 0.0]))
    {4097: 0.0, 131071: 0.0}
    """
    if found.shape != expected.shape or not np.isfinite(found).all():
        return dict.fromkeys(AT, 2.0)
    with np.errstate(all="ignore"):  # of numbers so large that they have no sine
        off = {p: np.abs(np.exp(1j * p * found) - np.exp(1j * p * expected)) for p in AT}
    return {p: float(np.nan_to_num(each, nan=2.0).max()) for p, each in off.items()}
