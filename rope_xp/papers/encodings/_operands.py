"""Checked queries and keys with their distances, for :mod:`rope_xp.papers.encodings`."""

import math
from dataclasses import dataclass
from typing import Any

from rope_xp._arguments import checks, parse
from rope_xp._arguments.positions import check_positions_shape, resolve_positions
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, ArrayT, Namespace
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.angles import with_axes
from rope_xp.papers import _heads


@dataclass(frozen=True)
class Operands:
    """Queries and keys in the dtype of the arithmetic, and their distances."""

    backend: Backend
    q: Array  # or attention weights, (batch..., heads, q tokens, k tokens)
    k: Array  # or values; grouped ones are repeated, one for each head of q
    distances: Array  # of queries less keys
    first_name: str
    scale: float

    @property
    def xp(self) -> Namespace:
        return self.backend.xp

    @property
    def head_shape(self) -> tuple[int, int]:
        """Heads of q, and components of each."""
        return self.k.shape[-2], self.k.shape[-1]

    def parameter(self, name: str, value: Any, axes: str, *shapes: tuple[Any, ...]) -> Array:
        """Return a parameter in the dtype of the arithmetic, checked to have one of the shapes."""
        checks.check_library(self.backend, self.first_name, self.q, name, value)
        checks.check_float(self.backend, name, value)
        _heads.check_shape(name, value, axes, *shapes)
        return self.xp.astype(value, self.k.dtype, copy=False)

    def content(self) -> Array:
        """Return q . k, (batch..., heads, q tokens, k tokens)."""
        return _heads.multiply_heads(self.xp, self.q, self.k)

    def multiply_rows(self, q: Array, rows: Array) -> Array:
        """Return q . row, (batch..., heads, q tokens, k tokens)."""
        # All heads share the rows (..., q tokens, k tokens, components).
        products = self.xp.matmul(q, self.xp.matrix_transpose(rows))
        return _heads.swap_tokens_and_heads(self.xp, products)

    def take(self, table: Array, index: Array) -> Array:
        """Return entries of a table, (*index.shape, *table.shape[1:])."""
        # Not -1, which has no value where there are no heads.
        flat = self.xp.reshape(table, (table.shape[0], math.prod(table.shape[1:])))
        entries = self.backend.take_rows(flat, index)
        return self.xp.reshape(entries, (*index.shape, *table.shape[1:]))

    def take_clipped(
        self, name: str, table: Any, axes: str, *shapes: tuple[Any, ...], symmetric: bool = True
    ) -> Array:
        """Return the entry of each distance, clipped to the entries of a parameter."""
        # Those are for -clip to clip, or -clip to clip - 1 if not symmetric.
        table = self.parameter(name, table, axes, *shapes)
        entries = table.shape[0]
        if entries % 2 != symmetric:
            count = "2 * clip + 1 entries, an odd" if symmetric else "2 * clip entries, an even"
            raise RopeError(f"{name} has {entries} entries on axis 0; it must have {count} number")
        clip = entries // 2
        return self.take(table, self.xp.clip(self.distances, -clip, entries - 1 - clip) + clip)

    def finish(self, q: ArrayT, scores: Array, bias: Array | None = None) -> ArrayT:
        """Return scaled scores, and a bias that is not scaled, in the dtype of q."""
        scores = scores * self.scale
        return _heads.cast_like(self.xp, scores if bias is None else scores + bias, q)


def check_operands(positions: Any, k_positions: Any, scale: float = 1.0, **arrays: Any) -> Operands:
    """Check q and k, or weights and v in their places, and return them with their distances."""
    backend, (q, k) = _heads.check_floats(**arrays)
    first, second = arrays
    if first == "q":
        _heads.check_queries(q, k)
        tokens, heads = q.shape[-3:-1]
    else:
        _heads.check_shape(second, k, _heads.AXES, (*k.shape[:-3], ..., ..., None))
        axes = "(batch..., heads, q tokens, k tokens)"
        _heads.check_shape(first, q, axes, (*k.shape[:-3], ..., ..., k.shape[-3]))
        heads, tokens = q.shape[-3:-1]
        _heads.check_heads(first, heads, second, k.shape[-2])
    batch, k_tokens = tuple(k.shape[:-3]), k.shape[-3]
    if k_positions is None and tokens != k_tokens:
        raise RopeError(
            f"{tokens} query tokens have no default positions among {k_tokens} key tokens; pass "
            "positions and k_positions"
        )
    m = n = _resolve(backend, first, q, "positions", positions, batch, tokens)
    if k_positions is not None:
        n = _resolve(backend, first, q, "k_positions", k_positions, batch, k_tokens)
    distances = m[..., :, None] - n[..., None, :]
    scale = float(numbers.check_positive("scale", scale))  # a number of Python, for strict arrays
    keys = _heads.repeat_heads(backend.xp, k, heads)
    return Operands(backend, q, keys, distances, first, scale)


def _resolve(
    backend: Backend,
    first: str,
    like: Array,
    argument: str,
    positions: Any,
    batch: tuple[int, ...],
    tokens: int,
) -> Array:
    """Return integer positions with the axes (batch..., tokens), which may have length 1."""
    if positions is None:  # count from 0
        return with_axes(backend.arange(tokens, backend.device(like)), len(batch) + 1)
    owner = parse.backend_of(positions)
    if owner is not None and owner is not backend and owner.name != "numpy":
        raise checks.different_libraries(first, backend, argument, owner)
    integers, fraction, _ = resolve_positions(backend, positions, owner, like, False, argument)
    if fraction is not None:
        raise TypeError(f"{argument} must hold integers, to index tables by distance; round them")
    check_positions_shape(argument, tuple(integers.shape), 0, batch, tokens)
    return with_axes(integers, len(batch) + 1)
