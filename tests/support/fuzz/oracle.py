"""What is right, by the papers' formulas in long double. Shares no code with the library."""

import numpy as np

WIDE = np.longdouble


def series(base, r):
    """Return base ** (-2i / r), RoFormer's eq. 15."""
    return WIDE(base) ** (-2 * np.arange(r // 2, dtype=WIDE) / r)


def angles(positions, turned, axes):
    """Return (batch..., tokens, r/2); with axes, positions (components, batch..., tokens)."""
    p = positions.astype(WIDE)
    if axes is None:
        return p[..., None] * turned
    return np.stack([p[axis] * f for axis, f in zip(axes, turned, strict=True)], axis=-1)


def view(x, axes):
    """Return a view with axes batch..., s, h, d; one of length 1 is for heads where none are."""
    names = [a for a in axes if a not in "shd"] + [a for a in "shd" if a in axes]
    x = np.transpose(x, [axes.index(a) for a in names])
    return x if "h" in axes else x[..., None, :]
