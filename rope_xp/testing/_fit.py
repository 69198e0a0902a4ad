"""Fit a base and a scaling to measured angles."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from rope_xp.scaling import Scaling, YaRN
from rope_xp.testing import _rounding, _rules
from rope_xp.testing._angles import MeasuredAngles
from rope_xp.testing._measured import Measured
from rope_xp.testing._pairs import Pairs
from rope_xp.testing._rules import FrequencySeries


class Fit(NamedTuple):
    """The base and the scaling of measured frequencies."""

    base: float
    scaling: Scaling | None
    series: FrequencySeries
    notes: tuple[str, ...] = ()
    rounding: str | None = None
    """How the frequencies of the scaling are rounded, in words."""


def _build_series(pairs: Pairs, angles: MeasuredAngles, rotary_dim: int) -> FrequencySeries:
    """Return frequencies at their indices in a slice."""
    values, uncertainty = np.zeros((2, rotary_dim // 2))
    values[pairs.indices] = angles.frequencies
    uncertainty[pairs.indices] = angles.uncertainty
    if angles.position_axes is None:
        return FrequencySeries(values, uncertainty, None, angles.factor)
    axes = np.zeros(rotary_dim // 2, int)  # pairs that stand still may read any component
    axes[pairs.indices] = angles.position_axes
    return FrequencySeries(values, uncertainty, tuple(axes.tolist()), angles.factor)


def fit_angles(pairs: Pairs, angles: MeasuredAngles, head_dim: int) -> Fit:
    """Return base and scaling of measured angles; :class:`Measured` if none fits."""
    series = _build_series(pairs, angles, pairs.rotary_dim)
    match, rounding = _rules.find_nearest(series, plain=True), None
    if match is None and pairs.layout != "half" and not pairs.rotary_offset:
        # A slice of neighbours cannot be told from a head whose other pairs stand still.
        whole = _build_series(pairs, angles, head_dim)
        match = _rules.find_nearest(whole, plain=True)
        series = series if match is None else whole
    match = match or _rules.find_nearest(series)
    if match is None:
        match, rounding = _fit_rounded(series)
    if match is None:
        measured = Measured(tuple(series.values.tolist()), angles.factor)
        note = "frequencies follow no rule that is known here; they may be learned"
        return Fit(10000.0, measured, series, (note,))
    base, scaling = match
    factor = 1.0 if scaling is None else scaling.effective_attention_factor
    if abs(factor - angles.factor) > 1e-3 * factor:
        exact = tuple(_rules.compute_frequencies(base, scaling, series.rotary_dim).tolist())
        note = f"cos and sin are multiplied by {angles.factor:.6g}, which no rule gives here"
        return Fit(base, Measured(exact, angles.factor), series, (note,), rounding)
    return Fit(base, scaling, series, _describe_scaling(base, scaling), rounding)


def _fit_rounded(
    series: FrequencySeries,
) -> tuple[tuple[float, Scaling | None] | None, str | None]:
    """Return base and scaling of frequencies that were rounded, and how."""
    for name, to in _rounding.NARROW.items():
        match = _rules.find_nearest(series, 2.0**-8 if name == "bfloat16" else 2.0**-10)
        if match is None:
            continue
        exact = to(_rules.compute_frequencies(*match, series.rotary_dim))
        bound = (2e-6 + series.uncertainty) * exact + 1e-12
        if np.mean(np.abs(series.values - exact) <= bound) > 0.9:
            return match, f"frequencies are rounded to {name}"
    return None, None


def _describe_scaling(base: float, scaling: Scaling | None) -> tuple[str, ...]:
    if scaling is None:
        return ()
    factor = getattr(scaling, "factor", None)
    by = "" if factor is None else f" with factor {factor:g}"
    notes = [f"frequencies are those of {type(scaling).__name__}{by} and base {base:g}"]
    if isinstance(scaling, YaRN):
        paper = YaRN(scaling.factor, scaling.original_max_position_embeddings)
        expected, actual = paper.effective_attention_factor, scaling.effective_attention_factor
        if abs(expected - actual) > 1e-4:
            notes.append(
                f"cos and sin are multiplied by {actual:g}, and by {expected:.6g} in YaRN's paper: "
                "right where mscale or attention_factor of the configuration says so"
            )
    return tuple(notes)
