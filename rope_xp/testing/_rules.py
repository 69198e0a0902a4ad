"""Find the base and the scaling that frequencies follow, as far as they determine them."""

import contextlib
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.scaling import NTK, Axial, Linear, Llama3, Proportional, Scaling, YaRN
from rope_xp.testing._box import Floats

_FLOAT32 = 1e-6
"""Relative error of powers and quotients in float32: a few units of 6e-8."""
_ROUNDING = 2.0**-25
_BASES = (10000.0, 500000.0, 1000000.0)
_TRAINED = (*(1 << k for k in range(7, 23)), *(3 << k for k in range(7, 21)), 1000, 2000, 4000)
"""Common trained lengths."""

Rule = tuple[float, Scaling | None]  # a base and a scaling


class FrequencySeries(NamedTuple):
    """Frequencies of all r/2 pairs, with their relative uncertainty."""

    values: Floats
    uncertainty: Floats
    position_axes: tuple[int, ...] | None = None
    factor: float = 1.0

    @property
    def rotary_dim(self) -> int:
        return 2 * len(self.values)


def compute_frequencies(base: float, scaling: Scaling | None, rotary_dim: int) -> Floats:
    if scaling is None:
        return inverse_frequencies(base, rotary_dim)
    with np.errstate(all="ignore"):
        return np.asarray(scaling.frequencies(base, rotary_dim))


def find_nearest(
    series: FrequencySeries, loose: float = 0.0, *, plain: bool = False
) -> Rule | None:
    """Return base and scaling, the simplest that fit, of four digits at most if plain; or None."""
    # "loose" is a relative error of frequencies, besides their uncertainty and float32 rounding.
    # Rounding of numbers, tolerance of frequencies, and whether numbers must be short: a base of
    # few digits is likelier than one that fits some bits better.
    passes = [(_FLOAT32 + loose, _FLOAT32 + loose, True)]
    if not plain:
        passes += [(_ROUNDING, _ROUNDING, False), (_ROUNDING + loose, _FLOAT32 + loose, False)]
    for rounding, tolerance, short in passes:
        for base, scaling in itertools.chain(*(fit(series, rounding) for fit in _FITS)):
            factor = getattr(scaling, "factor", 1.0)
            if short and any(float(f"{x:.3e}") != x for x in (base, factor)):
                continue
            if not 0.0 < base < math.inf:
                continue
            with contextlib.suppress(RopeError):
                exact = compute_frequencies(base, scaling, series.rotary_dim)
                bound = (tolerance + series.uncertainty) * exact + 1e-12
                if (np.abs(exact - series.values) <= bound).all():
                    return base, scaling
    return None


def round_to_few_digits(x: float, tolerance: float, most: int = 10) -> list[float]:
    """Return x rounded to few digits, fewest first, within a relative tolerance; at last x."""
    if not 0.0 < x < math.inf:
        return []
    rounded = (float(f"{x:.{digits}e}") for digits in range(9))
    return list(dict.fromkeys([*(y for y in rounded if abs(y / x - 1.0) <= tolerance), x]))[:most]


def _list_bases(series: FrequencySeries, rounding: float) -> list[float]:
    """Return the bases by which pairs of one series are related, fastest pairs first."""
    w, n = series.values, int(np.count_nonzero(series.values))
    error = rounding + series.uncertainty
    bases = [10000.0] if len(w) == 1 else []  # the only pair turns by 1 with any base
    spans = [(0, n - 1), (0, n // 4), (0, n // 8), (0, 1), (n - n // 4 - 1, n - 1), (n - 2, n - 1)]
    for i, j in spans:
        if 0 <= i < j < n and w[i] > 0.0 and w[j] > 0.0:  # pairs may stand still anywhere
            pairs_per_base = series.rotary_dim / (2 * (j - i))
            power = (math.log(w[i]) - math.log(w[j])) * pairs_per_base
            tolerance = 2 * (error[i] + error[j]) * pairs_per_base
            if abs(power) <= 60:
                bases += round_to_few_digits(math.exp(power), tolerance, 4)
    return list(dict.fromkeys(bases))


def _fit_simple(series: FrequencySeries, rounding: float) -> Iterator[Rule]:
    """Yield plain bases, NTK, linear and proportional scalings, in this order."""
    w, r, n = series.values, series.rotary_dim, int(np.count_nonzero(series.values))
    bases = _list_bases(series, rounding)
    yield from ((base, None) for base in bases)
    for stretched, base in itertools.product(bases[:3] if r > 2 else (), _BASES):
        factor = round_to_few_digits((stretched / base) ** ((r - 2) / r), 1e-4)[0]
        # Of two digits: any base is that of some factor.
        if factor > 1.0 and float(f"{factor:.1e}") == factor:
            yield base, NTK(factor)
    slowdown = 1.0 / float(w[0]) if w[0] > 0.0 else 0.0
    tolerance = 2 * (rounding + float(series.uncertainty[0]))
    for base, factor in itertools.product(bases, round_to_few_digits(slowdown, tolerance, 3)):
        yield base, Linear(factor)
    if 0 < n < len(w) and w[n - 1] > 0.0:
        for base, factor in itertools.product(bases, round_to_few_digits(slowdown, 1e-5, 2)):
            yield base, Proportional(n / len(w), factor)


def _find_ramps(
    series: FrequencySeries, rounding: float, *, by_frequency: bool
) -> Iterator[tuple[float, float, float, float]]:
    """Yield base, factor, and the line through unscaled shares, over frequencies or indices."""
    w = series.values
    if len(w) < 3 or not w.all():
        return
    for base in _list_bases(series, rounding):
        if base == 1.0:  # all pairs have one frequency, which shows no ramp
            continue
        plain = inverse_frequencies(base, series.rotary_dim)
        slowdown = float(np.median((plain / w)[-max(1, len(w) // 16) :]))
        if slowdown <= 1.0 + 1e-4:
            continue
        x = plain if by_frequency else np.arange(len(w), dtype=float)
        tolerance = 4 * (rounding + float(series.uncertainty[-1]))
        for factor in round_to_few_digits(slowdown, tolerance, 2):
            if factor == 1.0:
                continue
            shares = (w / plain - 1.0 / factor) / (1.0 - 1.0 / factor)
            between = (shares > 1e-3) & (shares < 1.0 - 1e-3)
            if between.sum() > 1:
                slope, start = np.polyfit(x[between], shares[between], 1)
                yield base, factor, float(slope), float(start)


def _fit_llama3(series: FrequencySeries, rounding: float) -> Iterator[Rule]:
    for base, factor, slope, start in _find_ramps(series, rounding, by_frequency=True):
        if start >= 0.0 or slope <= 0.0:
            continue
        # Frequencies depend on quotients of the three: low_freq_factor is set to 1.
        for high in round_to_few_digits(1.0 - 1.0 / start, 2e-3, 3):
            length = 2.0 * math.pi * slope * (high - 1.0)
            common = min(_TRAINED, key=lambda n: abs(math.log(n / max(length, 1.0))))
            for trained in {common, round(length)} - {0}:
                yield base, Llama3(factor, 1.0, high, trained)


def _fit_yarn(series: FrequencySeries, rounding: float) -> Iterator[Rule]:
    for base, factor, slope, start in _find_ramps(series, rounding, by_frequency=False):
        if slope >= 0.0:
            continue
        # The ends of the ramp, as fractional indices of pairs.
        ends = np.array([(1.0 - start) / slope, -start / slope])
        with np.errstate(over="ignore"):
            wavelengths = 2.0 * math.pi * np.power(base, 2.0 * ends / series.rotary_dim)
        length = 32.0 * float(wavelengths[0])
        if not 0.0 < length < math.inf:
            continue
        lengths = [n for n in _TRAINED if abs(math.log(n / max(length, 1.0))) < 1.0]
        lengths.sort(key=lambda n: (n & (n - 1) != 0, abs(math.log(n / length))))
        scalings = [YaRN(factor, n, truncate=cut) for n in lengths for cut in (True, False)]
        for trained in lengths[:3]:  # other turns than 32 and 1
            turns = (round_to_few_digits(trained / float(w), 1e-2, 3) for w in wavelengths)
            scalings += [
                YaRN(factor, trained, fast, slow, truncate=False)
                for fast, slow in itertools.product(*turns)
                if fast >= slow
            ]
        measured = round_to_few_digits(series.factor, 1e-5)[0]
        for yarn in scalings:
            is_close = abs(yarn.effective_attention_factor - series.factor) < 1e-4
            yield base, yarn if is_close else replace(yarn, attention_factor=measured)


def _fit_axial(series: FrequencySeries, rounding: float) -> Iterator[Rule]:
    count = max(series.position_axes or (0,)) + 1
    if series.position_axes is None or len(series.values) % count:
        return
    shorter = len(series.values) // count
    orders = {
        "blocks": series.values[:shorter],
        "alternating": series.values[::count],
        "strided": series.values.reshape(count, -1).T.ravel(),
    }
    for order, values in orders.items():
        part = FrequencySeries(values, series.uncertainty[: len(values)])
        for base in _list_bases(part, rounding):
            yield base, Axial(count, order)


_FITS = (_fit_simple, _fit_llama3, _fit_yarn, _fit_axial)
