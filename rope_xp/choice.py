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
from rope_xp.angles import Angles, build_angles, halve
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
        which, used = (None, []) if backend.is_compiling() else vars(self)["_host"]
        if which is None:
            which, used = self._read_which(backend, like)
        on_host = isinstance(which, np.ndarray)
        numbers = used or range(len(self.ropes))
        inverse = any(self.ropes[i].attention_factor != 1.0 for i in numbers)
        angles_of = positions, like, head_dim
        by_rope = [_build_tables(backend, self.ropes[i], angles_of, inverse) for i in numbers]
        ndim = max(len(which.shape) + 2, *(len(tables[0].shape) for tables in by_rope))
        masks = [which == i for i in (numbers[1:] if on_host else numbers)]
        masks = [with_axes(mask[..., None, None], ndim) for mask in masks]
        if on_host:
            masks = [backend.asarray(mask, backend.device(like)) for mask in masks]
        pairs = []
        for tables in zip(*by_rope, strict=True):
            rest = [t if len(t.shape) == ndim else with_axes(t, ndim) for t in tables]
            table = rest.pop(0) if on_host else backend.xp.full_like(rest[0], float("nan"))
            for mask, other in zip(masks, rest, strict=True):
                table = backend.xp.where(mask, other, table)
            if not masks and which.size > 1:  # as where does
                shape = np.broadcast_shapes((*which.shape, 1, 1), table.shape)
                table = backend.xp.broadcast_to(table, shape)
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


def _build_tables(
    backend: Backend, rope: RoPE, angles_of: tuple[Positions, Array, int | None], inverse: bool
) -> list[Array]:
    """Return cos and sin side by side, those of the inverse behind them if there are any."""
    directions = (False, True) if inverse else (False,)
    tables = [backend.look_up_angles(rope, *angles_of, back, None, None) for back in directions]
    if tables[0] is not None:
        return tables
    angles = build_angles(rope, *angles_of)
    pair = angles.cos, angles.sin
    pairs = (pair, angles.inverse or pair)[: len(directions)]
    return [backend.xp.concat(pair, axis=-1) for pair in pairs]
