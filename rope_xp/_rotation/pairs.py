"""The rotation itself, in the plain array API: the specification in code.

RoFormer, arXiv 2104.09864, eq. 34, for the pair (x1, x2) and its angle a:

    y1 = x1 cos a - x2 sin a
    y2 = x2 cos a + x1 sin a

A layout reads r consecutive components as a matrix: (r/2, 2) for pairs (2i, 2i+1), (2, r/2) for
pairs (i, i + r/2). Compilers like that: XLA on a CPU takes 2.7 times as long to concatenate halves.
"""

from rope_xp._core.call import RotationSpec, get_interleaved
from rope_xp._core.typing import Array, Namespace


def rotate(xp: Namespace, x: Array, cos: Array, sin: Array, spec: RotationSpec) -> Array:
    """Return x with its rotary slice rotated, in the dtype of cos and sin, and rounded once.

    cos and sin broadcast against x but for their last axis, of length r/2.
    """
    pairs, offset = cos.shape[-1], spec.rotary_offset
    rotary_dim = 2 * pairs
    whole = x.shape[-1] == rotary_dim
    y = x if whole else x[..., offset : offset + rotary_dim]
    interleaved_in, interleaved_out = get_interleaved(spec)
    if spec.inverse:
        sin = -sin
    lead = y.shape[:-1]
    y = xp.reshape(y, (*lead, pairs, 2) if interleaved_in else (*lead, 2, pairs))
    x1, x2 = (y[..., 0], y[..., 1]) if interleaved_in else (y[..., 0, :], y[..., 1, :])
    narrow = x.dtype != cos.dtype
    if narrow:
        x1, x2 = xp.astype(x1, cos.dtype), xp.astype(x2, cos.dtype)
    rotated = [x1 * cos - x2 * sin, x2 * cos + x1 * sin]
    y = xp.reshape(xp.stack(rotated, axis=-1 if interleaved_out else -2), (*lead, rotary_dim))
    if narrow:
        y = xp.astype(y, x.dtype)
    if whole:
        return y
    return xp.concat([x[..., :offset], y, x[..., offset + rotary_dim :]], axis=-1)
