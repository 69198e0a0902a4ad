"""What is right, by the papers' formulas in long double. Shares no code with the library."""

import numpy as np

from support.oracles import pair_indices

WIDE = np.longdouble
PI = WIDE("3.14159265358979323846264338327950288419716939937511")


def series(base, r):
    """Return base ** (-2i / r), RoFormer's eq. 15."""
    return WIDE(base) ** (-2 * np.arange(r // 2, dtype=WIDE) / r)


def frequencies(base, r, rule):
    plain = series(base, r)
    if rule is None:
        return plain
    return globals()[f"_{type(rule).__name__.lower()}"](rule, WIDE(base), r, plain)


def _linear(rule, base, r, plain):
    return plain / WIDE(rule.factor)


def _ntk(rule, base, r, plain):
    return series(base * WIDE(rule.factor) ** (WIDE(r) / (r - 2)), r)


def _dynamicntk(rule, base, r, plain):
    trained, factor = rule.max_position_embeddings, WIDE(rule.factor)
    grown = factor * max(rule.length, trained) / trained - (factor - 1)
    return series(base * grown ** (WIDE(r) / (r - 2)), r)


def _yarn(rule, base, r, plain):
    low, high = (
        r
        * np.log(rule.original_max_position_embeddings / (2 * PI * WIDE(turns)))
        / (2 * np.log(base))
        for turns in (rule.beta_fast, rule.beta_slow)
    )
    if rule.truncate:
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, WIDE(0)), min(high, WIDE(r - 1))
    if low == high:
        high += WIDE(0.001)
    ramp = np.clip((np.arange(r // 2) - low) / (high - low), 0, 1)
    return plain * (1 - ramp) + plain / WIDE(rule.factor) * ramp


def _longrope(rule, base, r, plain):
    long = rule.length > rule.original_max_position_embeddings
    return plain / np.array(rule.long_factor if long else rule.short_factor, WIDE)


def _llama3(rule, base, r, plain):
    turns = rule.original_max_position_embeddings * plain / (2 * PI)
    low, high = WIDE(rule.low_freq_factor), WIDE(rule.high_freq_factor)
    kept = np.clip((turns - low) / (high - low), 0, 1) if high > low else 1.0 * (turns >= low)
    return (1 - kept) * plain / WIDE(rule.factor) + kept * plain


def _proportional(rule, base, r, plain):
    turning = int(rule.partial_rotary_factor * r / 2)
    return np.where(np.arange(r // 2) < turning, plain / WIDE(rule.factor), 0)


def _axial(rule, base, r, plain):
    if rule.order == "strided":
        return np.concatenate([plain[a :: rule.axes] for a in range(rule.axes)])
    sections = rule.sections or (r // rule.axes,) * rule.axes
    own = [
        list(series(base if rule.bases is None else rule.bases[axis], n))
        for axis, n in enumerate(sections)
    ]
    if rule.order == "blocks":
        return np.concatenate(own)
    dealt = []
    while any(own):
        dealt += [each.pop(0) for each in own if each]
    return np.array(dealt)


def angles(positions, turned, axes):
    """Return (batch..., tokens, r/2); with axes, positions (components, batch..., tokens)."""
    p = positions.astype(WIDE)
    if axes is None:
        return p[..., None] * turned
    return np.stack([p[axis] * f for axis, f in zip(axes, turned, strict=True)], axis=-1)


def pairs(layout, r, inverse):
    """Return where the two of each pair are read and where they are written, (2, r/2) each."""
    read, written = map(np.array, pair_indices(layout, r))
    return (written, read) if inverse else (read, written)


def forward(x, axes):
    """Return x with axes batch..., s, h, d; an axis of length 1 stands for heads where none are."""
    names = [a for a in axes if a not in "shd"] + [a for a in "shd" if a in axes]
    x = np.transpose(x, [axes.index(a) for a in names])
    return x if "h" in axes else x[..., None, :]


def back(x, axes):
    names = [a for a in axes if a not in "shd"] + [a for a in "shd" if a in axes]
    x = x if "h" in axes else x[..., 0, :]
    return np.transpose(x, [names.index(a) for a in axes])
