"""RoPE: the parameters of a rotary embedding, and methods that rotate arrays by them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from rope_xp._arguments import fields, parse, parse_tables
from rope_xp._arguments.slots import move_slots, rotate_into_slots
from rope_xp._core.typing import Array, ArrayT
from rope_xp._dispatch import choose
from rope_xp._dispatch.find import by_type, find_backend
from rope_xp._dispatch.how import BOTH, INVERSE, ONE
from rope_xp._frequencies import RopeFields
from rope_xp.angles import Angles, build_angles, rotate_by_difference
from rope_xp.norm import QKNorm, read_norm

Positions = Any
"""Integers or floats: an array of the same library, a numpy array, or Python numbers."""


@fields.keyword_only
@dataclass(frozen=True, kw_only=True, eq=False)
class RoPE(RopeFields):
    """A rotary position embedding: frequencies, how components pair up, and which are rotated.

    At position p, pair i of a head's components rotates by the angle ``p * frequencies[i]`` (Su
    et al., "RoFormer", arXiv 2104.09864, eq. 14-16 and 34). A RoPE holds no arrays and no state; it
    is hashable and picklable. Every method validates its arguments as :meth:`apply` does.

    Parameters
    ----------
    base : float, default 10000.0
        Base of the geometric series of frequencies, often called theta. Positive.
    layout : {"interleaved", "half", "interleaved_to_half"}, default "interleaved"
        Which of the r rotated components form pair i. "interleaved": 2i and 2i + 1 (the paper;
        Meta's Llama, GPT-J). "half": i and i + r/2 (Hugging Face's Llama, GPT-NeoX).
        "interleaved_to_half": read from 2i and 2i + 1, written to i and i + r/2 (DeepSeek-V3 in
        Hugging Face).
    rotary_dim : int, optional
        Number of rotated components r, even. None: all of head_dim. The others do not change.
    rotary_offset : int, default 0
        Where the rotated slice starts; negative counts from the end of head_dim.
    scaling : Scaling, optional
        A class of :mod:`rope_xp.scaling`, which changes the frequencies.
    position_axes : tuple of int, optional
        Length r/2. Frequency i multiplies component ``position_axes[i]`` of positions, which then
        have a leading axis of ``max(position_axes) + 1`` components: M-RoPE, axial 2-D and 3-D
        positions. None: positions have one component and no such axis.

    Raises
    ------
    RopeError, TypeError
        If a value is out of range or has the wrong type, or scaling needs ``position_axes``.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> rope = rope_xp.RoPE(base=500000.0, layout="half")
    >>> q, k = np.ones((1, 5, 8, 64)), np.ones((1, 5, 2, 64))
    >>> q_rotated, k_rotated = rope.apply(q, k)
    """

    def apply(
        self,
        q: ArrayT,
        k: ArrayT,
        positions: Positions = None,
        *,
        axes: str | None = None,
        k_positions: Positions = None,
        out: tuple[ArrayT | None, ArrayT] | None = None,
        slots: Any = None,
        cache_axes: str | None = None,
        norm: QKNorm | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Rotate queries and keys by their positions.

        Parameters
        ----------
        q : array, (batch, tokens, heads, head_dim) or as ``axes`` says
            Queries, from numpy, torch, jax, cupy or any library of the array API standard. float16,
            bfloat16, float32 or float64; 16-bit types are computed in float32 and rounded once.
        k : array, like q
            Keys, of the same library and device. They may have fewer heads (grouped queries) and,
            with ``k_positions``, another number of tokens.
        positions : array or sequence, broadcastable to (batch, tokens), optional
            Integers or floats, in tokens, batch first whatever ``axes`` says: (tokens,),
            (batch, tokens), or (batch, 1) for all tokens of a sequence. An array of the same
            library or numpy, or Python numbers. A single number, 5 or [5], needs a single token.
            With ``position_axes`` a leading axis holds the components. None: 0, 1, ... tokens - 1.
            Absolute values must be below 2**31. Positions on a device are not checked, and larger
            ones give NaN.
        axes : str, optional
            One letter for each axis of q and k: ``s`` tokens, ``h`` heads, ``d`` head_dim (last),
            any other letter batch. Default: "bshd" for four axes, "shd" for three, "sd" for two;
            further axes come first and are batch. Hugging Face and torch's attention have "bhsd",
            Megatron "sbhd".
        k_positions : array or sequence, optional
            Positions of k, if they differ from those of q.
        out : (array, array), optional
            Arrays for the two results. ``out=(q, k)`` rotates in place. Not for jax.
        slots : array or sequence, (batch..., tokens), or (tokens,) for one sequence, optional
            Integers: rotated keys go to these slots of a cache, (slots, heads, head_dim) or (pages,
            page, heads, head_dim), ``out=(q, k_cache)``, which is returned. ``out[0]`` may be None.
            -1 is padding: its key is not written. Each slot once, which is checked for at most 64.
            Slots on a device are not checked; see :doc:`/caches`.
        cache_axes : str, optional
            One letter for each axis of the cache: ``s`` slots, ``h`` heads, ``d`` head_dim (last),
            and perhaps ``p`` pages, through which slots are numbered, or any other letter for
            sequences, each with slots of its own: "bhsd" as in Hugging Face, "phsd" for pages with
            heads first. (tokens,) are then the same slots in all sequences. None: no heads first
            and no sequences, "shd" or "pshd".
        norm : QKNorm, optional
            RMSNorm of q and k before the rotation, in the same pass over memory.

        Returns
        -------
        q_rotated, k_rotated : array
            The shape, dtype, library and device are those of q and k. Inputs do not change, unless
            ``out`` names them.

        Raises
        ------
        RopeError, TypeError
            If shapes, devices, libraries, positions or options do not fit, or have the wrong type.
            Nothing has been written then.

        Examples
        --------
        One token after 1000 cached ones, heads before tokens:

        >>> import numpy as np
        >>> import rope_xp
        >>> rope = rope_xp.RoPE(base=500000.0, layout="half")
        >>> q, k = np.ones((1, 8, 1, 64), np.float32), np.ones((1, 2, 1, 64), np.float32)
        >>> q_rotated, k_rotated = rope.apply(q, k, [1000], axes="bhsd")
        """
        backend = by_type.get(type(q)) or find_backend(q)
        if backend is not None:
            results = backend.rotate_by_rope(
                self, q, k, positions, k_positions, axes, out, norm, slots, cache_axes, BOTH
            )
            if results is not None:
                return results  # type: ignore[no-any-return]  # same kind as q and k
            has_own = k_positions is not None
            normal = parse.normalize(backend, self, (q, k), axes, norm, has_k_positions=has_own)
            if normal is not None:
                options = {"axes": axes, "k_positions": k_positions, "out": out}
                options |= {"slots": slots, "cache_axes": cache_axes}
                return self.apply(normal[0], normal[1], positions, **options)
        if slots is not None or cache_axes is not None:
            call = self, (q, k), positions, axes, None, False, norm, k_positions
            return rotate_into_slots(partial(parse.rotate, *call), k, slots, cache_axes, out)
        arguments = self, (q, k), positions, axes, out, False, norm, k_positions
        return choose.run(parse.rotate(*arguments))

    def rotate(
        self,
        x: ArrayT,
        positions: Positions = None,
        *,
        axes: str | None = None,
        out: ArrayT | None = None,
        norm: tuple[ArrayT, float] | QKNorm | None = None,
    ) -> ArrayT:
        """Rotate one array.

        Parameters
        ----------
        x, positions, axes, out
            See :meth:`apply`; ``out=x`` rotates in place.
        norm : (array, float) or QKNorm, optional
            Weight and eps of an RMSNorm, or a QKNorm whose ``q_weight`` applies to x.

        Returns
        -------
        array, like x

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> x = np.array([[1.0, 0.0]])
        >>> rope_xp.RoPE().rotate(x, [1], axes="sd").round(4).tolist()
        [[0.5403, 0.8415]]
        """
        return self._rotate_one(x, positions, axes, out, ONE, norm)

    def unrotate(
        self,
        x: ArrayT,
        positions: Positions = None,
        *,
        axes: str | None = None,
        out: ArrayT | None = None,
    ) -> ArrayT:
        """Undo :meth:`rotate`: the inverse rotation, divided by the attention factor.

        Parameters
        ----------
        x, positions, axes, out
            See :meth:`rotate`.

        Returns
        -------
        array, like x
            x before :meth:`rotate`, up to the rounding of two rotations.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> rope, x = rope_xp.RoPE(layout="half"), np.arange(8.0).reshape(2, 4)
        >>> back = rope.unrotate(rope.rotate(x, [7, 1_000_000]), [7, 1_000_000])
        >>> bool(np.allclose(back, x, rtol=0, atol=1e-14))
        True
        """
        return self._rotate_one(x, positions, axes, out, ONE | INVERSE)

    def _rotate_one(
        self,
        x: ArrayT,
        positions: Positions,
        axes: str | None,
        out: ArrayT | None,
        flags: int,
        norm: tuple[ArrayT, float] | QKNorm | None = None,
    ) -> ArrayT:
        backend = by_type.get(type(x)) or find_backend(x)
        if backend is not None:
            call = self, x, None, positions, None, axes, out, norm, None, None, flags
            result = backend.rotate_by_rope(*call)
            if result is not None:
                return result  # type: ignore[no-any-return]  # same kind as x
            normal = parse.normalize(backend, self, (x,), axes, read_norm(norm))
            if normal is not None:
                return self._rotate_one(normal[0], positions, axes, out, flags)  # type: ignore[no-any-return]  # as x
        inverse = flags & INVERSE != 0
        arguments = self, (x,), positions, axes, out, inverse, read_norm(norm)
        return choose.run(parse.rotate(*arguments))[0]  # type: ignore[no-any-return]  # same kind as x

    def rerotate(
        self,
        x: ArrayT,
        old_positions: Positions,
        new_positions: Positions,
        *,
        to: RoPE | None = None,
        slots: Any = None,
        axes: str | None = None,
        out: ArrayT | None = None,
    ) -> ArrayT:
        """Move rotated keys to other positions, optionally onto another RoPE.

        Both rotations are composed into one table, so x is rounded once. After 1,000 moves, float32
        keys are off by at most 1e-4 of the largest one; with ``slots``, which uses float64 if the
        library has it, by 1e-5. Move bfloat16 keys rarely, in large steps; see :doc:`/caches`.

        Parameters
        ----------
        x, axes, out
            See :meth:`rotate`. x holds keys that this RoPE rotated at ``old_positions``.
        old_positions, new_positions : array or sequence, (tokens,) or (batch, tokens)
            In tokens; None for 0, 1, ...
        to : RoPE, optional
            The RoPE of the result, which must rotate the same pairs. Default: this one.
        slots : array or sequence, (n,), optional
            Integers: indices along the tokens axis of x, a cache, of the n keys to move. Positions
            are then those of these n keys. Other slots keep their values, and are not written if
            ``out`` is x. An array of the library and device of x or numpy, or Python numbers, each
            slot once. Slots on a device are not checked: they must lie within the cache.

        Returns
        -------
        array, like x

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> rope, keys = rope_xp.RoPE(), np.arange(16.0).reshape(2, 8)
        >>> moved = rope.rerotate(rope.rotate(keys, [100, 101]), [100, 101], [4, 5])
        >>> bool(np.allclose(moved, rope.rotate(keys, [4, 5]), rtol=0, atol=1e-13))
        True
        >>> cache = np.ones((64, 1, 8), np.float32)
        >>> rope.rerotate(cache, [100, 101], [4, 5], slots=[17, 42], out=cache) is cache
        True
        """
        if slots is not None:

            def move(keys: ArrayT) -> ArrayT:
                return self.rerotate(keys, old_positions, new_positions, to=to, axes=axes)

            return move_slots(x, slots, axes, out, move)  # type: ignore[no-any-return]  # same kind as x
        to = self if to is None else to
        fields.check_rope(to, RoPE, "to")
        arguments = self, to, x, old_positions, new_positions, axes, out
        result = rotate_by_difference(*arguments)
        return choose.run(parse.rerotate(*arguments))[0] if result is None else result  # type: ignore[no-any-return]  # same kind as x

    def at(self, positions: Positions, *, like: Array, head_dim: int | None = None) -> Angles:
        """Return the angles of positions, computed once for all layers of a forward pass.

        Parameters
        ----------
        positions
            See :meth:`apply`.
        like : array, (..., head_dim)
            An array such as q, whose values are not read. The angles have its library, device and
            head_dim; they are float64 if it is, else float32.
        head_dim : int, optional
            Of q and k, if the last axis of ``like`` has another length. Then any array will do,
            such as hidden states or token ids.

        Returns
        -------
        Angles

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> rope_xp.RoPE().at(1000 + np.arange(4), like=np.ones((1, 4, 8, 64))).cos.shape
        (4, 32)
        """
        return build_angles(self, positions, like, head_dim)

    def with_tables(self, cos: Array, sin: Array) -> Angles:
        """Return angles from tables of cos and sin, with the layout and slice of this RoPE.

        The tables replace its frequencies, scaling and attention factor. RopeError if their shapes
        differ or do not fit ``rotary_dim``. If that is None, also if tables in host memory hold
        each angle twice, as Hugging Face's do. For cos and sin see :func:`rope_xp.apply_tables`.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> rope = rope_xp.RoPE(base=500000.0, layout="half")
        >>> cos, sin = rope.table(8192, 128, form="onnx")
        >>> x = np.ones((1, 3, 8, 128), np.float32)
        >>> rotated = rope.with_tables(cos[[7, 8, 9]], sin[[7, 8, 9]]).rotate(x)
        """
        parse_tables.check_rope_tables(self, cos, sin)
        return Angles(cos, sin, self)
