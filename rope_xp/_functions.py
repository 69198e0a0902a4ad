"""The public functions on arrays, which build or take a RoPE and call its methods."""

from dataclasses import replace
from typing import Any, Literal

from rope_xp._arguments import fields, learned, parse, parse_tables
from rope_xp._arguments.out import check_out
from rope_xp._core import numbers
from rope_xp._core.caches import BoundedCache
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import ArrayT, Layout
from rope_xp._dispatch import choose, find, how
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.choose import Explanation
from rope_xp.norm import QKNorm
from rope_xp.rope import Positions, RoPE

_DEFAULT = RoPE()
_ropes = BoundedCache(f"{__name__}._ropes", 128)
"""Ropes by their fields, with the values of these, whose addresses stay valid that way."""
_BY_VALUE = frozenset({int, float, str, type(None)})


def _resolve_rope(rope: RoPE | None, options: dict[str, Any], like: object) -> RoPE:
    """Return the rope, or a cached one of these fields."""
    if not options:
        if rope is None:
            return _DEFAULT
        fields.check_rope(rope, RoPE)
        return rope
    if rope is not None:
        listed = ", ".join(options)
        raise TypeError(
            f"got both rope and its fields ({listed}); pass one, or dataclasses.replace(rope, ...)"
        )
    backend = find.by_type.get(type(like))
    if backend is None or backend.is_compiling():  # which would trace through the cache
        return RoPE(**options)
    # Scaling by its address: to hash long lists of factors takes as long as the rotation.
    values = tuple(options.values())
    by = [value if type(value) in _BY_VALUE else id(value) for value in values]
    key = (*options, *map(type, values), *by)
    entry = _ropes.get(key)
    if entry is None:
        entry = (RoPE(**options), values)
        _ropes.store(key, entry)
    return entry[0]  # type: ignore[no-any-return]  # of the entry


def apply(
    q: ArrayT,
    k: ArrayT,
    positions: Positions = None,
    rope: RoPE | None = None,
    *,
    axes: str | None = None,
    k_positions: Positions = None,
    out: tuple[ArrayT | None, ArrayT] | None = None,
    slots: Any = None,
    cache_axes: str | None = None,
    norm: QKNorm | None = None,
    **options: Any,
) -> tuple[ArrayT, ArrayT]:
    """Rotate queries and keys by their positions. See :meth:`RoPE.apply`.

    Parameters
    ----------
    q, k, positions, axes, k_positions, out, slots, cache_axes, norm
        See :meth:`RoPE.apply`.
    rope : RoPE, optional
        Default ``RoPE()``.
    **options
        Fields of :class:`RoPE` in place of ``rope``: ``layout="half", base=5e5``. Passing both is a
        TypeError.

    Examples
    --------
    Four tokens after 1000 cached ones, two query heads for each key head:

    >>> import numpy as np
    >>> import rope_xp
    >>> q, k = np.ones((1, 4, 8, 64), np.float32), np.ones((1, 4, 4, 64), np.float32)
    >>> q_rotated, k_rotated = rope_xp.apply(q, k, 1000 + np.arange(4), layout="half", base=5e5)
    """
    return _resolve_rope(rope, options, q).apply(
        q,
        k,
        positions,
        axes=axes,
        k_positions=k_positions,
        out=out,
        slots=slots,
        cache_axes=cache_axes,
        norm=norm,
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
    """Rotate an array by your own tables of cos and sin, as ONNX ``RotaryEmbedding`` does.

    Parameters
    ----------
    x, axes, out
        See :meth:`RoPE.apply`, also for errors; ``out=x`` rotates in place.
    cos, sin : array, (batch..., tokens, r/2) or (batch..., tokens, heads, r/2)
        One column for each pair; r <= head_dim components are rotated. Arrays of the same library
        and device, or of numpy. They are used in float32, for float64 x in float64. They broadcast
        as the angles of :func:`apply_angles`; heads divides that of x. In torch and jax, the result
        is differentiable with respect to them too.
    layout, rotary_offset
        See :class:`RoPE`.
    inverse : bool, default False
        Whether to rotate by the negative angle, with input and output layouts swapped.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> x = np.array([[1.0, 2.0, 3.0, 4.0]])
    >>> cos, sin = np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])
    >>> rope_xp.apply_tables(x, cos, sin, layout="half").tolist()
    [[-3.0, 2.0, 1.0, 4.0]]
    """
    backend = find.by_type.get(type(x)) or find.find_backend(x)
    slice_ = layout, 0, rotary_offset, 0
    flags = how.ONE | how.GIVEN_COLUMNS | how.CHECK_COLUMNS | (how.INVERSE if inverse else 0)
    if backend is not None:
        call = *slice_, x, None, cos, sin, axes, out, None, None, None, flags
        result = backend.rotate_by_tables(*call)
        if result is not None:
            return result  # type: ignore[no-any-return]  # same kind as x
    arguments = slice_, (x,), (cos, sin), axes, out, None, flags
    return choose.run(parse_tables.rotate_by_tables(*arguments))[0]  # type: ignore[no-any-return]  # same kind as x


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
    """Rotate queries and keys by an array of frequencies: learned, mixed, or one set per head.

    The angle of a pair is its frequency times the position. With several components it is the sum
    of the products, as in RoPE-Mixed (Heo et al., arXiv 2403.13298, eq. 14) and Mochi.

    Parameters
    ----------
    q, k, axes, out
        See :meth:`RoPE.apply`, also for errors.
    positions : array or sequence, (tokens,) or (batch, tokens)
        See :meth:`RoPE.apply`. If frequencies have components: (components, tokens) or
        (components, batch, tokens). None: 0, 1, ... for each component.
    frequencies : array, (r/2,), (heads, r/2) or (components, heads, r/2)
        Radians per token, with absolute values below 2**20; larger ones on a device give NaN. An
        array of q's library and device, or of numpy. r <= head_dim components are rotated, the
        others do not change. heads is that of k, as for grouped queries, or 1 for all heads.
    layout
        See :class:`RoPE`.

    Returns
    -------
    q_rotated, k_rotated : array
        In torch and jax, differentiable with respect to q, k, frequencies, and float positions.

    Notes
    -----
    Whole turns are subtracted before rounding. With one component, cos and sin have errors below
    3.2e-7 (float32) or 4e-16 (float64) at any position below 2**31. Frequencies in float32 are
    themselves rounded; if they are not learned, use :class:`RoPE`.

    Examples
    --------
    Positions with two components, which each head mixes differently:

    >>> import numpy as np
    >>> import rope_xp
    >>> from rope_xp import positions
    >>> q, k = np.ones((2, 1, 6, 8, 64), np.float32)
    >>> frequencies = np.random.default_rng(0).standard_normal((2, 8, 32), np.float32)
    >>> cells = positions.grid(2, 3)
    >>> q_rotated, k_rotated = rope_xp.apply_frequencies(q, k, cells, frequencies, layout="half")
    """
    backend = find.by_type.get(type(q)) or find.find_backend(q)
    if backend is not None:
        results = backend.rotate_by_product(q, k, positions, frequencies, layout, axes, out)
        if results is not None:
            return results[0], results[1]
    call = learned.apply_frequencies(q, k, positions, frequencies, layout, axes)
    return choose.run(replace(call, out=check_out(call.backend, (q, k), out)))


def apply_angles(
    q: ArrayT,
    k: ArrayT,
    angles: Any,
    *,
    layout: Layout = "interleaved",
    axes: str | None = None,
    k_angles: Any = None,
    rotary_offset: int = 0,
    norm: QKNorm | None = None,
    out: tuple[ArrayT, ArrayT] | None = None,
) -> tuple[ArrayT, ArrayT]:
    """Rotate queries and keys by angles of any origin, in radians.

    For angles that are no product of a position and a frequency: computed from inputs, as in
    Mamba-3 (arXiv 2603.15569) and Selective RoPE (arXiv 2511.17388), or another set for each head.
    Their cos and sin may be mixed further, as in FoPE (arXiv 2412.17739): pass these to
    :func:`apply_tables`.

    Parameters
    ----------
    q, k, axes, norm, out
        See :meth:`RoPE.apply`, also for errors.
    angles : array, (batch..., tokens, r/2) or (batch..., tokens, heads, r/2)
        Radians, one column for each pair; r <= head_dim components are rotated. An array of q's
        library and device, or of numpy. Batch and tokens may have length 1, and leading axes may be
        missing, but not from angles with heads: so the two are distinguished. heads is that of k,
        as for grouped queries, or 1; with k_angles it divides that of q.
    k_angles : array, optional
        Angles of k where they differ from those of q. k may then have other tokens.
    layout, rotary_offset
        See :class:`RoPE`.

    Returns
    -------
    q_rotated, k_rotated : array
        In torch and jax, differentiable with respect to q, k, angles and weights of the norm.

    Notes
    -----
    Cos and sin are those of the library, in the dtype of the angles, at least float32; mlx computes
    float64 in float32. A float32 angle is itself rounded, by up to 2**-24 of it: subtract whole
    turns from long sums before they are rounded, or pass float64.

    Examples
    --------
    Each head of k, and the two of q that read it, has a phase that inputs add up to:

    >>> import numpy as np
    >>> import rope_xp
    >>> q, k = np.ones((1, 6, 4, 64), np.float32), np.ones((1, 6, 2, 64), np.float32)
    >>> steps = np.random.default_rng(0).standard_normal((1, 6, 2, 32), np.float32)
    >>> q_rotated, k_rotated = rope_xp.apply_angles(q, k, np.cumsum(steps, axis=1), layout="half")
    """
    tables = [parse_tables.compute_cos_sin(angles, "angles")]
    if k_angles is not None:
        tables.append(parse_tables.compute_cos_sin(k_angles, "k_angles"))
    pairs = parse_tables.Pairs(layout, 0, rotary_offset)
    backend = find.by_type.get(type(q)) or find.find_backend(q)
    results = None
    if backend is not None and k_angles is None:
        rest = axes, out, norm, None, None, how.GIVEN_COLUMNS
        results = backend.rotate_by_tables(*pairs[:3], 0, q, k, *tables[0], *rest)
    elif backend is not None and norm is None and out is None:
        results = _rotate_apart(backend, pairs, (q, k), tables, axes)
    if results is None:
        names = "angles", "k_angles"
        call = parse_tables.rotate(pairs, (q, k), tables, axes, out, False, norm, names)
        results = choose.run(call)
    return results[0], results[1]


def _rotate_apart(backend: Backend, pairs: Any, arrays: Any, tables: Any, axes: str | None) -> Any:
    """Return q and k rotated by tables of their own, None to leave both to the slow path."""
    parse.check_arrays(arrays, axes, has_k_positions=True)
    if len({cos.shape[-1] for cos, _ in tables}) > 1:
        return None
    rest = axes, None, None, None, None, how.ONE | how.GIVEN_COLUMNS
    results = [
        backend.rotate_by_tables(*pairs[:3], 0, x, None, *given, *rest)
        for x, given in zip(arrays, tables, strict=True)
    ]
    return None if any(y is None for y in results) else results


def explain(
    q: ArrayT,
    k: ArrayT,
    positions: Positions = None,
    rope: RoPE | None = None,
    *,
    axes: str | None = None,
    k_positions: Positions = None,
    out: tuple[ArrayT, ArrayT] | None = None,
    norm: QKNorm | None = None,
    **options: Any,
) -> Explanation:
    """Return the path that :func:`apply` takes for these arguments, and why others decline.

    Raises RopeError also if :func:`use_path` forces a path that cannot run.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> q = np.ones((1, 4, 8, 64), np.float32)
    >>> rope_xp.explain(q, q).library
    'numpy'
    """
    rope = _resolve_rope(rope, options, q)
    call = parse.rotate(rope, (q, k), positions, axes, out, False, norm, k_positions)
    return choose.explain(call)


def permute_weights(w: ArrayT, num_heads: int, *, to: Literal["interleaved", "half"]) -> ArrayT:
    """Reorder the rows of a q or k projection from one layout to the other.

    The model then has the same attention scores with the other layout. All components of a head
    must be rotated. RopeError if the first axis does not divide into heads of even size.

    Parameters
    ----------
    w : array, (num_heads * head_dim, ...)
        Weight (out, in) or bias (out,) in the other layout, of any library and dtype.
    num_heads : int
        Heads of this projection; for k with grouped queries, the number of key heads.
    to : {"interleaved", "half"}
        The layout of the result. From Meta's Llama checkpoints to Hugging Face: "half". Row 2i + j
        of a head (j = 0, 1) in the interleaved layout is row j * head_dim/2 + i in the half layout.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> rope_xp.permute_weights(np.arange(8), 2, to="half").tolist()
    [0, 2, 1, 3, 4, 6, 5, 7]
    """
    backend = find.require_backend(w, "w")
    shape = tuple(w.shape)  # type: ignore[attr-defined]  # every array has one
    num_heads = numbers.check_positive_int("num_heads", num_heads)
    if to not in ("interleaved", "half"):
        raise RopeError(f"to must be 'interleaved' or 'half', the layout of the result; got {to!r}")
    if not shape or shape[0] % (2 * num_heads):
        raise RopeError(
            f"w has shape {shape}; its first axis must be num_heads * head_dim with head_dim even, "
            f"and num_heads is {num_heads}. Grouped keys have fewer heads than queries"
        )
    xp = backend.xp
    pairs = shape[0] // num_heads // 2
    split = (num_heads, pairs, 2) if to == "half" else (num_heads, 2, pairs)
    rows = xp.reshape(w, (*split, *shape[1:]))
    order = (0, 2, 1, *range(3, len(shape) + 2))
    return xp.reshape(xp.permute_dims(rows, order), shape)  # type: ignore[no-any-return]  # as w
