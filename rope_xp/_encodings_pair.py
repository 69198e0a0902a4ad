"""What the scores of rope_xp.encodings share: checked queries and keys, and their distances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rope_xp import _dispatch, _fields, _heads, _positions, _prepare, _validate
from rope_xp._contract import Backend
from rope_xp._errors import RopeError
from rope_xp._typing import Array, Namespace


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
    distances : array, (q tokens, k tokens) or (batch..., q tokens, k tokens)
        Integers, the position of the query less that of the key.
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
        owner = _dispatch.backend_of(value, name)
        if owner is not self.backend:
            raise _validate.different_libraries(self.name, self.backend, name, owner)
        check_float(owner, name, value)
        _validate.check_same_device(owner, self.name, self.given, name, value)
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
        flat = self.xp.reshape(table, (table.shape[0], -1))
        found = self.backend.rows(flat, index)
        return self.xp.reshape(found, (*index.shape, *table.shape[1:]))

    def clipped(self, clip: int, highest: int) -> Array:
        """Return the distances as indices of a table whose entry ``clip`` is for distance 0."""
        return self.xp.clip(self.distances, -clip, highest) + clip

    def result(self, x: Array) -> Array:
        """Return x in the dtype that the caller's queries had."""
        return self.xp.astype(x, self.given.dtype, copy=False)


def pair(q: Any, k: Any, positions: Any, k_positions: Any) -> Pair:
    """Check queries and keys and return them with their distances."""
    backend = _both("q", q, "k", k)
    _check_axes("q", q)
    _check_axes("k", k)
    if q.shape[:-3] != k.shape[:-3] or q.shape[-1] != k.shape[-1] or q.shape[-2] % k.shape[-2]:
        msg = (
            f"q of shape {tuple(q.shape)} and k of shape {tuple(k.shape)} do not fit; their batch "
            "axes and head_dim must be equal, and the heads of q a multiple of those of k. Are the "
            "axes (batch..., tokens, heads, head_dim)?"
        )
        raise RopeError(msg)
    tokens = (q.shape[-3], k.shape[-3])
    apart = _distances(backend, "q", q, tuple(q.shape[:-3]), tokens, (positions, k_positions))
    xp, work = backend.xp, _work(backend, q)
    keys = _heads.repeat_heads(xp, xp.astype(k, work, copy=False), q.shape[-2])
    return Pair(backend, xp.astype(q, work, copy=False), keys, apart, q, "q")


def weighted(weights: Any, v: Any, positions: Any, k_positions: Any) -> Pair:
    """Check weights of attention and values; they take the places of q and k."""
    backend = _both("weights", weights, "v", v)
    _check_axes("v", v)
    batch, (tokens, heads, _) = tuple(v.shape[:-3]), v.shape[-3:]
    w = tuple(weights.shape)
    if len(w) < 3 or w[:-3] != batch or w[-3] % heads or w[-1] != tokens:
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


def check_float(backend: Backend, name: str, x: Array) -> None:
    """Check that x holds real floats."""
    if backend.dtype_name(x) not in _validate.FLOATS:
        msg = (
            f"{name} is {_validate.describe(backend, x)}; it must hold "
            f"{', '.join(sorted(_validate.FLOATS))}. Convert it first"
        )
        raise TypeError(msg)


def check_rows(name: str, rows: int, *, odd: bool) -> int:
    """Check the entries of a table of clipped distances, and return the largest distance kept."""
    if rows % 2 != odd or rows < 1:
        what = "2 * clip + 1 entries, an odd number" if odd else "2 * clip entries, an even number"
        msg = f"{name} has {rows} entries on its first axis; it must have {what}"
        raise RopeError(msg)
    return rows // 2


def check_scale(scale: float) -> float:
    """Check what dot products are multiplied by."""
    _fields.check_positive("scale", scale)
    return float(scale)  # array-api-strict takes no numpy.float64, which is a float


def _both(first: str, x: Any, second: str, y: Any) -> Backend:
    backend, other = _dispatch.backend_of(x, first), _dispatch.backend_of(y, second)
    if other is not backend:
        raise _validate.different_libraries(first, backend, second, other)
    check_float(backend, first, x)
    check_float(backend, second, y)
    if x.dtype != y.dtype:
        msg = (
            f"{first} is {backend.dtype_name(x)} and {second} {backend.dtype_name(y)}; convert one "
            "of them"
        )
        raise TypeError(msg)
    _validate.check_same_device(backend, first, x, second, y)
    return backend


def _check_axes(name: str, x: Array) -> None:
    if x.ndim < 3 or 0 in x.shape[-3:]:
        msg = (
            f"{name} has shape {tuple(x.shape)}; it must be (batch..., tokens, heads, head_dim), "
            "with one of each at least"
        )
        raise RopeError(msg)


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
        return _counted(backend, name, like, argument, positions[i], (*batch, tokens[i]))

    at = counted("positions", 0)
    k_at = counted("k_positions", 1) if own_keys else at
    return at[..., :, None] - k_at[..., None, :]


def _counted(
    backend: Backend, name: str, like: Array, argument: str, positions: Any, full: tuple[int, ...]
) -> Array:
    if positions is None:
        return backend.arange(full[-1], backend.device(like))
    owner = _prepare.owner_of(positions)
    if owner is not None and owner is not backend and owner.name != "numpy":
        raise _validate.different_libraries(name, backend, argument, owner)
    whole, part, _ = _positions.resolve(backend, positions, owner, like, False, argument)
    if part is not None:
        msg = f"{argument} must hold integers (tokens), as tables are read by distance; round them"
        raise TypeError(msg)
    if tuple(whole.shape) not in (full[-1:], full):
        msg = (
            f"{argument} has shape {tuple(whole.shape)}; it must be (tokens,) = {full[-1:]} or "
            f"(batch..., tokens) = {full}"
        )
        raise RopeError(msg)
    return whole


def _fits(got: tuple[int, ...], shape: tuple[int | None, ...]) -> bool:
    return len(got) == len(shape) and all(
        n == m or (m is None and n > 0) for n, m in zip(got, shape, strict=True)
    )
