"""The base and the scaling that measured frequencies follow."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rope_xp.scaling import Scaling, YaRN
from rope_xp.testing import _rounding, _rules
from rope_xp.testing._angles import Angles
from rope_xp.testing._pairs import Pairs
from rope_xp.testing._rules import Measured, Series


class Fit(NamedTuple):
    """The base and the scaling of measured frequencies."""

    base: float
    scaling: Scaling | None
    series: Series
    notes: tuple[str, ...] = ()
    rounding: str | None = None
    """How the frequencies of the scaling are rounded, in words."""


def _series_of(pairs: Pairs, angles: Angles, rotary_dim: int) -> Series:
    """Return frequencies at their places in a slice."""
    values, uncertainty = np.zeros((2, rotary_dim // 2))
    values[pairs.places] = angles.frequencies
    uncertainty[pairs.places] = angles.uncertainty
    if angles.position_axes is None:
        return Series(values, uncertainty, None, angles.factor)
    axes = np.zeros(rotary_dim // 2, int)  # pairs that stand still may read any component
    axes[pairs.places] = angles.position_axes
    return Series(values, uncertainty, tuple(axes.tolist()), angles.factor)


def fit(pairs: Pairs, angles: Angles, head_dim: int) -> Fit:
    """Return base and scaling of measured angles; a Measured one if they follow none."""
    series = _series_of(pairs, angles, pairs.rotary_dim)
    found, rounding = _rules.nearest(series, plain=True), None
    if found is None and pairs.layout != "half" and not pairs.rotary_offset:
        # A slice of neighbours cannot be told from a head whose other pairs stand still.
        whole = _series_of(pairs, angles, head_dim)
        found = _rules.nearest(whole, plain=True)
        series = series if found is None else whole
    found = found or _rules.nearest(series)
    if found is None:
        found, rounding = _fit_rounded(series)
    if found is None:
        measured = Measured(tuple(series.values.tolist()), angles.factor)
        note = "frequencies follow no rule that is known here; they may be learned"
        return Fit(10000.0, measured, series, (note,))
    base, scaling = found
    factor = 1.0 if scaling is None else scaling.effective_attention_factor
    if abs(factor - angles.factor) > 1e-3 * factor:
        exact = tuple(_rules.frequencies(base, scaling, series.rotary_dim).tolist())
        note = f"cos and sin are multiplied by {angles.factor:.6g}, which no rule gives here"
        return Fit(base, Measured(exact, angles.factor), series, (note,), rounding)
    return Fit(base, scaling, series, _describe(base, scaling), rounding)


def _fit_rounded(series: Series) -> tuple[tuple[float, Scaling | None] | None, str | None]:
    """Return base and scaling of frequencies that were rounded, and how."""
    for name, to in _rounding.NARROW.items():
        found = _rules.nearest(series, 2.0**-8 if name == "bfloat16" else 2.0**-10)
        if found is None:
            continue
        exact = to(_rules.frequencies(*found, series.rotary_dim))
        bound = (2e-6 + series.uncertainty) * exact + 1e-12
        if np.mean(np.abs(series.values - exact) <= bound) > 0.9:
            return found, f"frequencies are rounded to {name}"
    return None, None


def _describe(base: float, scaling: Scaling | None) -> tuple[str, ...]:
    """Return what there is to say of a scaling, in sentences."""
    if scaling is None:
        return ()
    factor = getattr(scaling, "factor", None)
    by = "" if factor is None else f" with factor {factor:g}"
    note = f"frequencies are those of {type(scaling).__name__}{by} and base {base:g}"
    if isinstance(scaling, YaRN):
        paper = YaRN(scaling.factor, scaling.original_max_position_embeddings)
        usual, own = paper.effective_attention_factor, scaling.effective_attention_factor
        if abs(usual - own) > 1e-4:
            return note, (
                f"cos and sin are multiplied by {own:g}, and by {usual:.6g} in YaRN's paper: right "
                "where mscale or attention_factor of the configuration says so"
            )
    return (note,)
