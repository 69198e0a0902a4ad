"""What the scores of rope_xp.encodings share: checked queries and keys, and their distances."""

import math
from dataclasses import dataclass
from typing import Any

from rope_xp import _heads
from rope_xp._arguments import messages, read
from rope_xp._arguments.positions import resolve_positions
from rope_xp._contract.errors import RopeError
from rope_xp._contract.typing import Array, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.angles import with_axes

FARTHEST = 2**31 - 1
"""The largest distance, in tokens, that int32 holds."""


@dataclass(frozen=True)
class Pair:
    """Queries and keys of equal heads in the dtype of the arithmetic, and how far apart they are.

    Parameters
    ----------
    backend : Backend
        The glue of the library that all arrays belong to.
    q, k : array, (batch..., tokens, heads, head_dim)
        float32 or float64. Grouped keys are repeated, one for each head of q. ``q`` may be
        (batch..., heads, q tokens, k tokens) instead: the weights of attention.
    distances : array, broadcastable to (batch..., q tokens, k tokens)
        Integers, the position of the query less that of the key. In int32 those beyond ``FARTHEST``
        in modulus, which it cannot hold, are that.
    given : array
        What the caller passed for q; results have its dtype.
    name : str
        What the caller knows it by.
    """

    backend: Backend
    q: Array
    k: Array
    distances: Array
    given: Array
    name: str

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
        _heads.check_array(self.backend, self.name, self.given, name, value)
        got = tuple(value.shape)
        if not any(_fits(got, shape) for shape in shapes):
            wanted = " or ".join(str(shape).replace("None", "any") for shape in shapes)
            msg = f"{name} has shape {got}; it must be {axes}, here {wanted}"
            raise RopeError(msg)
        return self.xp.astype(value, self.k.dtype, copy=False)

    def content(self, q: Array | None = None) -> Array:
        """Return q . k, (batch..., heads, q tokens, k tokens)."""
        q = _heads.swap_tokens_and_heads(self.xp, self.q if q is None else q)
        k = _heads.swap_tokens_and_heads(self.xp, self.k)
        return self.xp.matmul(q, self.xp.matrix_transpose(k))

    def with_rows(self, q: Array, rows: Array) -> Array:
        """Return q . row for the rows (..., q tokens, k tokens, components) that all heads share.

        Its axes are (batch..., heads, q tokens, k tokens).
        """
        return _heads.swap_tokens_and_heads(
            self.xp, self.xp.matmul(q, self.xp.matrix_transpose(rows))
        )

    def rows(self, table: Array, index: Array) -> Array:
        """Return entries of a table, (*index.shape, *table.shape[1:])."""
        # Not -1, which says nothing where there are no heads.
        flat = self.xp.reshape(table, (table.shape[0], math.prod(table.shape[1:])))
        found = self.backend.rows(flat, index)
        return self.xp.reshape(found, (*index.shape, *table.shape[1:]))

    def in_range(self) -> Array:
        """Return the distances, out of the range of angles where they are more than int32 holds."""
        if self.backend.dtype_name(self.distances) != "int32":
            return self.distances
        beyond = self.xp.abs(self.distances) == FARTHEST
        outside = self.xp.full_like(self.distances, -FARTHEST - 1)
        return self.xp.where(beyond, outside, self.distances)

    def clipped(self, clip: int, highest: int) -> Array:
        """Return the distances as indices of a table whose entry ``clip`` is for distance 0."""
        return self.xp.clip(self.distances, -clip, highest) + clip

    def result(self, x: Array) -> Array:
        """Return x in the dtype that the caller's queries had."""
        return self.xp.astype(x, self.given.dtype, copy=False)


def pair(q: Any, k: Any, positions: Any, k_positions: Any) -> Pair:
    """Check queries and keys and return them with their distances."""
    backend = _both("q", q, "k", k)
    _heads.check_axes("q", q)
    _heads.check_axes("k", k)
    _heads.check_fit(tuple(q.shape), tuple(k.shape))
    tokens = (q.shape[-3], k.shape[-3])
    apart = _distances(backend, "q", q, tuple(q.shape[:-3]), tokens, (positions, k_positions))
    xp, work = backend.xp, _work(backend, q)
    keys = _heads.repeat_heads(xp, xp.astype(k, work, copy=False), q.shape[-2])
    return Pair(backend, xp.astype(q, work, copy=False), keys, apart, q, "q")


def weighted(weights: Any, v: Any, positions: Any, k_positions: Any) -> Pair:
    """Check weights of attention and values; they take the places of q and k."""
    backend = _both("weights", weights, "v", v)
    _heads.check_axes("v", v)
    _heads.check_head_dim("v", tuple(v.shape))
    batch, (tokens, heads, _) = tuple(v.shape[:-3]), v.shape[-3:]
    w = tuple(weights.shape)
    if len(w) < 3 or w[:-3] != batch or heads == 0 or w[-3] % heads or w[-1] != tokens:
        msg = (
            f"weights has shape {w} and v {tuple(v.shape)}; weights must be (batch..., heads, q "
            f"tokens, k tokens), here ({', '.join(map(str, batch))}{', ' if batch else ''}{heads} "
            f"or a multiple, any, {tokens})"
        )
        raise RopeError(msg)
    lengths = (w[-2], tokens)
    apart = _distances(backend, "weights", weights, batch, lengths, (positions, k_positions))
    xp, work = backend.xp, _work(backend, weights)
    values = _heads.repeat_heads(xp, xp.astype(v, work, copy=False), w[-3])
    return Pair(backend, xp.astype(weights, work, copy=False), values, apart, weights, "weights")


def check_rows(name: str, rows: int, *, odd: bool) -> int:
    """Check the entries of a table of clipped distances, and return the largest distance kept."""
    if rows % 2 != odd or rows < 1:
        what = "2 * clip + 1 entries, an odd number" if odd else "2 * clip entries, an even number"
        msg = f"{name} has {rows} entries on its first axis; it must have {what}"
        raise RopeError(msg)
    return rows // 2


def _both(first: str, x: Any, second: str, y: Any) -> Backend:
    backend = find.backend_of(x, first)
    dtype = _heads.check_array(backend, first, x, first, x)
    other = _heads.check_array(backend, first, x, second, y)
    if dtype != other:
        msg = f"{first} is {dtype} and {second} {other}; convert one of them"
        raise TypeError(msg)
    return backend


def _work(backend: Backend, x: Array) -> Any:
    wide = backend.dtype_name(x) == "float64"
    return backend.xp.float64 if wide else backend.xp.float32


def _distances(
    backend: Backend,
    name: str,
    like: Array,
    batch: tuple[int, ...],
    tokens: tuple[int, int],
    positions: tuple[Any, Any],
) -> Array:
    """Return distances; ``tokens`` and ``positions`` are of queries and of keys."""
    own_keys = positions[1] is not None
    if not own_keys and tokens[0] != tokens[1]:
        msg = (
            f"there are {tokens[0]} query tokens and {tokens[1]} key tokens, so where the queries "
            "lie among the keys must be said; give positions and k_positions"
        )
        raise RopeError(msg)

    def counted(argument: str, i: int) -> Array:
        full = (*batch, tokens[i])
        return with_axes(_counted(backend, name, like, argument, positions[i], full), len(full))

    at = counted("positions", 0)
    k_at = counted("k_positions", 1) if own_keys else at
    m, n = at[..., :, None], k_at[..., None, :]
    apart = m - n
    if (positions[0] is None and not own_keys) or backend.dtype_name(apart) != "int32":
        return apart
    # A difference that wraps around is told by that of the halves, which does not.
    xp, halves = backend.xp, (m >> 1) - (n >> 1)
    apart = xp.where(halves >= 2**30, xp.full_like(apart, FARTHEST), apart)
    return xp.where(halves <= -(2**30), xp.full_like(apart, -FARTHEST), apart)


def _counted(
    backend: Backend, name: str, like: Array, argument: str, positions: Any, full: tuple[int, ...]
) -> Array:
    if positions is None:
        return backend.arange(full[-1], backend.device(like))
    owner = read.owner_of(positions)
    if owner is not None and owner is not backend and owner.name != "numpy":
        raise messages.different_libraries(name, backend, argument, owner)
    whole, part, _ = resolve_positions(backend, positions, owner, like, False, argument)
    if part is not None:
        msg = f"{argument} must hold integers (tokens), as tables are read by distance; round them"
        raise TypeError(msg)
    has = tuple(whole.shape)
    if not _heads.broadcasts(has, full) or (not has and full[-1] != 1):
        msg = (
            f"{argument} has shape {has}; it must be (tokens,) = {full[-1:]}, or broadcast to "
            f"(batch..., tokens) = {full}"
        )
        raise RopeError(msg)
    wanted = (*has[:-1], full[-1])
    return whole if has == wanted else backend.xp.broadcast_to(whole, wanted)


def _fits(got: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(got) == len(shape) and all(
        n == m or (m is None and n > 0) for n, m in zip(got, shape, strict=True)
    )
