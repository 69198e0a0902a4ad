"""Angles: cos and sin that all layers of a forward pass share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from rope_xp._arguments import parse, parse_tables
from rope_xp._arguments.slots import rotate_into_slots
from rope_xp._core import numbers
from rope_xp._core.protocols import Rope
from rope_xp._core.pytrees import PYTREE_CLASSES
from rope_xp._core.typing import Array, ArrayT
from rope_xp._dispatch import choose, how
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import by_type, find_backend, require_backend_of_namespace
from rope_xp.norm import QKNorm, read_norm

CosSinPair: TypeAlias = tuple[Array, Array]


@dataclass(frozen=True, eq=False)
class Angles:
    """Cos and sin for a forward pass, shared by all layers with the same RoPE.

    :meth:`rope_xp.RoPE.at` computes them from positions; :meth:`rope_xp.RoPE.with_tables` takes
    tables. Both work under ``torch.compile`` and ``jax.jit``. In jax, Angles are a pytree.

    Parameters
    ----------
    cos, sin : array, (batch..., tokens, r/2) or (batch..., tokens, heads, r/2)
        One column for each pair, multiplied by the attention factor of the rope. They are used in
        float32, for float64 arrays in float64.
    rope : RoPE
        Gives the layout and the rotated slice; its frequencies are already in cos and sin.
    inverse : (array, array), optional
        Cos and sin for :meth:`unrotate`, divided by the attention factor. None: cos and sin.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> q, k = np.ones((1, 3, 8, 64), np.float32), np.ones((1, 3, 2, 64), np.float32)
    >>> rope = rope_xp.RoPE(layout="half")
    >>> angles = rope.at([1000, 1001, 1002], like=q)
    >>> for layer in range(32):
    ...     q_rotated, k_rotated = angles.apply(q, k)
    """

    cos: Array
    sin: Array
    rope: Rope
    inverse: CosSinPair | None = None

    def apply(
        self,
        q: ArrayT,
        k: ArrayT,
        *,
        axes: str | None = None,
        out: tuple[ArrayT | None, ArrayT] | None = None,
        slots: Any = None,
        cache_axes: str | None = None,
        norm: QKNorm | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Rotate queries and keys. See :meth:`rope_xp.RoPE.apply`.

        Results have the same bits as those of :meth:`rope_xp.RoPE.apply`, if ``like`` was float64
        for float64 q and k. XLA and GPU compilers may fuse multiply-add differently, by at most 2
        ulp. Raises TypeError also if q comes from another library than the angles.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> q, k = np.ones((1, 8, 3, 64)), np.ones((1, 2, 3, 64))
        >>> q_rotated, _ = rope_xp.RoPE().at([5, 6, 7], like=q).apply(q, k, axes="bhsd")
        """
        tables = self.cos, self.sin
        return self._rotate(q, k, tables, axes, out, norm, how.BOTH, slots, cache_axes)  # type: ignore[no-any-return]  # same kind

    def rotate(
        self,
        x: ArrayT,
        *,
        axes: str | None = None,
        out: ArrayT | None = None,
        norm: tuple[ArrayT, float] | QKNorm | None = None,
    ) -> ArrayT:
        """Rotate one array. See :meth:`rope_xp.RoPE.rotate`.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> x = np.array([[1.0, 0.0]])
        >>> rope_xp.RoPE().at([1], like=x).rotate(x, axes="sd").round(4).tolist()
        [[0.5403, 0.8415]]
        """
        return self._rotate(x, None, (self.cos, self.sin), axes, out, norm, how.ONE)  # type: ignore[no-any-return]  # same kind

    def unrotate(self, x: ArrayT, *, axes: str | None = None, out: ArrayT | None = None) -> ArrayT:
        """Undo :meth:`rotate`.

        Angles from :meth:`rope_xp.RoPE.at` also undo the attention factor. Angles from
        :meth:`rope_xp.RoPE.with_tables` only rotate back; a factor in the tables applies twice.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> x = np.arange(8.0).reshape(2, 4)
        >>> angles = rope_xp.RoPE().at([7, 1_000_000], like=x)
        >>> bool(np.allclose(angles.unrotate(angles.rotate(x)), x, rtol=0, atol=1e-14))
        True
        """
        tables = (self.cos, self.sin) if self.inverse is None else self.inverse
        return self._rotate(x, None, tables, axes, out, None, how.ONE | how.INVERSE)  # type: ignore[no-any-return]  # same kind

    def _rotate(
        self,
        q: Array,
        k: Array | None,
        tables: CosSinPair,
        axes: str | None,
        out: Any,
        norm: Any,
        flags: int,
        slots: Any = None,
        cache_axes: str | None = None,
    ) -> Any:
        rope, backend = self.rope, by_type.get(type(q)) or find_backend(q)
        components = rope.position_axes
        fits = components is None or len(components) == tables[0].shape[-1]
        if backend is not None and fits:
            slice_ = rope.layout, rope.rotary_dim, rope.rotary_offset
            call = *slice_, 0, q, k, *tables, axes, out, norm, slots, cache_axes, flags
            results = backend.rotate_by_tables(*call)
            if results is not None:
                return results
            arrays = (q,) if flags & how.ONE else (q, k)
            normal = parse.normalize(backend, rope, arrays, axes, read_norm(norm))
            if normal is not None:
                q, k = (*normal, None)[:2]
                return self._rotate(q, k, tables, axes, out, None, flags, slots, cache_axes)
        arrays, inverse = (q,) if flags & how.ONE else (q, k), flags & how.INVERSE != 0
        given = [parse_tables.GivenTables(*tables)]
        if slots is not None or cache_axes is not None:
            build = partial(parse_tables.rotate, rope, arrays, given, axes, None, inverse, norm)
            return rotate_into_slots(build, k, slots, cache_axes, out)
        arguments = rope, arrays, given, axes, out, inverse, read_norm(norm)
        results = choose.run(parse_tables.rotate(*arguments))
        return results[0] if flags & how.ONE else results


PYTREE_CLASSES.append((Angles, ("cos", "sin", "inverse"), ("rope",)))


def build_angles(rope: Rope, positions: Any, like: Array, head_dim: int | None = None) -> Angles:
    """Return the angles of positions for arrays such as ``like``."""
    if head_dim is not None:
        head_dim = numbers.check_positive_int("head_dim", head_dim)
    backend = by_type.get(type(like)) or find_backend(like)
    if backend is not None:
        table = backend.look_up_angles(rope, positions, like, head_dim, False, None, None)
        if table is not None:
            if rope.attention_factor == 1.0:
                return Angles(*halve(table), rope)
            inverse = backend.look_up_angles(rope, positions, like, head_dim, True, None, None)
            return Angles(*halve(table), rope, halve(inverse))
    backend, lookups = parse_tables.angles(rope, positions, like, head_dim)
    tables = [backend.materialize(*backend.cos_sin(lookup)) for lookup in lookups]
    (cos, sin), *others = tables
    return Angles(cos, sin, rope, *others)


def halve(table: Array) -> CosSinPair:
    """Return cos and sin, which lie side by side."""
    if hasattr(table, "chunk"):  # torch slices slowly
        cos, sin = table.chunk(2, -1)
        return cos, sin
    pairs = table.shape[-1] // 2
    return table[..., :pairs], table[..., pairs:]


def look_up_cos_sin(
    rope: Rope, positions: Any, head_dim: int, dtype: Any, xp: Any
) -> CosSinPair | None:
    """Return cos and sin of positions of any shape, None to leave them to the slow path."""
    like = positions
    if type(positions) in (np.ndarray, list, tuple, range):
        if xp in (None, np):
            like = _HOST.get(dtype)
        else:
            library = require_backend_of_namespace(xp)
            if dtype is not None or library.is_compiling():
                return None
            if type(library).look_up_angles is Backend.look_up_angles:
                return None
            like = library.arange(0, None)
    elif xp is not None or dtype is not None or "float" in str(getattr(like, "dtype", "float")):
        return None
    backend = None if like is None else by_type.get(type(like)) or find_backend(like)
    if backend is None:
        return None
    table = backend.look_up_angles(rope, positions, like, head_dim, False, None, None)
    if table is None:
        return None
    first = positions[0] if type(positions) in (list, tuple, range) and positions else None
    ndim = 1 if type(first) is int else len(np.shape(positions))
    axes = ndim - (rope.position_axes is not None)
    return halve(table) if len(table.shape) == axes + 1 else None


_SINGLE = np.empty(0, np.float32)
_HOST: dict[Any, Any] = {None: _SINGLE, np.float32: _SINGLE, np.float64: np.empty(0)}
"""Arrays of numpy with the dtype of cos and sin, by the dtype that was given."""


def rotate_by_difference(
    rope: Rope, to: Rope, x: Array, old_positions: Any, new_positions: Any, axes: Any, out: Any
) -> Any:
    """Return x turned back at its old positions, and by another rope at new ones, in one rotation.

    None to leave that to the slow path.
    """
    backend = by_type.get(type(x)) or find_backend(x)
    if backend is None or not getattr(x, "shape", None):
        return None
    layout, r, offset = parse.check_same_pairs(rope, to, x.shape[-1])
    turned = backend.look_up_angles(to, new_positions, x, None, False, rope, old_positions)
    if turned is None:
        return None
    slice_, rest = (layout, r, offset, 0), (axes, out, None, None, None, how.ONE)
    result = backend.rotate_by_tables(*slice_, x, None, turned, None, *rest)
    if result is None:  # where a gradient is recorded, say
        result = backend.rotate_by_tables(*slice_, x, None, *halve(turned), *rest)
    return result
