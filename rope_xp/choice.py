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
        """Return the indices of ropes that sequences have, each once; the first where none are."""
        used = sorted({*which.reshape(-1).tolist()}) or [0]
        if not 0 <= used[0] <= used[-1] < len(self.ropes):
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
        which, used = (None, []) if backend.is_compiling() else vars(self)["_host"]
        if which is None:
            which, used = self._read_which(backend, like)
        if len(used) == 1:
            angles = build_angles(self.ropes[used[0]], positions, like, head_dim)
            return _give_rows(backend, angles, which)
        on_host = isinstance(which, np.ndarray)
        numbers = used or range(len(self.ropes))
        ropes = [self.ropes[i] for i in numbers]
        scaled = {rope.attention_factor for rope in ropes} != {1.0}
        masks, pairs = [(which == i)[..., None, None] for i in numbers[on_host:]], []
        if on_host:
            masks = [backend.asarray(mask, backend.device(like)) for mask in masks]
        for inverse in (False, True) if scaled else (False,):
            tables = _build_tables(backend, ropes, (positions, like, head_dim), inverse)
            ndim = max(len(masks[0].shape), len(tables[0].shape))
            tables = [t if len(t.shape) == ndim else with_axes(t, ndim) for t in tables]
            table = tables.pop(0) if on_host else backend.xp.full_like(tables[0], float("nan"))
            for mask, other in zip(masks, tables, strict=True):
                table = backend.xp.where(with_axes(mask, ndim), other, table)
            pairs.append(halve(table))
        return Angles(*pairs[0], self.ropes[0], *pairs[1:])

    def _read_which(self, backend: Backend, like: Array) -> tuple[Array, list[int]]:
        """Return ``which`` as an array of numpy and the ropes in use, or on the device of like."""
        owner, which = parse.read_operand(backend, "like", like, "which", self.which)
        host = None if backend.is_compiling() else owner.host_view(which)
        if host is not None:
            return host, self._find_used(host)
        return backend.integers(which), []

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
        if positions is None:
            backend = find.require_backend(q, "q")
            tokens = q.shape[parse_axes(axes, len(q.shape), "q").tokens]  # type: ignore[attr-defined]  # of an array
            positions = backend.arange(tokens, backend.device(q))
        angles = self.at(positions, like=q)
        options = {"slots": slots, "cache_axes": cache_axes, "norm": norm}
        return angles.apply(q, k, axes=axes, out=out, **options)


def _give_rows(backend: Backend, angles: Angles, which: np.ndarray) -> Angles:
    """Return angles of one rope with rows for each sequence, as those of several have."""
    if angles.cos.shape[:-2] == which.shape:
        return angles
    shape = np.broadcast_shapes((*which.shape, 1, 1), angles.cos.shape)

    def broadcast(pair: CosSinPair) -> CosSinPair:
        cos, sin = [backend.xp.broadcast_to(table, shape) for table in pair]
        return cos, sin

    inverse = None if angles.inverse is None else broadcast(angles.inverse)
    return Angles(*broadcast((angles.cos, angles.sin)), angles.rope, inverse)


def _build_tables(
    backend: Backend,
    ropes: list[RoPE],
    angles_of: tuple[Positions, Array, int | None],
    inverse: bool,
) -> list[Array]:
    """Return cos and sin of each rope side by side, or those of the inverse."""
    tables = [backend.look_up_angles(rope, *angles_of, inverse, None, None) for rope in ropes]
    if all(table is not None for table in tables):  # those of a user's scaling are not looked up
        return tables
    by_rope = [build_angles(rope, *angles_of) for rope in ropes]
    pairs = [(inverse and angles.inverse) or (angles.cos, angles.sin) for angles in by_rope]
    return [backend.xp.concat(pair, axis=-1) for pair in pairs]
