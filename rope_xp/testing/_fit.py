"""Fit a base and a scaling to measured angles."""

from dataclasses import dataclass

import numpy as np

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp.rope import RoPE
from rope_xp.scaling import DynamicNTK, Scaling, YaRN
from rope_xp.testing import _rounding, _rules
from rope_xp.testing._angles import LengthDependence, MeasuredAngles
from rope_xp.testing._box import CallRefused, Floats
from rope_xp.testing._pairs import RotatedArray
from rope_xp.testing._rules import FrequencySeries, Rule


@dataclass(frozen=True)
class Measured(Scaling):
    """Measured frequencies that follow no scaling of rope_xp.

    Parameters
    ----------
    values : tuple of float, length r/2
        Radians per position, as measured.
    attention_factor : float, default 1.0
        Factor on cos and sin.

    Raises
    ------
    RopeError
        If the factor is not positive; in ``frequencies``, if there are not r/2 values.

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


def fit_angles(
    array: RotatedArray, angles: MeasuredAngles, length: LengthDependence | None
) -> tuple[RoPE, FrequencySeries, list[str]]:
    """Return the RoPE of measured angles, its frequencies as measured, and notes."""
    notes: list[str] = []
    series = _build_series(array, angles, array.rotary_dim)
    rule = _rules.find_nearest(series, plain=True)
    if rule is None and array.layout != "half" and not array.rotary_offset:
        # A slice of neighbours cannot be told from a head whose other pairs stand still.
        whole = _build_series(array, angles, array.box.head_dim)
        rule = _rules.find_nearest(whole, plain=True)
        series = series if rule is None else whole
    rule = rule or _rules.find_nearest(series) or _fit_rounded(series)
    if rule is None:
        rule = 10000.0, Measured(tuple(series.values.tolist()), angles.factor)
        notes.append("frequencies follow no rule that is known here; they may be learned")
    base, scaling = rule
    factor = 1.0 if scaling is None else scaling.effective_attention_factor
    if abs(factor - angles.factor) > 1e-3 * factor:
        exact = tuple(_rules.compute_frequencies(*rule, series.rotary_dim).tolist())
        scaling = Measured(exact, angles.factor)
        notes.append(f"cos and sin have a factor of {angles.factor:.6g}, which no scaling explains")
    elif isinstance(scaling, YaRN):
        paper = YaRN(scaling.factor, scaling.original_max_position_embeddings)
        expected = paper.effective_attention_factor
        if abs(expected - factor) > 1e-4:
            notes.append(
                f"cos and sin are multiplied by {factor:g}, and by {expected:.6g} in YaRN's paper: "
                "right if mscale or attention_factor of the configuration asks for it"
            )
    elif scaling is None and length is not None:
        scaling = _fit_dynamic_ntk(array, length, base, series.rotary_dim)
    rope = RoPE(
        base=base,
        layout=array.layout,
        rotary_dim=None if series.rotary_dim == array.box.head_dim else series.rotary_dim,
        rotary_offset=array.rotary_offset,
        scaling=scaling,
        position_axes=series.position_axes,
    )
    return rope, series, notes


def _build_series(array: RotatedArray, angles: MeasuredAngles, rotary_dim: int) -> FrequencySeries:
    """Return frequencies at their indices in a slice."""
    axes = angles.position_axes
    rows = angles.frequencies, angles.uncertainty, np.zeros(1) if axes is None else axes
    table = np.zeros((3, rotary_dim // 2))
    table[:, array.indices] = np.broadcast_arrays(*rows)
    read = None if axes is None else tuple(table[2].astype(int).tolist())
    return FrequencySeries(table[0], table[1], read, angles.factor)


def _fit_rounded(series: FrequencySeries) -> Rule | None:
    for name, to in _rounding.NARROW.items():
        rule = _rules.find_nearest(series, 2.0**-8 if name == "bfloat16" else 2.0**-10)
        if rule is not None:
            exact = to(_rules.compute_frequencies(*rule, series.rotary_dim))
            bound = (2e-6 + series.uncertainty) * exact + 1e-12
            if np.mean(np.abs(series.values - exact) <= bound) > 0.9:
                return rule
    return None


def _fit_dynamic_ntk(
    array: RotatedArray, length: LengthDependence, base: float, r: int
) -> DynamicNTK | None:
    """Return the dynamic NTK by which frequencies change with the length, None if none does."""
    short = _rules.compute_frequencies(base, None, r)[-1]
    steps = [0, *(1 << k for k in range(9))]
    lengths = [2 * length.trained, 4 * length.trained]
    slowdowns = []
    for n in lengths:
        try:
            turns = length.read(array, steps, n)
        except CallRefused:
            return None
        slowest = abs(float(np.angle(turns[-1] / turns[0])[-1])) / steps[-1]
        # The base grows by g ** (r / (r - 2)), so the slowest pair is g times slower.
        slowdowns.append(short / slowest if slowest else np.inf)
    slope = (slowdowns[1] - slowdowns[0]) / (lengths[1] - lengths[0])
    for factor in _rules.round_to_few_digits(slope * length.trained, 2e-2):
        scaling = DynamicNTK(factor, length.trained)
        slow = [scaling.for_length(n).frequencies(base, r)[-1] for n in lengths]
        if np.allclose(slow, short / np.array(slowdowns), rtol=2e-3, atol=0.0):
            return scaling
    return None
