"""What base and rule the frequencies follow that were found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rope_xp.scaling import Scaling, YaRN
from rope_xp.testing import _rounding, _rules
from rope_xp.testing._angles import Angles
from rope_xp.testing._pairs import Pairs
from rope_xp.testing._rules import Measured, Series


@dataclass(frozen=True)
class Fit:
    """What base and rule frequencies follow."""

    base: float
    rule: Scaling | None
    rotary_dim: int
    notes: tuple[str, ...] = ()
    rounded: str | None = None
    """Which rounding lies between the rule's frequencies and those that were found."""


def series_of(pairs: Pairs, angles: Angles, rotary_dim: int) -> Series:
    """Return frequencies at their places in a slice."""
    values = np.zeros(rotary_dim // 2)
    uncertain = np.zeros(rotary_dim // 2)
    values[list(pairs.places)] = angles.frequencies
    uncertain[list(pairs.places)] = angles.uncertain
    return Series(values, uncertain, filled(angles.position_axes, pairs), angles.factor)


def fit(pairs: Pairs, angles: Angles, head_dim: int) -> Fit:
    """Return base and rule of what was found, or the frequencies by themselves."""
    r = pairs.rotary_dim
    series = series_of(pairs, angles, r)
    found, rounded = _rules.nearest(series, plain=True), None
    if found is None and pairs.layout != "half" and r < head_dim and not pairs.rotary_offset:
        # A slice of neighbours cannot be told from a head whose other pairs stand still.
        found = _rules.nearest(series_of(pairs, angles, head_dim), plain=True)
        r = r if found is None else head_dim
    if found is None:
        found = _rules.nearest(series)
    if found is None:
        found, rounded = _of_rounded(series)
    if found is None:
        measured = Measured(tuple(series.values.tolist()), angles.factor)
        note = "frequencies follow no rule that is known here; they may be learned"
        return Fit(10000.0, measured, r, (note,))
    base, rule = found
    factor = 1.0 if rule is None else rule.effective_attention_factor
    if abs(factor - angles.factor) > 1e-3 * factor:
        exact = tuple(_rules.frequencies(base, rule, r).tolist())
        note = f"cos and sin are multiplied by {angles.factor:.6g}, which no rule gives here"
        return Fit(base, Measured(exact, angles.factor), r, (note,), rounded)
    return Fit(base, rule, r, tuple(_remarks(base, rule)), rounded)


def _of_rounded(series: Series) -> tuple[tuple[float, Scaling | None] | None, str | None]:
    """Return base and rule of frequencies that were rounded."""
    for name, to in _rounding.NARROW.items():
        loose = {"bfloat16": 2.0**-8, "float16": 2.0**-10, "TF32": 2.0**-10}[name]
        found = _rules.nearest(series, loose)
        if found is None:
            continue
        exact = to(_rules.frequencies(*found, series.rotary_dim))
        bound = (2e-6 + series.uncertain) * exact + 1e-12
        if np.mean(np.abs(series.values - exact) <= bound) > 0.9:
            return found, f"frequencies are rounded to {name}"
    return None, None


def _remarks(base: float, rule: Scaling | None) -> list[str]:
    if rule is None:
        return []
    name = type(rule).__name__
    factor = getattr(rule, "factor", None)
    by = "" if factor is None else f" with factor {factor:g}"
    said = [f"frequencies are those of {name}{by} and base {base:g}"]
    if isinstance(rule, YaRN):
        usual = YaRN(rule.factor, rule.original_max_position_embeddings).effective_attention_factor
        factor = rule.effective_attention_factor
        if abs(usual - factor) > 1e-4:
            said.append(
                f"cos and sin are multiplied by {factor:g}, and by {usual:.6g} in "
                "YaRN's paper: right where mscale or attention_factor of the configuration says so"
            )
    return said


def filled(axes: tuple[int, ...] | None, pairs: Pairs) -> tuple[int, ...] | None:
    """Return a component for each pair of the slice, the first one where none was found."""
    if axes is None:
        return None
    filled = [0] * (pairs.rotary_dim // 2)
    for place, component in zip(pairs.places, axes, strict=True):
        filled[place] = component
    return tuple(filled)
