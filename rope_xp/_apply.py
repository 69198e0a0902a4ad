"""The public functions on arrays: docstring, validation, delegation."""

from typing import Any

from rope_xp._arguments import fields, parse, parse_tables
from rope_xp._core.caches import BoundedCache
from rope_xp._core.typing import ArrayT, Layout
from rope_xp._dispatch import call_cache, choose, find
from rope_xp._dispatch.choose import Explanation
from rope_xp.rope import Positions, RoPE

_DEFAULT = RoPE()


_ropes = BoundedCache(f"{__name__}._ropes", 128)
"""Ropes that were made of fields, beside the values of these, which keep their addresses."""
_BY_VALUE = frozenset({int, float, str, type(None)})


def _rope(rope: RoPE | None, options: dict[str, Any], like: object) -> RoPE:
    """Return the rope, or that of its fields, which is made once for as long as it is cached."""
    if not options:
        if rope is None:
            return _DEFAULT
        fields.check_rope(rope, RoPE)
        return rope
    if rope is not None:
        listed = ", ".join(options)
        msg = (
            f"got both rope and its fields ({listed}); pass one, or dataclasses.replace(rope, ...)"
        )
        raise TypeError(msg)
    backend = find.by_type.get(type(like))
    if backend is None or backend.is_compiling():  # which would trace through the cache
        return RoPE(**options)
    # Rules by their address: to hash long lists of factors takes as long as the rotation.
    values = tuple(options.values())
    by = [value if type(value) in _BY_VALUE else id(value) for value in values]
    key = (*options, *map(type, values), *by)
    known = _ropes.get(key)
    if known is None:
        known = (RoPE(**options), values)
        _ropes.store(key, known)
    return known[0]


def apply(
    q: ArrayT,
    k: ArrayT,
    positions: Positions = None,
    rope: RoPE | None = None,
    *,
    axes: str | None = None,
    k_positions: Positions = None,
    out: tuple[ArrayT, ArrayT] | None = None,
    **options: Any,
) -> tuple[ArrayT, ArrayT]:
    """Rotate queries and keys by their positions.

    Parameters
    ----------
    q : array, (batch, tokens, heads, head_dim) or as ``axes`` says
        Queries of numpy, torch, jax, cupy or any library of the array API standard. float16,
        bfloat16, float32 or float64; the lower two are computed in float32 and rounded once.
    k : array, like q
        Keys, of the same library and device. They may have fewer heads (grouped queries) and,
        with ``k_positions``, another number of tokens.
    positions : array or sequence, broadcastable to (batch, tokens), optional
        Integers or floats, in tokens, batch first whatever ``axes`` says: (tokens,),
        (batch, tokens), or (batch, 1) for all tokens of a sequence. Of the same library, numpy, or
        Python numbers. A lone number, 5 or [5], only where there is one token. With
        ``position_axes`` they have a leading axis of components. None: 0, 1, ... tokens - 1. The
        modulus must be below 2**31; positions on a device are not read to check that, and those
        beyond give NaN.
    rope : RoPE, optional
        What to rotate by. Default ``RoPE()``.
    axes : str, optional
        One letter an axis of q and k: ``s`` tokens, ``h`` heads, ``d`` head_dim (last), any other
        batch. "bshd" is the default for four axes, "shd" for three, "sd" for two, and batch axes
        before these for more. "bhsd" is Hugging Face and torch's attention, "sbhd" Megatron.
    k_positions : array or sequence, optional
        Positions of k where they differ from those of q.
    out : (array, array), optional
        Where to write the two results. ``out=(q, k)`` is in place. Not with jax.
    **options
        The fields of :class:`RoPE`, instead of ``rope``: ``layout="half", base=5e5``.

    Returns
    -------
    q_rotated, k_rotated : array
        With the shape, dtype, library and device of q and k. Inputs are not written, unless
        ``out`` names them.

    Raises
    ------
    RopeError
        If shapes, devices, positions or options do not fit; nothing has been written then.
    TypeError
        If an argument is of the wrong type, q and k are of different libraries, or both ``rope``
        and ``options`` are given.

    Notes
    -----
    Su et al., arXiv 2104.09864, eq. 34. The angle of pair i at position p is p * base**(-2i/r)
    (eq. 15), accurate at any position.

    Examples
    --------
    Four tokens that follow 1000 cached ones, two query heads to a key head:

    >>> import numpy as np
    >>> import rope_xp
    >>> q, k = np.ones((1, 4, 8, 64), np.float32), np.ones((1, 4, 4, 64), np.float32)
    >>> q_rotated, k_rotated = rope_xp.apply(q, k, 1000 + np.arange(4), layout="half", base=5e5)
    >>> q_rotated.shape, k_rotated.shape
    ((1, 4, 8, 64), (1, 4, 4, 64))

    Heads before tokens, in place:

    >>> q = np.ones((1, 8, 4, 64), np.float32)
    >>> k = q.copy()
    >>> q_rotated, k_rotated = rope_xp.apply(q, k, axes="bhsd", out=(q, k))
    >>> q_rotated is q
    True
    """
    return _rope(rope, options, q).apply(
        q, k, positions, axes=axes, k_positions=k_positions, out=out
    )


def apply_tables(
    x: ArrayT,
    cos: Any,
    sin: Any,
    *,
    layout: Layout = "interleaved",
    inverse: bool = False,
    axes: str | None = None,
    rotary_offset: int = 0,
    out: ArrayT | None = None,
) -> ArrayT:
    """Rotate an array by tables of the caller: the rotation alone.

    This is what ONNX ``RotaryEmbedding`` and Hugging Face's ``apply_rotary_pos_emb`` do.

    Parameters
    ----------
    x : array, (batch, tokens, heads, head_dim) or as ``axes`` says
        float16, bfloat16, float32 or float64.
    cos, sin : array, broadcastable to (batch, tokens, r/2)
        One column for each pair; r <= head_dim components are rotated. Of the same library and
        device, or numpy. They are used in float32, in float64 where x is.
    layout : {"interleaved", "half", "interleaved_to_half"}, default "interleaved"
        How components pair up, see :class:`RoPE`.
    inverse : bool, default False
        Rotate by the negative angle, with the layouts read and written swapped.
    axes : str, optional
        Names of the axes of x, see :func:`apply`.
    rotary_offset : int, default 0
        Where the rotated slice starts; negative counts from the end.
    out : array, optional
        Where to write; x itself for in place.

    Returns
    -------
    array
        Rotated, with the shape, dtype, library and device of x.

    Raises
    ------
    RopeError
        If shapes, devices or options do not fit.
    TypeError
        If an argument is of the wrong type or library.

    Notes
    -----
    Su et al., arXiv 2104.09864, eq. 34; ONNX operator RotaryEmbedding, version 23.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])
    >>> rope_xp.apply_tables(x, cos, sin, layout="half").tolist()
    [[-3.0, 2.0, 1.0, 4.0]]
    """
    into = None if out is None else (out,)
    how = (layout, rotary_offset, type(rotary_offset))  # as 1, 1.0 and True are equal
    signature = call_cache.signature(how, (x,), None, axes, into, inverse, (cos, sin))
    arguments = x, cos, sin, layout, inverse, axes, rotary_offset, out
    return call_cache.run(signature, parse_tables.apply_tables, *arguments)[0]  # type: ignore[no-any-return]  # same kind as x


def explain(
    q: ArrayT,
    k: ArrayT,
    positions: Positions = None,
    rope: RoPE | None = None,
    *,
    axes: str | None = None,
    k_positions: Positions = None,
    out: tuple[ArrayT, ArrayT] | None = None,
    **options: Any,
) -> Explanation:
    """Tell which path :func:`apply` would take with these arguments, without taking it.

    Parameters
    ----------
    q, k, positions, rope, axes, k_positions, out, **options
        As for :func:`apply`.

    Returns
    -------
    Explanation
        The path, and why each faster one declined.

    Raises
    ------
    RopeError, TypeError
        As :func:`apply`; also where a path asked for by name cannot run.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> q = np.ones((1, 4, 8, 64), np.float32)
    >>> rope_xp.explain(q, q).library
    'numpy'
    """
    rope = _rope(rope, options, q)
    return choose.explain(parse.apply(rope, q, k, positions, axes, k_positions, out))
