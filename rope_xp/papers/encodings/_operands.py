"""Checked queries and keys with their distances, for :mod:`rope_xp.papers.encodings`."""

import math
from dataclasses import dataclass
from typing import Any

from rope_xp._arguments import messages, parse
from rope_xp._arguments.positions import resolve_positions
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.angles import with_axes
from rope_xp.papers import _heads

FARTHEST = 2**31 - 1
"""The largest distance, in tokens, that int32 holds."""


@dataclass(frozen=True)
class Operands:
    """Queries and keys of equal heads in the dtype of the arithmetic, and their distances.

    Parameters
    ----------
    backend : Backend
        That of the library of all arrays.
    q, k : array, (batch..., tokens, heads, head_dim)
        float32 or float64. Grouped keys are repeated, one for each head of q. Instead of queries
        and keys they may be attention weights (batch..., heads, q tokens, k tokens) and values.
    distances : array, broadcastable to (batch..., q tokens, k tokens)
        Integers, the position of the query less that of the key. In int32 those beyond ``FARTHEST``
        in modulus, which it cannot hold, are that.
    first : array
        q as the caller passed it; results have its dtype.
    first_name : str
        The caller's name of it.
    """

    backend: Backend
    q: Array
    k: Array
    distances: Array
    first: Array
    first_name: str

    @property
    def xp(self) -> Namespace:
        """The namespace of all arrays."""
        return self.backend.xp

    @property
    def heads(self) -> int:
        """Heads of q, and of k once repeated."""
        return int(self.k.shape[-2])

    @property
    def head_dim(self) -> int:
        """Components of a head."""
        return int(self.k.shape[-1])

    def parameter(self, name: str, value: Any, axes: str, *shapes: tuple[int | None, ...]) -> Array:
        """Return a parameter in the dtype of the arithmetic, checked to have one of the shapes.

        None stands for any length but 0.
        """
        _heads.check_array(self.backend, self.first_name, self.first, name, value)
        has = tuple(value.shape)
        if not any(_has_shape(has, shape) for shape in shapes):
            wanted = " or ".join(str(shape).replace("None", "any") for shape in shapes)
            msg = f"{name} has shape {has}; it must be {axes}, here {wanted}"
            raise RopeError(msg)
        return self.xp.astype(value, self.k.dtype, copy=False)

    def content(self, q: Array | None = None) -> Array:
        """Return q . k, (batch..., heads, q tokens, k tokens)."""
        q = _heads.swap_tokens_and_heads(self.xp, self.q if q is None else q)
        k = _heads.swap_tokens_and_heads(self.xp, self.k)
        return self.xp.matmul(q, self.xp.matrix_transpose(k))

    def multiply_rows(self, q: Array, rows: Array) -> Array:
        """Return q . row for the rows (..., q tokens, k tokens, components) that all heads share.

        Its axes are (batch..., heads, q tokens, k tokens).
        """
        return _heads.swap_tokens_and_heads(
            self.xp, self.xp.matmul(q, self.xp.matrix_transpose(rows))
        )

    def take(self, table: Array, index: Array) -> Array:
        """Return entries of a table, (*index.shape, *table.shape[1:])."""
        # Not -1, which says nothing where there are no heads.
        flat = self.xp.reshape(table, (table.shape[0], math.prod(table.shape[1:])))
        entries = self.backend.take_rows(flat, index)
        return self.xp.reshape(entries, (*index.shape, *table.shape[1:]))

    def take_clipped(self, name: str, table: Array, *, odd: bool) -> Array:
        """Return the entry of each distance from a table of clipped distances.

        ``odd``: entries are for -clip to clip; else for -clip to clip - 1.
        """
        entries = table.shape[0]
        if entries % 2 != odd or entries < 1:
            expected = (
                "2 * clip + 1 entries, an odd number" if odd else "2 * clip entries, an even number"
            )
            msg = f"{name} has {entries} entries on its first axis; it must have {expected}"
            raise RopeError(msg)
        clip = entries // 2
        index = self.xp.clip(self.distances, -clip, clip if odd else clip - 1) + clip
        return self.take(table, index)

    def result(self, x: Array) -> Array:
        """Return x in the dtype of the caller's queries."""
        return self.xp.astype(x, self.first.dtype, copy=False)


def check(q: Any, k: Any, positions: Any, k_positions: Any) -> Operands:
    """Check queries and keys and return them with their distances."""
    backend = _check_dtypes("q", q, "k", k)
    _heads.check_shapes(q, k)
    tokens, batch = (q.shape[-3], k.shape[-3]), tuple(q.shape[:-3])
    distances = _distances(backend, "q", q, batch, tokens, (positions, k_positions))
    return _convert(backend, "q", q, k, q.shape[-2], distances)


def check_weights(weights: Any, v: Any, positions: Any, k_positions: Any) -> Operands:
    """Check attention weights and values; they take the places of q and k."""
    backend = _check_dtypes("weights", weights, "v", v)
    _heads.check_axes("v", v)
    _heads.check_head_dim("v", v)
    batch, (tokens, heads, _) = tuple(v.shape[:-3]), v.shape[-3:]
    has = tuple(weights.shape)
    if len(has) < 3 or has[:-3] != batch or heads == 0 or has[-3] % heads or has[-1] != tokens:
        msg = (
            f"weights has shape {has} and v {tuple(v.shape)}; weights must be (batch..., heads, q "
            f"tokens, k tokens), here ({', '.join(map(str, batch))}{', ' if batch else ''}{heads} "
            f"or a multiple, any, {tokens})"
        )
        raise RopeError(msg)
    lengths = (has[-2], tokens)
    distances = _distances(backend, "weights", weights, batch, lengths, (positions, k_positions))
    return _convert(backend, "weights", weights, v, has[-3], distances)


def _check_dtypes(first: str, x: Any, second: str, y: Any) -> Backend:
    backend = find.require_backend(x, first)
    dtype = _heads.check_array(backend, first, x, first, x)
    other = _heads.check_array(backend, first, x, second, y)
    if dtype != other:
        msg = f"{first} is {dtype} and {second} {other}; convert one of them"
        raise TypeError(msg)
    return backend


def _convert(
    backend: Backend, name: str, q: Array, k: Array, heads: int, distances: Array
) -> Operands:
    xp = backend.xp
    dtype = _heads.compute_dtype(xp, (backend.dtype_name(q),))
    keys = _heads.repeat_heads(xp, xp.astype(k, dtype, copy=False), heads)
    return Operands(backend, xp.astype(q, dtype, copy=False), keys, distances, q, name)


def _distances(
    backend: Backend,
    name: str,
    like: Array,
    batch: tuple[int, ...],
    tokens: tuple[int, int],
    positions: tuple[Any, Any],
) -> Array:
    """Return distances; ``tokens`` and ``positions`` are of queries and of keys."""
    has_k_positions = positions[1] is not None
    if not has_k_positions and tokens[0] != tokens[1]:
        msg = (
            f"there are {tokens[0]} query tokens and {tokens[1]} key tokens, so where the queries "
            "lie among the keys must be said; give positions and k_positions"
        )
        raise RopeError(msg)

    def resolve(argument: str, i: int) -> Array:
        shape = (*batch, tokens[i])
        return with_axes(_resolve(backend, name, like, argument, positions[i], shape), len(shape))

    q_positions = resolve("positions", 0)
    k_positions = resolve("k_positions", 1) if has_k_positions else q_positions
    m, n = q_positions[..., :, None], k_positions[..., None, :]
    distances = m - n
    implicit = positions[0] is None and not has_k_positions
    if implicit or backend.dtype_name(distances) != "int32":
        return distances
    # The difference of the halves does not wrap around, and shows where that of the wholes does.
    xp, halves = backend.xp, (m >> 1) - (n >> 1)
    distances = xp.where(halves >= 2**30, xp.full_like(distances, FARTHEST), distances)
    return xp.where(halves <= -(2**30), xp.full_like(distances, -FARTHEST), distances)


def _resolve(
    backend: Backend, name: str, like: Array, argument: str, positions: Any, shape: tuple[int, ...]
) -> Array:
    """Return integer positions that broadcast to a shape; None counts from 0."""
    if positions is None:
        return backend.arange(shape[-1], backend.device(like))
    owner = parse.find_owner(positions)
    if owner is not None and owner is not backend and owner.name != "numpy":
        raise messages.different_libraries(name, backend, argument, owner)
    integers, fraction, _ = resolve_positions(backend, positions, owner, like, False, argument)
    if fraction is not None:
        msg = f"{argument} must hold integers (tokens), as tables are read by distance; round them"
        raise TypeError(msg)
    has = tuple(integers.shape)
    if not _heads.can_broadcast(has, shape) or (not has and shape[-1] != 1):
        msg = (
            f"{argument} has shape {has}; it must be (tokens,) = {shape[-1:]}, or broadcast to "
            f"(batch..., tokens) = {shape}"
        )
        raise RopeError(msg)
    wanted = (*has[:-1], shape[-1])
    return integers if has == wanted else backend.xp.broadcast_to(integers, wanted)


def _has_shape(has: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(has) == len(shape) and all(
        n == m or (m is None and n > 0) for n, m in zip(has, shape, strict=True)
    )
