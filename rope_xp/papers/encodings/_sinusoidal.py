"""Sinusoidal encodings, absolute and relative. Public in :mod:`rope_xp.papers.encodings`."""

from typing import Any

from rope_xp._core import numbers
from rope_xp._core.typing import Array, ArrayT, Device, Namespace
from rope_xp._dispatch import find
from rope_xp._rotation.angles import with_axes
from rope_xp.papers import _heads
from rope_xp.papers.encodings import _operands
from rope_xp.rope import RoPE

_COLUMNS = "a sine and a cosine for each frequency"


def sinusoidal(
    positions: Any,
    dim: int,
    *,
    base: float = 10000.0,
    xp: Namespace | None = None,
    device: Device | None = None,
    dtype: Any = None,
) -> Array:
    """Return sines and cosines of positions, to add to token embeddings.

    Column 2t is ``sin(p * base ** (-2t / dim))``, and column 2t + 1 the cosine of the same angle:
    Vaswani et al., arXiv 1706.03762, section 3.5. The code of tensor2tensor and Transformer-XL puts
    all sines before all cosines.

    Parameters
    ----------
    positions : array or sequence, (..., tokens)
        Integers or floats, in tokens, with absolute values below 2**31.
    dim : int
        Number of columns, even.
    base : float, default 10000.0
        Base of the geometric series of frequencies.
    xp, device, dtype : optional
        Library, device and dtype of the result, as for :meth:`rope_xp.RoPE.cos_sin`.

    Returns
    -------
    array, (..., tokens, dim)
        Dimensionless; float32 by default. Errors are below 2.4e-7 up to position 2**22, and below
        4e-7 up to 2**31.

    Examples
    --------
    >>> from rope_xp.papers import encodings
    >>> encodings.sinusoidal([0, 1], 4, dtype="float64").round(4).tolist()
    [[0.0, 1.0, 0.0, 1.0], [0.8415, 0.5403, 0.01, 1.0]]
    """
    numbers.check_even("dim", dim, _COLUMNS)
    cos, sin = RoPE(base=base).cos_sin(positions, dim, xp=xp, device=device, dtype=dtype)
    namespace = find.require_backend(cos, "cos").xp
    return namespace.reshape(namespace.stack([sin, cos], axis=-1), (*cos.shape[:-1], dim))


def transformer_xl(
    q: ArrayT,
    k: ArrayT,
    u: ArrayT,
    v: ArrayT,
    w_relative: ArrayT,
    *,
    base: float = 10000.0,
    positions: Any = None,
    k_positions: Any = None,
    scale: float = 1.0,
) -> ArrayT:
    """Return the scores of Transformer-XL, with sinusoids of the distance.

    ``(q_m + u) . k_n + (q_m + v) . W p(m - n)``: Dai et al., arXiv 1901.02860, section 3.3.
    RoFormer's eq. 7 multiplies u and v by W_q too; pass ``W_q u`` and ``W_q v`` for that.

    Parameters
    ----------
    q, k, positions, k_positions, scale
        As for :func:`shaw`.
    u, v : array, (heads, head_dim)
        Biases added to the query for the content term and for the position term.
    w_relative : array, (heads, head_dim, dim)
        W, which projects the sinusoidal encoding p of dim columns; see :func:`sinusoidal`.
    base : float, default 10000.0
        Base of the encoding p.

    Examples
    --------
    >>> import numpy as np
    >>> from rope_xp.papers import encodings
    >>> q, u, v, w = np.zeros((3, 1, 2)), np.zeros((1, 2)), np.array([[1.0, 0.0]]), np.eye(2)[None]
    >>> encodings.transformer_xl(q, q, u, v, w).round(2).tolist()
    [[[0.0, -0.84, -0.91], [0.84, 0.0, -0.84], [0.91, 0.84, 0.0]]]
    """
    operands = _operands.check_operands(positions, k_positions, scale, q=q, k=k)
    shape = operands.head_shape
    to_content, to_position = (
        with_axes(operands.parameter(name, x, "(heads, head_dim)", shape), len(operands.q.shape))
        for name, x in (("u", u), ("v", v))
    )
    w = operands.parameter("w_relative", w_relative, "(heads, head_dim, dim)", (*shape, None))
    numbers.check_even("the last axis of w_relative", w.shape[-1], _COLUMNS)
    xp, encoding = (
        operands.xp,
        sinusoidal(operands.distances, w.shape[-1], base=base, dtype=w.dtype),
    )
    # W is applied to the query, which spares projecting the encoding for every head.
    projected = xp.matmul((operands.q + to_position)[..., None, :], w)[..., 0, :]
    content = _heads.multiply_heads(xp, operands.q + to_content, operands.k)
    return operands.finish(q, content + operands.multiply_rows(projected, encoding))
