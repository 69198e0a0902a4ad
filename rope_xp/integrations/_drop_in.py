"""The function that stands for ``apply_rotary_pos_emb`` of transformers."""

from rope_xp._arguments.table_forms import COLUMNS, Columns, one_per_pair, read_columns
from rope_xp._core import numbers
from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Layout
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.rope import RoPE


def apply_rotary_transformers(
    q: Array,
    k: Array | None,
    cos: Array,
    sin: Array,
    unsqueeze_dim: int = 1,
    *,
    layout: Layout | None = None,
    columns: Columns | None = None,
) -> tuple[Array, Array | None]:
    """Rotate by the tables of a transformers model; replaces its ``apply_rotary_pos_emb``.

    Tables narrower than a head rotate its first components, as in GPT-NeoX.

    Parameters
    ----------
    q, k : array, (batch, heads, tokens, head_dim) or as ``unsqueeze_dim`` says
        float16, bfloat16, float32 or float64. k may have fewer heads, or be None.
    cos, sin : array, (batch, tokens, r)
        A column for each of the r rotated components, as the models' rotary modules return them:
        the two columns of a pair are equal. batch may be 1, or the axis missing.
    unsqueeze_dim : int, default 1
        Where cos and sin get an axis for heads: 1 if heads come before tokens, 2 if after.
    layout : {"half", "interleaved", "interleaved_to_half"}, optional
        See :class:`rope_xp.RoPE`. Default: the layout of the columns, as in most models. GLM needs
        "interleaved"; DeepSeek's function for interleaved components needs "interleaved_to_half".
    columns : {"halves", "neighbours", "pairs"}, optional
        Which columns are equal: the two halves (Llama), neighbours (Cohere), or none: one column a
        pair (gpt-oss). Default: the first two are detected from the values, which waits for a
        device. Under ``torch.compile`` and ``jax.jit`` values cannot be read, so pass it.

    Returns
    -------
    q_rotated, k_rotated : array
        With the shapes and dtypes of q and k; None if k is None.

    Raises
    ------
    RopeError
        If shapes do not fit, or the tables have another format.
    TypeError
        If an argument has the wrong type or library.

    Notes
    -----
    16-bit inputs are computed in float32 and rounded once; the models' own functions round more.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> from rope_xp.integrations import apply_rotary_transformers
    >>> rope = rope_xp.RoPE(layout="half")
    >>> cos, sin = (t[None] for t in rope.table(6, 64, form="huggingface"))
    >>> q, k = np.ones((1, 8, 6, 64), np.float32), np.ones((1, 2, 6, 64), np.float32)
    >>> q_rotated, k_rotated = apply_rotary_transformers(q, k, cos, sin)
    >>> bool(np.allclose(q_rotated, rope.rotate(q, axes="bhsd"), rtol=0, atol=1e-6))
    True
    """
    backend = find.require_backend(cos, "cos")
    shapes = tuple(cos.shape), tuple(sin.shape)
    if shapes[0] != shapes[1]:
        raise RopeError(f"cos and sin must have one shape; got {shapes[0]} and {shapes[1]}")
    columns = _detect_columns(backend, cos, sin) if columns is None else columns
    numbers.check_one_of("columns", columns, tuple(COLUMNS))
    if layout is None and columns == "pairs":
        raise RopeError("columns='pairs' fits both layouts; pass layout='half' or 'interleaved'")
    if columns != "pairs" and cos.shape[-1] % 2:
        raise RopeError(f"columns={columns!r} needs an even number; cos has {cos.shape[-1]}")
    cos, sin = one_per_pair(cos, columns), one_per_pair(sin, columns)
    paired: Layout = layout or ("half" if columns == "halves" else "interleaved")
    rope = load_rope(backend.is_compiling(), paired, 2 * cos.shape[-1])
    axes = find_axes(len(q.shape), len(cos.shape), unsqueeze_dim)
    if axes is None:
        raise RopeError(
            f"unsqueeze_dim={unsqueeze_dim} puts no axis for heads next to tokens: cos has "
            f"{len(cos.shape)} axes and q {len(q.shape)}. Pass 1 for (batch, heads, tokens, "
            "head_dim), 2 for (batch, tokens, heads, head_dim)"
        )
    angles = rope.with_tables(cos, sin)
    if k is None:
        return angles.rotate(q, axes=axes), None
    return angles.apply(q, k, axes=axes)


def load_rope(is_compiling: bool, layout: Layout, rotary_dim: int, rotary_offset: int = 0) -> RoPE:
    create = RoPE if is_compiling else _cached_rope  # Dynamo traces no cache
    return create(layout=layout, rotary_dim=rotary_dim, rotary_offset=rotary_offset)


_cached_rope = cached(64)(RoPE)


def _detect_columns(backend: Backend, cos: Array, sin: Array) -> Columns:
    traced = (
        "cannot detect which columns of cos and sin are equal while a compiler traces the call; "
        "pass columns='halves' or 'neighbours', for example with functools.partial"
    )
    if backend.is_compiling():
        raise RopeError(traced)
    try:
        columns = read_columns(backend.xp, cos, sin)
    except TypeError as error:  # of jax, while it traces
        raise RopeError(traced) from error
    if columns is None:
        raise RopeError(
            "cos and sin have no two equal columns for a pair, neither in halves nor as neighbours;"
            " if they have one column per pair, as in gpt-oss, pass columns='pairs'"
        )
    return columns


def find_axes(
    ndim: int, table_ndim: int, unsqueeze_dim: int | None, heads_first: bool = True
) -> str | None:
    """Return the names of the axes of q or k, by the axis for heads that tables get.

    None if that is not next to the tokens; without it ``heads_first`` says the order.
    """
    place = -3 if heads_first else -2
    if unsqueeze_dim is not None:
        place = unsqueeze_dim - (table_ndim + 1 if unsqueeze_dim >= 0 else 0)
    order = {-3: "hs", -2: "sh"}.get(place)
    return None if order is None or ndim not in (3, 4) else "b" * (ndim - 3) + order + "d"
