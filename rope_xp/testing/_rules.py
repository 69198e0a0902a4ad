"""From frequencies to the base and the rule that they follow, with parameters where they tell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rope_xp._contract import numbers
from rope_xp._contract.errors import RopeError
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

# Powers and quotients in float32: a few units of 6e-8.
_FLOAT32 = 1e-6
_HALF = 2.0**-25
_BASES = (10000.0, 500000.0, 1000000.0)
_LENGTHS = sorted(
    [1 << k for k in range(7, 23)] + [3 << k for k in range(7, 21)] + [1000 * k for k in (1, 2, 4)]
)


@dataclass(frozen=True)
class Measured(Scaling):
    """The frequencies that were found, where they follow no rule that is known.

    Parameters
    ----------
    values : tuple of float, length r/2
        Radians per position, as measured.
    attention_factor : float, default 1.0
        What cos and sin are multiplied by.

    Raises
    ------
    RopeError
        If the attention factor is not positive; in ``frequencies``, if there are not r/2 values.

    Examples
    --------
    >>> import rope_xp
    >>> from rope_xp.testing import Measured
    >>> rope_xp.RoPE(scaling=Measured((1.0, 0.25))).frequencies(4).tolist()
    [1.0, 0.25]
    """

    values: tuple[float, ...]
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        self._check(numbers.check_positive, "attention_factor")

    def frequencies(self, base: float, rotary_dim: int) -> Floats:
        """Return the values."""
        if len(self.values) != rotary_dim // 2:
            raise RopeError(
                f"Measured.values has {len(self.values)} entries; {rotary_dim} rotated components "
                f"have {rotary_dim // 2} pairs"
            )
        return np.array(self.values)


@dataclass(frozen=True)
class Series:
    """Frequencies of all r/2 pairs, and how far each may be off, relative."""

    values: Floats
    uncertain: Floats
    position_axes: tuple[int, ...] | None
    factor: float

    @property
    def rotary_dim(self) -> int:
        """Number of rotated components."""
        return 2 * len(self.values)

    def fits(self, base: float, rule: Scaling | None, loose: float) -> bool:
        """Return whether a rule has these frequencies, but for what is loose and uncertain."""
        try:
            exact = frequencies(base, rule, self.rotary_dim)
        except RopeError:
            return False
        bound = (loose + self.uncertain) * exact + 1e-12
        return bool((np.abs(exact - self.values) <= bound).all())


def frequencies(base: float, rule: Scaling | None, rotary_dim: int) -> Floats:
    """Return what a base and a rule make."""
    if rule is None:
        return inverse_frequencies(base, rotary_dim)
    with np.errstate(all="ignore"):
        return np.asarray(rule.frequencies(base, rotary_dim))


def nearest(
    series: Series, loose: float = 0.0, *, plain: bool = False
) -> tuple[float, Scaling | None] | None:
    """Return base and rule, the simplest that fit, or None.

    ``loose`` is how far frequencies may be off, relative, beside their uncertainty and rounding to
    float32. With ``plain``, base and factor must have four digits or fewer.
    """
    # A base of few digits is likelier than one that fits some bits better.
    close = _FLOAT32 + loose
    # How far numbers may be rounded, and how far frequencies may be off then.
    ways = [(close, close, True)]
    ways += [] if plain else [(_HALF, _HALF, False), (_HALF + loose, close, False)]
    for near, off, few in ways:
        for base, rule in itertools.chain(*(kind(series, near) for kind in _KINDS)):
            if few and not all(map(_is_short, (base, getattr(rule, "factor", 1.0)))):
                continue
            if 0.0 < base < math.inf and series.fits(base, rule, off):
                return base, rule
    return None


def _is_short(x: float) -> bool:
    return float(f"{x:.3e}") == x


def rounded_numbers(x: float, close: float) -> Iterator[float]:
    """Yield x rounded to few digits, fewest first, where that is as close as told; then x.

    Examples
    --------
    >>> list(rounded_numbers(9999.2, 1e-3))
    [10000.0, 9999.0, 9999.2]
    """
    if not 0.0 < x < math.inf:
        return
    seen = set()
    for digits in range(1, 10):
        candidate = float(f"{x:.{digits - 1}e}")
        if abs(candidate / x - 1.0) <= close and candidate not in seen:
            seen.add(candidate)
            yield candidate
    if x not in seen:
        yield x


# --- bases ---------------------------------------------------------------------------------------


def _bases(series: Series, loose: float, r: int) -> Iterator[float]:
    """Yield the bases that runs of pairs of one series speak for, fastest first."""
    w, n = series.values, int(np.count_nonzero(series.values))
    error = loose + series.uncertain
    spans = [(0, n - 1), (0, n // 4), (0, n // 8), (0, 1), (n - n // 4 - 1, n - 1), (n - 2, n - 1)]
    seen = set()
    for i, j in spans:
        if not 0 <= i < j < n:
            continue
        slope = (math.log(w[i]) - math.log(w[j])) / (2 * (j - i)) * r
        if abs(slope) > 60:
            continue
        close = (error[i] + error[j]) * r / (2 * (j - i))
        for base in itertools.islice(rounded_numbers(math.exp(slope), 2 * close), 4):
            if base not in seen:
                seen.add(base)
                yield base


def _plain(series: Series, loose: float) -> Iterator[tuple[float, Scaling | None]]:
    if len(series.values) == 1:
        yield 10000.0, None  # of one pair, which turns by 1 with any base
    for base in _bases(series, loose, series.rotary_dim):
        yield base, None


def _ntk(series: Series, loose: float) -> Iterator[tuple[float, Scaling | None]]:
    r = series.rotary_dim
    for stretched in itertools.islice(_bases(series, loose, r), 3) if r > 2 else ():
        for base in _BASES:
            factor = (stretched / base) ** ((r - 2) / r)
            # Of two digits: any base is that of some factor.
            near = next(rounded_numbers(factor, 1e-4))
            if near > 1.0 and float(f"{near:.1e}") == near:
                yield base, NTK(near)


def _linear(series: Series, loose: float) -> Iterator[tuple[float, Scaling | None]]:
    if series.values[0] <= 0.0:
        return
    close = 2 * (loose + float(series.uncertain[0]))
    bases = [10000.0] if len(series.values) == 1 else _bases(series, loose, series.rotary_dim)
    for base in bases:
        for factor in itertools.islice(rounded_numbers(1.0 / float(series.values[0]), close), 3):
            yield base, Linear(factor)


def _proportional(series: Series, loose: float) -> Iterator[tuple[float, Scaling | None]]:
    n = np.count_nonzero(series.values)
    if n in (0, len(series.values)) or series.values[n - 1] == 0.0:
        return
    share = float(n) / len(series.values)
    for base in _bases(series, loose, series.rotary_dim):
        for factor in itertools.islice(rounded_numbers(1.0 / float(series.values[0]), 1e-5), 2):
            yield base, Proportional(share, factor)


# --- ramps ---------------------------------------------------------------------------------------


def _ramps(series: Series, loose: float) -> Iterator[tuple[float, float, Floats, Floats]]:
    """Yield base, factor, plain frequencies, and the share of each that is left as it is."""
    w = series.values
    if len(w) < 3 or not w.all():
        return
    for base in _bases(series, loose, series.rotary_dim):
        if base == 1.0:  # all pairs turn alike, and no ramp is to be seen
            continue
        plain = inverse_frequencies(base, series.rotary_dim)
        slow = float(np.median((plain / w)[-max(1, len(w) // 16) :]))
        if slow <= 1.0 + 1e-4:
            continue
        close = 4 * (loose + float(series.uncertain[-1]))
        for factor in itertools.islice(rounded_numbers(slow, close), 2):
            left = (w / plain - 1.0 / factor) / (1.0 - 1.0 / factor)
            yield base, factor, plain, left


def _llama3(series: Series, loose: float) -> Iterator[tuple[float, Scaling | None]]:
    for base, factor, plain, left in _ramps(series, loose):
        between = (left > 1e-3) & (left < 1.0 - 1e-3)
        if between.sum() < 2:
            continue
        steep, low = _line(plain[between], left[between])
        if low >= 0.0 or steep <= 0.0:
            continue
        # Only quotients of the three follow: the slow turns are set to 1.
        for high in itertools.islice(rounded_numbers(1.0 + 1.0 / -low, 2e-3), 3):
            length = 2.0 * math.pi * steep * (high - 1.0)
            for trained in {_near(length), round(length)}:
                if trained > 0:
                    yield base, Llama3(factor, 1.0, high, trained)


def _line(x: Floats, y: Floats) -> tuple[float, float]:
    """Return slope and start of the line nearest to points."""
    spread = x - x.mean()
    slope = float(spread @ y / (spread @ spread))
    return slope, float(y.mean() - slope * x.mean())


def _near(length: float) -> int:
    return min(_LENGTHS, key=lambda known: abs(math.log(known / max(length, 1.0))))


def _yarn(series: Series, loose: float) -> Iterator[tuple[float, Scaling | None]]:
    for base, factor, _, left in _ramps(series, loose):
        between = np.flatnonzero((left > 1e-3) & (left < 1.0 - 1e-3))
        if len(between) < 2:
            continue
        steep, start = _line(between.astype(float), 1.0 - left[between])
        if steep <= 0.0:
            continue
        low, high = -start / steep, (1.0 - start) / steep
        exact = _turning(base, series.rotary_dim, 32.0, low)
        lengths = [k for k in _LENGTHS if abs(math.log(k / max(exact, 1.0))) < 1.0]
        lengths.sort(key=lambda k: (k & (k - 1) != 0, abs(math.log(k / exact))))
        for trained, truncate in itertools.product(lengths, (True, False)):
            yield base, _of_factor(series, factor, trained, truncate=truncate)
        for trained in lengths[:3]:  # other turns than 32 and 1
            fast = trained / (2.0 * math.pi) * base ** (-2.0 * low / series.rotary_dim)
            slow = trained / (2.0 * math.pi) * base ** (-2.0 * high / series.rotary_dim)
            for a, b in itertools.product(
                *(itertools.islice(rounded_numbers(x, 1e-2), 3) for x in (fast, slow))
            ):
                if a >= b:
                    yield base, _of_factor(series, factor, trained, truncate=False, turns=(a, b))


def _turning(base: float, r: int, turns: float, pair: float) -> float:
    """Return the length within which a pair, which may lie between two, turns so often."""
    return float(2.0 * math.pi * turns * base ** (2.0 * pair / r))


def _of_factor(
    series: Series,
    factor: float,
    trained: int,
    *,
    truncate: bool,
    turns: tuple[float, float] = (32.0, 1.0),
) -> YaRN:
    usual = YaRN(factor, trained, *turns, truncate=truncate)
    if abs(usual.effective_attention_factor - series.factor) < 1e-4:
        return usual
    given = next(rounded_numbers(series.factor, 1e-5))
    return YaRN(factor, trained, *turns, attention_factor=given, truncate=truncate)


def _axial(series: Series, loose: float) -> Iterator[tuple[float, Scaling | None]]:
    if series.position_axes is None:
        return
    count = max(series.position_axes) + 1
    if len(series.values) % count:
        return
    shorter = len(series.values) // count
    orders = {
        "blocks": series.values[:shorter],
        "alternating": series.values[::count],
        "strided": series.values.reshape(count, -1).T.ravel(),
    }
    for order, one in orders.items():
        part = Series(one, series.uncertain[: len(one)], None, series.factor)
        for base, _ in _plain(part, loose):
            yield base, Axial(count, order)


_KINDS = (_plain, _ntk, _linear, _proportional, _llama3, _yarn, _axial)
