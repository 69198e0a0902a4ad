"""Choice: one of several RoPEs for each sequence of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rope_xp._arguments import fields, parse
from rope_xp._arguments.axes import parse_axes
from rope_xp._core.dtypes import INTEGERS
from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array, ArrayT
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation.angles import with_axes
from rope_xp.angles import Angles, CosSinPair, build_angles, halve
from rope_xp.norm import QKNorm
from rope_xp.rope import Positions, RoPE

_SHARED = "layout", "rotary_dim", "rotary_offset", "position_axes"


@dataclass(frozen=True, eq=False)
class Choice:
    """One of several RoPEs for each sequence of a batch; all of them rotate the same pairs.

    Use it for requests with different scaling, such as short and long contexts of LongRoPE. Cos and
    sin are computed for every rope and selected for each sequence, and q and k are rotated once.

    Parameters
    ----------
    ropes : tuple of RoPE
        They may differ only in base and scaling.
    which : array or sequence, (batch...)
        Index into ``ropes`` for each sequence: integers, or booleans for two ropes. An array of the
        same library and device or numpy, or Python numbers. Out of range, host values raise and
        device values give NaN. Under ``torch.compile``, pass a tensor or build the Choice outside.
        For packed tokens without a batch axis, pass sequences of one token: ``q[:, None]``.

    Raises
    ------
    RopeError, TypeError
        If ropes rotate different pairs, or a value is out of range or has the wrong type.

    Examples
    --------
    Two requests, the second longer than the trained context:

    >>> import numpy as np
    >>> import rope_xp
    >>> rule = rope_xp.scaling.LongRoPE((1.0,) * 4, (1.0, 2.0, 4.0, 8.0), 4096, factor=4.0)
    >>> rope = rope_xp.RoPE(layout="half", scaling=rule)
    >>> lengths = np.array([1000, 9000])
    >>> regimes = rope.for_length(4096), rope.for_length(4097)
    >>> choice = rope_xp.Choice(regimes, lengths > 4096)
    >>> q, k = np.ones((2, 1, 4, 8)), np.ones((2, 1, 2, 8))
    >>> q_rotated, k_rotated = choice.at(lengths[:, None] - 1, like=q).apply(q, k)
    >>> bool((k_rotated[1] == regimes[1].rotate(k[1], 8999)).all())
    True
    """

    ropes: tuple[RoPE, ...]
    which: Any

    def __post_init__(self) -> None:
        if not isinstance(self.ropes, tuple) or not self.ropes:
            raise TypeError(f"ropes must be a tuple of one RoPE or more; got {self.ropes!r}")
        for i, rope in enumerate(self.ropes):
            fields.check_rope(rope, RoPE, f"ropes[{i}]")
            first, values = ([getattr(r, n) for n in _SHARED] for r in (self.ropes[0], rope))
            if values != first:
                raise RopeError(
                    "ropes must rotate the same pairs and read the same components of positions: "
                    f"({', '.join(_SHARED)}) is {values} in ropes[{i}] and {first} in ropes[0]"
                )
        which = np.asarray(self.which) if parse.backend_of(self.which) is None else self.which
        owner = find.require_backend(which, "which")
        if owner.dtype_name(which) not in ("bool", *INTEGERS):
            raise TypeError(f"which must hold integers; got {owner.dtype_name(which)}")
        # A copy, which nobody else writes to, and the ropes in use.
        host = np.array(which) if owner.host else None
        used = [] if host is None else self._find_used(host)
        object.__setattr__(self, "_host", (host, used))

    def _find_used(self, which: np.ndarray) -> list[int]:
        """Return the indices of ropes that sequences have, each once."""
        used = sorted({*which.reshape(-1).tolist()})
        if used and not 0 <= used[0] <= used[-1] < len(self.ropes):
            raise RopeError(
                f"which must hold indices into ropes, from 0 to {len(self.ropes) - 1}; "
                f"got {used[0]} to {used[-1]}"
            )
        return used

    def at(self, positions: Positions, *, like: Array, head_dim: int | None = None) -> Angles:
        """Return the angles of positions, for each sequence from its own RoPE.

        See :meth:`rope_xp.RoPE.at`. Each sequence has the same bits as with its own RoPE, if
        ``like`` has the arrays' dtype. Also an error if ``which`` has another library or device.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> q = np.ones((2, 3, 4, 64), np.float32)
        >>> choice = rope_xp.Choice((rope_xp.RoPE(), rope_xp.RoPE(base=5e5)), [1, 0])
        >>> choice.at(np.arange(3), like=q).cos.shape
        (2, 3, 32)
        """
        backend = find.require_backend(like, "like")
        host, used = None, []
        if not backend.is_compiling():
            host, used = vars(self)["_host"]
            if host is None:
                owner, which = parse.read_operand(backend, "like", like, "which", self.which)
                host = owner.host_view(which)
                used = [] if host is None else self._find_used(host)
        if host is not None and used:
            angles = self._look_up(backend, host, used, positions, like, head_dim)
            if angles is not None:
                return angles
        owner, which = parse.read_operand(backend, "like", like, "which", self.which)
        chosen = range(len(self.ropes)) if host is None else used
        if owner.host and not backend.host:
            which = backend.asarray(which.astype(np.int32), backend.device(like))
        which = backend.integers(which)[..., None, None]
        by_rope = {i: build_angles(self.ropes[i], positions, like, head_dim) for i in chosen}
        tables = {i: (angles.cos, angles.sin) for i, angles in by_rope.items()}
        inverses = {i: angles.inverse or tables[i] for i, angles in by_rope.items()}
        has_inverse = any(angles.inverse is not None for angles in by_rope.values())
        checked = host is not None and host.size > 0
        inverse = _select(backend, which, inverses, checked) if has_inverse else None
        return Angles(*_select(backend, which, tables, checked), self.ropes[0], inverse)

    def _look_up(
        self,
        backend: Backend,
        which: np.ndarray,
        used: list[int],
        positions: Positions,
        like: Array,
        head_dim: int | None,
    ) -> Angles | None:
        """Return angles by one table a rope in use, None where nothing native looks up."""
        ropes, found = [self.ropes[i] for i in used], []
        masks: list[Array] = []
        scaled = any(rope.attention_factor != 1.0 for rope in ropes)
        for inverse in (False, True) if scaled else (False,):
            options = positions, like, head_dim, inverse, None, None
            tables = [backend.look_up_angles(rope, *options) for rope in ropes]
            if any(table is None or len(table.shape) > which.ndim + 2 for table in tables):
                return None
            if not masks and len(used) > 1:
                device = backend.device(like)
                masks = [backend.asarray((which == i)[..., None, None], device) for i in used[1:]]
            selected = tables[0]
            for mask, table in zip(masks, tables[1:], strict=True):
                selected = backend.xp.where(mask, table, selected)
            if len(selected.shape) != which.ndim + 2:
                return None
            found.append(halve(selected))
        (cos, sin), *inverses = found
        return Angles(cos, sin, self.ropes[0], *inverses)

    def apply(
        self,
        q: ArrayT,
        k: ArrayT,
        positions: Positions = None,
        *,
        axes: str | None = None,
        out: tuple[ArrayT | None, ArrayT] | None = None,
        slots: Any = None,
        cache_axes: str | None = None,
        norm: QKNorm | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Rotate queries and keys, each sequence with its own RoPE. See :meth:`rope_xp.RoPE.apply`.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> ropes = rope_xp.RoPE(), rope_xp.RoPE(scaling=rope_xp.scaling.Linear(4.0))
        >>> q, k = np.ones((2, 3, 4, 8)), np.ones((2, 3, 2, 8))
        >>> q_rotated, k_rotated = rope_xp.Choice(ropes, [0, 1]).apply(q, k)
        """
        angles = self._angles_of(q, positions, axes)
        options = {"slots": slots, "cache_axes": cache_axes, "norm": norm}
        return angles.apply(q, k, axes=axes, out=out, **options)

    def rotate(
        self,
        x: ArrayT,
        positions: Positions = None,
        *,
        axes: str | None = None,
        out: ArrayT | None = None,
        norm: tuple[ArrayT, float] | QKNorm | None = None,
    ) -> ArrayT:
        """Rotate one array. See :meth:`rope_xp.RoPE.rotate`."""
        return self._angles_of(x, positions, axes).rotate(x, axes=axes, out=out, norm=norm)

    def unrotate(
        self,
        x: ArrayT,
        positions: Positions = None,
        *,
        axes: str | None = None,
        out: ArrayT | None = None,
    ) -> ArrayT:
        """Undo :meth:`rotate`. See :meth:`rope_xp.RoPE.unrotate`."""
        return self._angles_of(x, positions, axes).unrotate(x, axes=axes, out=out)

    def _angles_of(self, x: Array, positions: Positions, axes: str | None) -> Angles:
        if positions is None:
            backend = find.require_backend(x, "x")
            tokens = x.shape[parse_axes(axes, len(x.shape), "x").tokens]
            positions = backend.arange(tokens, backend.device(x))
        return self.at(positions, like=x)


def _select(
    backend: Backend, which: Array, tables: dict[int, CosSinPair], checked: bool
) -> CosSinPair:
    """Return cos and sin from the rope of each sequence, NaN where ``which`` is out of range."""
    xp = backend.xp
    ndim = max(len(which.shape), *(len(cos.shape) for cos, _ in tables.values()))
    which = with_axes(which, ndim)
    masks = {i: which == i for i in tables}

    def select(part: int) -> Array:
        by_rope = {i: with_axes(pair[part], ndim) for i, pair in tables.items()}
        if checked:
            first, *others = by_rope
            selected = by_rope[first]
        else:
            others = [*by_rope]
            selected = xp.full_like(by_rope[0], float("nan"))
        for i in others:
            selected = xp.where(masks[i], by_rope[i], selected)
        if others:
            return selected
        rows = np.broadcast_shapes(which.shape, selected.shape)
        return xp.broadcast_to(selected, rows)

    return select(0), select(1)
