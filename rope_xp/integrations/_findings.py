"""The findings of :func:`rope_xp.integrations.transformers.check`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from rope_xp.testing._box import Floats

POSITIONS = (4097, 131_071)
"""Positions of reported errors: past a common trained context, and past 128k."""


@dataclass(frozen=True)
class Finding:
    """One fault of a model's rotary embedding.

    Parameters
    ----------
    severity : {"error", "warning"}
        An error makes results wrong now, a warning makes them wrong in some later call.
    module : str
        The name of the module in the model, or of the configuration.
    kind : str
        The kind of fault, which programs may compare: "meta", "not finite", "zero",
        "uninitialised", "cast", "rounded", "unlike the configuration", "tables cast",
        "attention factor", "angles", "autocast", "layout", "missing key", "static cache",
        "two regimes".
    what : str
        The fault, in a sentence.
    effect : mapping of int to float, optional
        The largest error of cos and sin at positions 4097 and 131071, at most 2; None if unknown.
    mend : str
        The remedy.
    """

    severity: Literal["error", "warning"]
    module: str
    kind: str
    what: str
    effect: Mapping[int, float] | None
    mend: str

    def __str__(self) -> str:
        effect = (self.effect or {}).items()
        errors = "".join(f"; off by {error:.2g} at position {p}" for p, error in effect)
        return f"{self.severity}: {self.module}: {self.what}{errors}. {self.mend}"


def compute_effect(frequencies: Floats, expected: Floats) -> dict[int, float]:
    """Return the errors of cos and sin by frequencies that are not the expected ones, at most 2."""
    if frequencies.shape != expected.shape or not np.isfinite(frequencies).all():
        return dict.fromkeys(POSITIONS, 2.0)
    with np.errstate(all="ignore"):  # of numbers so large that they have no sine
        errors = {
            p: np.abs(np.exp(1j * p * frequencies) - np.exp(1j * p * expected)) for p in POSITIONS
        }
    return {p: float(np.nan_to_num(error, nan=2.0).max()) for p, error in errors.items()}
