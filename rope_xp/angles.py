"""Angles: cos and sin of a forward pass, which all its layers are rotated by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rope_xp._arguments import parse_tables
from rope_xp._core.library import Rope
from rope_xp._core.trees import TREES, Tree
from rope_xp._core.typing import Array, ArrayT
from rope_xp._dispatch import call_cache
from rope_xp._tables import made


@dataclass(frozen=True, eq=False)
class Angles:
    """Cos and sin of the positions of a forward pass, for all layers that share a RoPE.

    Made by :meth:`rope_xp.RoPE.at` from positions, or by :meth:`rope_xp.RoPE.with_tables` from
    tables. It can be made and used under ``torch.compile`` and ``jax.jit``, which may also take and
    return it: in jax it is a pytree with cos and sin for its leaves.

    Parameters
    ----------
    cos, sin : array, (batch..., tokens, r/2)
        What pair i of the r rotated components is turned by, times the attention factor of the
        rope. They are used in float32, in float64 where the array that is rotated is of float64.
    rope : RoPE
        It says which components form pairs and where they lie; its frequencies are in cos and sin.
    inverse : (array, array), optional
        Cos and sin divided by the attention factor, for :meth:`unrotate`. None: cos and sin
        themselves, as where the factor is 1.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> q, k = np.ones((1, 3, 8, 64), np.float32), np.ones((1, 3, 2, 64), np.float32)
    >>> rope = rope_xp.RoPE(layout="half")
    >>> angles = rope.at([1000, 1001, 1002], like=q)
    >>> angles.cos.shape
    (3, 32)
    >>> for layer in range(32):
    ...     q_rotated, k_rotated = angles.apply(q, k)
    >>> bool((q_rotated == rope.rotate(q, [1000, 1001, 1002])).all())
    True
    """

    cos: Array
    sin: Array
    rope: Rope
    inverse: tuple[Array, Array] | None = None

    def apply(
        self,
        q: ArrayT,
        k: ArrayT,
        *,
        axes: str | None = None,
        out: tuple[ArrayT, ArrayT] | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Rotate queries and keys.

        Parameters
        ----------
        q, k : array, (batch, tokens, heads, head_dim) or as ``axes`` says
            As for :func:`rope_xp.apply`.
        axes : str, optional
            Names of the axes of q and k; see :func:`rope_xp.apply`.
        out : (array, array), optional
            Where to write the two results. ``out=(q, k)`` is in place. Not with jax.

        Returns
        -------
        q_rotated, k_rotated : array
            With the shape, dtype, library and device of q and k; in every bit what
            :meth:`RoPE.apply <rope_xp.RoPE.apply>` makes of them, if the angles were made like an
            array of the same width: float64, or any other. XLA and compilers of GPUs may fuse
            multiply-add in another way in each: 2 ulp apart at most.

        Raises
        ------
        RopeError
            If shapes or devices do not fit; nothing has been written then.
        TypeError
            If an argument is of the wrong type, or of another library than the angles.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> q, k = np.ones((1, 8, 3, 64)), np.ones((1, 2, 3, 64))
        >>> angles = rope_xp.RoPE().at([5, 6, 7], like=q)
        >>> q_rotated, k_rotated = angles.apply(q, k, axes="bhsd")
        >>> k_rotated.shape
        (1, 2, 3, 64)
        """
        rope, tables = self.rope, (self.cos, self.sin)
        signature = call_cache.signature((Angles, rope), (q, k), None, axes, out, False, tables)
        rotated_q, rotated_k = call_cache.run(
            signature, parse_tables.apply, rope, q, k, *tables, axes, out
        )
        return rotated_q, rotated_k

    def rotate(self, x: ArrayT, *, axes: str | None = None, out: ArrayT | None = None) -> ArrayT:
        """Rotate one array.

        Parameters
        ----------
        x : array, (batch, tokens, heads, head_dim) or as ``axes`` says
            float16, bfloat16, float32 or float64.
        axes : str, optional
            Names of the axes of x; see :func:`rope_xp.apply`.
        out : array, optional
            Where to write; x itself for in place.

        Returns
        -------
        array
            Rotated, with the shape, dtype, library and device of x.

        Raises
        ------
        RopeError, TypeError
            As :meth:`apply`.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> x = np.array([[1.0, 0.0]])
        >>> rope_xp.RoPE().at([1], like=x).rotate(x, axes="sd").round(4).tolist()
        [[0.5403, 0.8415]]
        """
        return self._turned(x, (self.cos, self.sin), axes, out, False)

    def unrotate(self, x: ArrayT, *, axes: str | None = None, out: ArrayT | None = None) -> ArrayT:
        """Undo :meth:`rotate`.

        Angles of :meth:`RoPE.at <rope_xp.RoPE.at>` undo the attention factor too. Those of
        :meth:`RoPE.with_tables <rope_xp.RoPE.with_tables>` turn back, and leave a factor that may
        be in the tables in place twice: nobody knows it.

        Parameters
        ----------
        x : array, (batch, tokens, heads, head_dim) or as ``axes`` says
            What :meth:`rotate` returned.
        axes, out
            As for :meth:`rotate`.

        Returns
        -------
        array
            x as it was before, to the rounding of two rotations.

        Raises
        ------
        RopeError, TypeError
            As :meth:`apply`.

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
        return self._turned(x, tables, axes, out, True)

    def _turned(
        self,
        x: ArrayT,
        tables: tuple[Array, Array],
        axes: str | None,
        out: ArrayT | None,
        inverse: bool,
    ) -> ArrayT:
        into = None if out is None else (out,)
        signature = call_cache.signature(
            (Angles, self.rope), (x,), None, axes, into, inverse, tables
        )
        rotate = parse_tables.rotate
        return call_cache.run(signature, rotate, self.rope, x, *tables, axes, out, inverse)[0]  # type: ignore[no-any-return]  # same kind as x


TREES.append(Tree(Angles, ("cos", "sin", "inverse"), ("rope",)))


def at(rope: Rope, positions: Any, like: Array) -> Angles:
    """Return the angles of positions for arrays such as ``like``."""
    (cos, sin), undo = made.at(rope, positions, like)
    return Angles(cos, sin, rope, undo)


def with_tables(rope: Rope, cos: Array, sin: Array) -> Angles:
    """Return angles of tables of the caller."""
    parse_tables.check_tables_of(rope, cos, sin)
    return Angles(cos, sin, rope)
