"""Find the base and the scaling that frequencies follow, as far as they determine them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from rope_xp._core.errors import RopeError
from rope_xp.scaling import (
    NTK,
    Axial,
    Linear,
    Llama3,
    Proportional,
    Scaling,
    YaRN,
    inverse_frequencies,
)
from rope_xp.testing._box import Floats

_FLOAT32 = 1e-6
"""Relative error of powers and quotients in float32: a few units of 6e-8."""
_ROUNDING = 2.0**-25
_BASES = (10000.0, 500000.0, 1000000.0)
_TRAINED = (*(1 << k for k in range(7, 23)), *(3 << k for k in range(7, 21)), 1000, 2000, 4000)
"""Common trained lengths."""

Candidates = Iterator[tuple[float, Scaling | None]]


@dataclass(frozen=True)
class FrequencySeries:
    """Frequencies of all r/2 pairs, with their relative uncertainty."""

    values: Floats
    uncertainty: Floats
    position_axes: tuple[int, ...] | None = None
    factor: float = 1.0

    @property
    def rotary_dim(self) -> int:
        """Number of rotated components."""
        return 2 * len(self.values)

    def fits(self, base: float, scaling: Scaling | None, tolerance: float) -> bool:
        """Return whether a scaling has these frequencies, as far as they are certain."""
        try:
            exact = compute_frequencies(base, scaling, self.rotary_dim)
        except RopeError:
            return False
        bound = (tolerance + self.uncertainty) * exact + 1e-12
        return bool((np.abs(exact - self.values) <= bound).all())


def compute_frequencies(base: float, scaling: Scaling | None, rotary_dim: int) -> Floats:
    """Return the frequencies of a base and a scaling."""
    if scaling is None:
        return inverse_frequencies(base, rotary_dim)
    with np.errstate(all="ignore"):
        return np.asarray(scaling.frequencies(base, rotary_dim))


def find_nearest(
    series: FrequencySeries, loose: float = 0.0, *, plain: bool = False
) -> tuple[float, Scaling | None] | None:
    """Return base and scaling, the simplest that fit, or None.

    ``loose`` is a relative error of frequencies beside their uncertainty and float32 rounding. With
    ``plain``, base and factor must have four digits or fewer.
    """
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
            if 0.0 < base < math.inf and series.fits(base, scaling, tolerance):
                return base, scaling
    return None


def round_to_few_digits(x: float, tolerance: float, most: int = 10) -> Iterator[float]:
    """Yield x rounded to few digits, fewest first, within a relative tolerance; at last x itself.

    Examples
    --------
    >>> list(round_to_few_digits(9999.2, 1e-3))
    [10000.0, 9999.0, 9999.2]
    """
    if 0.0 < x < math.inf:
        rounded = (float(f"{x:.{digits}e}") for digits in range(9))
        close = [y for y in rounded if abs(y / x - 1.0) <= tolerance]
        yield from list(dict.fromkeys([*close, x]))[:most]


# --- bases and factors ---------------------------------------------------------------------------


def _list_bases(series: FrequencySeries, rounding: float) -> list[float]:
    """Return the bases by which pairs of one series are related, fastest pairs first."""
    w, n = series.values, int(np.count_nonzero(series.values))
    error = rounding + series.uncertainty
    bases = [10000.0] if len(w) == 1 else []  # the only pair turns by 1 with any base
    spans = [(0, n - 1), (0, n // 4), (0, n // 8), (0, 1), (n - n // 4 - 1, n - 1), (n - 2, n - 1)]
    for i, j in spans:
        if 0 <= i < j < n:
            pairs_per_base = series.rotary_dim / (2 * (j - i))
            power = (math.log(w[i]) - math.log(w[j])) * pairs_per_base
            tolerance = 2 * (error[i] + error[j]) * pairs_per_base
            if abs(power) <= 60:
                bases += round_to_few_digits(math.exp(power), tolerance, 4)
    return list(dict.fromkeys(bases))


def _fit_plain(series: FrequencySeries, rounding: float) -> Candidates:
    for base in _list_bases(series, rounding):
        yield base, None


def _fit_ntk(series: FrequencySeries, rounding: float) -> Candidates:
    r = series.rotary_dim
    for stretched in _list_bases(series, rounding)[:3] if r > 2 else ():
        for base in _BASES:
            factor = next(round_to_few_digits((stretched / base) ** ((r - 2) / r), 1e-4))
            # Of two digits: any base is that of some factor.
            if factor > 1.0 and float(f"{factor:.1e}") == factor:
                yield base, NTK(factor)


def _fit_linear(series: FrequencySeries, rounding: float) -> Candidates:
    if series.values[0] > 0.0:
        tolerance = 2 * (rounding + float(series.uncertainty[0]))
        for base in _list_bases(series, rounding):
            for factor in round_to_few_digits(1.0 / float(series.values[0]), tolerance, 3):
                yield base, Linear(factor)


def _fit_proportional(series: FrequencySeries, rounding: float) -> Candidates:
    w, n = series.values, int(np.count_nonzero(series.values))
    if 0 < n < len(w) and w[n - 1] > 0.0:
        for base in _list_bases(series, rounding):
            for factor in round_to_few_digits(1.0 / float(w[0]), 1e-5, 2):
                yield base, Proportional(n / len(w), factor)


# --- ramps ---------------------------------------------------------------------------------------


def _find_ramps(
    series: FrequencySeries, rounding: float
) -> Iterator[tuple[float, float, Floats, Floats]]:
    """Yield base, factor, plain frequencies, and the unscaled share of each."""
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
        tolerance = 4 * (rounding + float(series.uncertainty[-1]))
        for factor in round_to_few_digits(slowdown, tolerance, 2):
            yield base, factor, plain, (w / plain - 1.0 / factor) / (1.0 - 1.0 / factor)


def _fit_line(x: Floats, shares: Floats) -> tuple[float, float]:
    """Return slope and start of the line through the shares between 0 and 1, 0 without two."""
    between = (shares > 1e-3) & (shares < 1.0 - 1e-3)
    if between.sum() < 2:
        return 0.0, 0.0
    slope, start = np.polyfit(x[between], shares[between], 1)
    return float(slope), float(start)


def _fit_llama3(series: FrequencySeries, rounding: float) -> Candidates:
    for base, factor, plain, shares in _find_ramps(series, rounding):
        slope, start = _fit_line(plain, shares)
        if start >= 0.0 or slope <= 0.0:
            continue
        # Frequencies depend on quotients of the three: low_freq_factor is set to 1.
        for high in round_to_few_digits(1.0 - 1.0 / start, 2e-3, 3):
            length = 2.0 * math.pi * slope * (high - 1.0)
            common = min(_TRAINED, key=lambda n: abs(math.log(n / max(length, 1.0))))
            for trained in {common, round(length)} - {0}:
                yield base, Llama3(factor, 1.0, high, trained)


def _fit_yarn(series: FrequencySeries, rounding: float) -> Candidates:
    for base, factor, _, shares in _find_ramps(series, rounding):
        slope, start = _fit_line(np.arange(len(shares), dtype=float), shares)
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
        for trained, truncate in itertools.product(lengths, (True, False)):
            yield base, _set_factor(YaRN(factor, trained, truncate=truncate), series.factor)
        for trained in lengths[:3]:  # other turns than 32 and 1
            fast, slow = (round_to_few_digits(trained / float(w), 1e-2, 3) for w in wavelengths)
            for a, b in itertools.product(fast, slow):
                if a >= b:
                    yarn = YaRN(factor, trained, a, b, truncate=False)
                    yield base, _set_factor(yarn, series.factor)


def _set_factor(yarn: YaRN, factor: float) -> YaRN:
    """Return a scaling with the attention factor that was measured."""
    if abs(yarn.effective_attention_factor - factor) < 1e-4:
        return yarn
    return replace(yarn, attention_factor=next(round_to_few_digits(factor, 1e-5)))


def _fit_axial(series: FrequencySeries, rounding: float) -> Candidates:
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


_FITS = (
    *(_fit_plain, _fit_ntk, _fit_linear, _fit_proportional),
    *(_fit_llama3, _fit_yarn, _fit_axial),
)
