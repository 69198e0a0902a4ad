"""Projection weights between the two layouts."""

from typing import Literal

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import ArrayT
from rope_xp._dispatch import find


def permute_weights(w: ArrayT, num_heads: int, *, to: Literal["interleaved", "half"]) -> ArrayT:
    """Reorder the rows of a q or k projection from one layout to the other.

    A model whose q and k weights were permuted gives the same attention scores under the other
    layout. Every component of a head is taken to be rotated.

    Parameters
    ----------
    w : array, (num_heads * head_dim, ...)
        Weight of shape (out, in), or bias of shape (out,), of any library and dtype, in the other
        layout.
    num_heads : int
        Heads of this projection; for k with grouped queries the number of key heads.
    to : {"interleaved", "half"}
        The layout that the result is for. From Meta's Llama checkpoints to Hugging Face: "half".

    Returns
    -------
    array
        The same rows in the other order.

    Raises
    ------
    RopeError
        If the first axis does not divide into heads of an even size, or ``to`` is another word.
    TypeError
        If w is no array, or num_heads no integer.

    Notes
    -----
    Row 2i + j of a head (j = 0, 1) in the interleaved layout is row j * head_dim/2 + i in the
    half layout.

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
    _check(shape, num_heads, to)
    xp = backend.xp
    pairs = shape[0] // num_heads // 2
    split = (num_heads, pairs, 2) if to == "half" else (num_heads, 2, pairs)
    rows = xp.reshape(w, (*split, *shape[1:]))
    order = (0, 2, 1, *range(3, len(shape) + 2))
    return xp.reshape(xp.permute_dims(rows, order), shape)  # type: ignore[no-any-return]  # as w


def _check(shape: tuple[int, ...], num_heads: int, to: object) -> None:
    """Check the arguments."""
    if to not in ("interleaved", "half"):
        msg = f"to must be 'interleaved' or 'half', the layout that the result is for; got {to!r}"
        raise RopeError(msg)
    if not shape or shape[0] % (2 * num_heads):
        msg = (
            f"w has shape {shape}; its first axis must be num_heads * head_dim with head_dim even, "
            f"and num_heads is {num_heads}. Grouped keys have fewer heads than queries"
        )
        raise RopeError(msg)
