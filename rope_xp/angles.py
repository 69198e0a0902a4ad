"""Angles: cos and sin that all layers of a forward pass share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from rope_xp._arguments import parse_tables
from rope_xp._arguments.axes import parse_axes
from rope_xp._arguments.slots import rotate_into_slots
from rope_xp._core import numbers
from rope_xp._core.caches import cached
from rope_xp._core.call import Call, RotationSpec, TableLookup, leaves
from rope_xp._core.path import Path, PathUnavailable
from rope_xp._core.protocols import Rope
from rope_xp._core.pytrees import PYTREE_CLASSES
from rope_xp._core.typing import Array, ArrayT
from rope_xp._dispatch import choose, how
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.choose import choice
from rope_xp._dispatch.find import by_type, find_backend
from rope_xp.norm import QKNorm, read_norm

CosSinPair: TypeAlias = tuple[Array, Array]
_BATCH_NAMES = "abcefg"


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
        cache = None if slots is None and cache_axes is None else (slots, cache_axes)
        tables = self.cos, self.sin
        return self._rotate(q, k, tables, axes, out, norm, how.BOTH, cache)  # type: ignore[no-any-return]  # same kind

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
        cache: tuple[Any, str | None] | None = None,
    ) -> Any:
        rope, backend = self.rope, by_type.get(type(q)) or find_backend(q)
        components = rope.position_axes
        fits = components is None or len(components) == tables[0].shape[-1]
        if backend is not None and fits:
            slice_ = rope.layout, rope.rotary_dim, rope.rotary_offset
            call = *slice_, 0, q, k, *tables, axes, out, norm, cache, flags
            results = backend.rotate_by_tables(*call)
            if results is not None:
                return results
        if cache is not None:
            rotate = partial(self.apply, q, k, axes=axes, norm=norm)
            slots, cache_axes = cache
            return rotate_into_slots(q, k, slots, axes, cache_axes, out, rotate)
        arrays = (q,) if flags & how.ONE else (q, k)
        arguments = rope, arrays, *tables, axes, out, flags & how.INVERSE != 0, read_norm(norm)
        results = choose.run(parse_tables.rotate(*arguments))
        return results[0] if flags & how.ONE else results


PYTREE_CLASSES.append((Angles, ("cos", "sin", "inverse"), ("rope",)))


def build_angles(rope: Rope, positions: Any, like: Array, head_dim: int | None = None) -> Angles:
    """Return the angles of positions for arrays such as ``like``."""
    if head_dim is not None:
        head_dim = numbers.check_positive_int("head_dim", head_dim)
    backend = by_type.get(type(like)) or find_backend(like)
    if backend is not None:
        table = backend.look_up_angles(rope, positions, like, head_dim, False)
        if table is not None:
            if rope.attention_factor == 1.0:
                return Angles(*_halve(table), rope)
            inverse = backend.look_up_angles(rope, positions, like, head_dim, True)
            return Angles(*_halve(table), rope, _halve(inverse))
    backend, lookups = parse_tables.angles(rope, positions, like, head_dim)
    computed = [compute_cos_sin(backend, lookup) for lookup in lookups]
    (cos, sin), *others = [backend.materialize(*tables) for tables in computed]
    return Angles(cos, sin, rope, *others)


def _halve(table: Array) -> CosSinPair:
    pairs = table.shape[-1] // 2
    return table[..., :pairs], table[..., pairs:]


def compute_cos_sin(backend: Backend, lookup: TableLookup) -> CosSinPair:
    """Return cos and sin, (batch..., tokens, r/2)."""
    path: Path | None = next((path for path in backend.paths if path.makes_tables), None)
    if path is not None and choice.name in (None, path.name) and not backend.is_compiling():
        computed = _rotate_unit_pairs(path, backend, lookup)
        if computed is not None:
            return computed
    return backend.cos_sin(lookup)


def _rotate_unit_pairs(path: Path, backend: Backend, lookup: TableLookup) -> CosSinPair | None:
    """Return cos and sin as a kernel rotates (1, 0) to them, None where it cannot."""
    rows = (lookup.tokens,)
    if lookup.whole is not None:
        rows = tuple(lookup.whole.shape)[lookup.components > 0 :]
    pairs = lookup.tables.frequencies.shape[0]
    if not 0 < len(rows) <= len(_BATCH_NAMES):
        return None
    unit = backend.asarray(_unit_pairs(pairs, backend.dtype_name(lookup.tables.low)), lookup.device)
    if any(type(leaf.array) is not type(unit) for leaf in leaves(lookup)):
        return None  # such as tensors of several devices, or fake ones
    names = _BATCH_NAMES[: len(rows) - 1] + "sd"
    spec = RotationSpec(parse_axes(names, len(names), "x"), "half", 2 * pairs, 0, False)
    unit = backend.xp.broadcast_to(unit, (*rows, 2 * pairs))
    call = Call(backend, (unit,), (lookup,), None, spec)
    if path.decline_reason(call, forced=True) is not None:
        return None
    try:
        return _halve(path.run(call)[0])
    except PathUnavailable:
        return None


@cached(64)
def _unit_pairs(pairs: int, dtype: str) -> np.ndarray:
    # (1, -0): a product with 1 is exact, and to add -0 changes no bit. A sum of zeros is -0 only
    # where both are, and there the cosine is positive.
    return np.repeat(np.array([1.0, -0.0], dtype), pairs)
