"""Rotation by arrays of frequencies: learned, or mixed from several components."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._arguments import learned
from rope_xp._arguments.slices import slice_of
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import ArrayT, Layout
from rope_xp._dispatch import choose
from rope_xp.rope import Positions, RoPE


def apply_frequencies(
    q: ArrayT,
    k: ArrayT,
    positions: Positions,
    frequencies: Any,
    *,
    layout: Layout,
    axes: str | None = None,
    out: tuple[ArrayT, ArrayT] | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Rotate queries and keys by frequencies that are an array: learned, mixed, or one set a head.

    The angle of a pair is its frequency times the position. With several components it is the sum
    of their products, as in RoPE-Mixed and Mochi.

    Parameters
    ----------
    q, k, axes, out
        As for :meth:`RoPE.apply`.
    positions : array or sequence, (tokens,) or (batch, tokens)
        As for :meth:`RoPE.apply`. Where frequencies have components: (components, tokens) or
        (components, batch, tokens). None: 0, 1, ... for each component.
    frequencies : array, (r/2,), (heads, r/2) or (components, heads, r/2)
        Radians per token, below 2**20 in modulus; others on a device give NaN. Of the library and
        device of q, or numpy. r <= head_dim components are rotated, the rest passes through. heads
        are those of k, and each serves as many heads of q; 1 stands for all.
    layout
        As for :class:`RoPE`.

    Returns
    -------
    q_rotated, k_rotated : array
        With the shape, dtype, library and device of q and k. In torch and jax they can be
        differentiated with respect to q, k, frequencies, and positions that are floats.

    Raises
    ------
    RopeError, TypeError
        As :meth:`RoPE.apply`; also for frequencies that do not fit.

    Notes
    -----
    A float32 product of position and frequency is off by 3e-2 at position 10**6. Here whole turns
    are subtracted before rounding: cos and sin of float32 are off by less than 3.2e-7 at any
    position of one component below 2**31, those of float64 by less than 4e-16, for exactly these
    frequencies. A float32 does not hold all digits of a RoPE's: where they are not learned, use
    :class:`RoPE`, which is faster too.

    Heo et al., "Rotary Position Embedding for Vision Transformer", arXiv 2403.13298, eq. 14
    (RoPE-Mixed).

    Examples
    --------
    Two components of a position, each head with its own mixture of them:

    >>> import numpy as np
    >>> import rope_xp
    >>> from rope_xp import positions
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.standard_normal((2, 1, 6, 8, 64), np.float32)
    >>> frequencies = rng.standard_normal((2, 8, 32), np.float32)
    >>> cells = positions.grid(2, 3)
    >>> q_rotated, k_rotated = rope_xp.apply_frequencies(q, k, cells, frequencies, layout="half")
    >>> q_rotated.shape
    (1, 6, 8, 64)
    """
    call = learned.apply_frequencies(q, k, positions, frequencies, layout, axes, out)
    rotated_q, rotated_k = choose.run(call)
    return rotated_q, rotated_k


def initial_frequencies(rope: RoPE, head_dim: int, heads: int = 1) -> NDArray[np.float64]:
    """Return the frequencies of a RoPE in the shape that :func:`apply_frequencies` takes.

    (r/2,), for several heads (heads, r/2), and with position axes (components, heads, r/2): each
    pair has its frequency at the component that it reads, and 0 at the others.
    """
    r, offset = slice_of(rope, head_dim)
    if offset or rope.attention_factor != 1.0:
        msg = (
            "frequencies are learned for the first components of a head, without a factor on cos "
            f"and sin; this rope has rotary_offset = {offset} and attention_factor = "
            f"{rope.attention_factor:g}"
        )
        raise RopeError(msg)
    frequencies = rope.frequencies(head_dim)
    if rope.position_axes is None:
        return frequencies if heads == 1 else np.tile(frequencies, (heads, 1))
    mixed = np.zeros((max(rope.position_axes) + 1, heads, r // 2))
    mixed[rope.position_axes, :, np.arange(r // 2)] = frequencies[:, None]
    return mixed
