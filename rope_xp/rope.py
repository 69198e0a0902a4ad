"""RoPE: what a rotary embedding is, apart from any array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rope_xp._arguments import fields, parse, parse_tables, table_forms
from rope_xp._arguments.slices import slice_of
from rope_xp._arguments.slots import take_slots, write_slots
from rope_xp._core import numbers
from rope_xp._core.typing import Array, ArrayT, Device, Layout, Namespace
from rope_xp._dispatch import call_cache, choose
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.angles import Angles, build_angles, compute_cos_sin
from rope_xp.scaling import Axial, Scaling, _base
from rope_xp.scaling._axial import assign_pairs

Positions = Any
"""Integers or floats: an array of the same library, a numpy array, or Python numbers."""


@fields.keyword_only
@dataclass(frozen=True, kw_only=True)
class RoPE:  # noqa: PLW1641  # dataclass adds the hash
    """A rotary position embedding: frequencies, how components pair up, and which are rotated.

    At position p, the pair i of a head's components turns by the angle ``p * frequencies[i]``. A
    RoPE holds no arrays and no state; it is hashable and picklable. All its methods raise RopeError
    and TypeError as :meth:`apply` does, before anything is written.

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
        Number of rotated components r, even. None: all of head_dim. The rest passes through.
    rotary_offset : int, default 0
        Where the rotated slice starts; negative counts from the end of head_dim.
    scaling : Scaling, optional
        A class of :mod:`rope_xp.scaling`, which changes the frequencies.
    position_axes : tuple of int, optional
        Frequency i reads component ``position_axes[i]`` of positions, which then have a leading
        axis of ``max(position_axes) + 1`` components: M-RoPE, axial 2-D and 3-D positions. Length
        r/2. None: positions have one component and no such axis.

    Raises
    ------
    RopeError
        If a value is out of range, or scaling needs ``position_axes``.
    TypeError
        If a value is of the wrong type, or a name is none of these.

    Notes
    -----
    Su et al., "RoFormer", arXiv 2104.09864, eq. 14-16 and 34.

    Examples
    --------
    >>> import numpy as np
    >>> import rope_xp
    >>> rope = rope_xp.RoPE(base=500000.0, layout="half")
    >>> q, k = np.ones((1, 5, 8, 64)), np.ones((1, 5, 2, 64))
    >>> q_rotated, k_rotated = rope.apply(q, k)
    >>> k_rotated.shape
    (1, 5, 2, 64)
    """

    base: float = 10000.0
    layout: Layout = "interleaved"
    rotary_dim: int | None = None
    rotary_offset: int = 0
    scaling: Scaling | None = None
    position_axes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        self._set_plain("base", numbers.check_positive("base", self.base))
        fields.check_layout(self.layout)
        if self.rotary_dim is not None:
            self._set_plain("rotary_dim", fields.check_rotary_dim(self.rotary_dim))
        self._set_plain("rotary_offset", numbers.check_int("rotary_offset", self.rotary_offset))
        if self.position_axes is not None:
            axes = fields.check_position_axes(self.position_axes, self.rotary_dim)
            object.__setattr__(self, "position_axes", axes)
        if self.scaling is not None:
            _base.check_scaling(self.scaling)
            _base.check_components(self.scaling, self.position_axes)

    def _set_plain(self, name: str, value: float) -> None:
        if type(value) is not type(getattr(self, name)):  # it was a number of numpy
            object.__setattr__(self, name, value)

    def __eq__(self, other: object) -> bool:
        """Return whether two ropes are of one class, and have equal fields of equal classes."""
        # A rope is a cache key, and scaling of another class has other frequencies.
        if type(other) is not type(self):
            return NotImplemented
        return vars(self) == vars(other) and numbers.is_identical(self.scaling, other.scaling)

    @classmethod
    def axial(
        cls,
        sections: Sequence[int],
        *,
        bases: Sequence[float] | None = None,
        order: str = "blocks",
        **fields: Any,
    ) -> Self:
        """Return the RoPE of positions with several components, such as those of images and videos.

        Each component has its own series of frequencies, ``base ** (-2 j / n)`` for a section of n
        components of a head. Positions have a leading axis of ``len(sections)`` components.

        Parameters
        ----------
        sections : sequence of int
            Components of a head for each component of a position, even numbers: (16, 56, 56) for
            Flux. They sum to ``rotary_dim``.
        bases, order
            As for :class:`rope_xp.scaling.Axial`; bases None: ``base`` for all.
        **fields
            ``base``, ``layout`` and ``rotary_offset``.

        Examples
        --------
        >>> import rope_xp
        >>> from rope_xp import positions
        >>> rope = rope_xp.RoPE.axial((4, 2, 2), base=256.0)
        >>> rope.position_axes, rope.frequencies(8).tolist()
        ((0, 0, 1, 2), [1.0, 0.0625, 1.0, 1.0])
        >>> rope.cos_sin(positions.video(2, 3, 5), head_dim=8)[0].shape
        (30, 4)
        """
        derived = [name for name in ("rotary_dim", "scaling", "position_axes") if name in fields]
        if derived:
            msg = f"RoPE.axial makes {', '.join(derived)} of its sections; leave that out"
            raise TypeError(msg)
        scaling = Axial(
            order=order,
            sections=sections,  # type: ignore[arg-type]  # which makes a tuple of it
            bases=bases,  # type: ignore[arg-type]  # likewise
        )
        axes = tuple(axis for axis, _ in assign_pairs(scaling.sections or (), order))
        return cls(rotary_dim=2 * len(axes), scaling=scaling, position_axes=axes, **fields)

    # --- rotation --------------------------------------------------------------------------------

    def apply(
        self,
        q: ArrayT,
        k: ArrayT,
        positions: Positions = None,
        *,
        axes: str | None = None,
        k_positions: Positions = None,
        out: tuple[ArrayT, ArrayT] | None = None,
    ) -> tuple[ArrayT, ArrayT]:
        """Rotate queries and keys by their positions.

        Parameters
        ----------
        q : array, (batch, tokens, heads, head_dim) or as ``axes`` says
            Queries of numpy, torch, jax, cupy or any library of the array API standard. float16,
            bfloat16, float32 or float64; the lower two are computed in float32 and rounded once.
        k : array, like q
            Keys, of the same library and device. They may have fewer heads (grouped queries) and,
            with ``k_positions``, another number of tokens.
        positions : array or sequence, broadcastable to (batch, tokens), optional
            Integers or floats, in tokens, batch first whatever ``axes`` says: (tokens,),
            (batch, tokens), or (batch, 1) for all tokens of a sequence. Of the same library, numpy,
            or Python numbers. A lone number, 5 or [5], only where there is one token. With
            ``position_axes`` they have a leading axis of components. None: 0, 1, ... tokens - 1.
            The modulus must be below 2**31; positions on a device are not read to check that, and
            those beyond give NaN.
        axes : str, optional
            One letter an axis of q and k: ``s`` tokens, ``h`` heads, ``d`` head_dim (last), any
            other batch. "bshd" is the default for four axes, "shd" for three, "sd" for two, and
            batch axes before these for more. "bhsd" is Hugging Face and torch's attention, "sbhd"
            Megatron.
        k_positions : array or sequence, optional
            Positions of k where they differ from those of q.
        out : (array, array), optional
            Where to write the two results. ``out=(q, k)`` is in place. Not with jax.

        Returns
        -------
        q_rotated, k_rotated : array
            With the shape, dtype, library and device of q and k. Inputs are not written, unless
            ``out`` names them.

        Raises
        ------
        RopeError
            If shapes, devices, positions or options do not fit; nothing has been written then.
        TypeError
            If an argument is of the wrong type, or q and k are of different libraries.

        Examples
        --------
        One token behind a cache of 1000, heads before tokens:

        >>> import numpy as np
        >>> import rope_xp
        >>> rope = rope_xp.RoPE(base=500000.0, layout="half")
        >>> q, k = np.ones((1, 8, 1, 64), np.float32), np.ones((1, 2, 1, 64), np.float32)
        >>> q_rotated, k_rotated = rope.apply(q, k, 1000 + np.arange(1), axes="bhsd")
        >>> q_rotated.shape, k_rotated.shape
        ((1, 8, 1, 64), (1, 2, 1, 64))
        """
        signature = None
        if k_positions is None:
            signature = call_cache.signature(self, (q, k), positions, axes, out, False)
        rotated_q, rotated_k = call_cache.run(
            signature, parse.apply, self, q, k, positions, axes, k_positions, out
        )
        return rotated_q, rotated_k

    def rotate(
        self,
        x: ArrayT,
        positions: Positions = None,
        *,
        axes: str | None = None,
        out: ArrayT | None = None,
    ) -> ArrayT:
        """Rotate one array.

        Parameters
        ----------
        x : array, (batch, tokens, heads, head_dim) or as ``axes`` says
            float16, bfloat16, float32 or float64.
        positions, axes, out
            As for :meth:`apply`; ``out=x`` is in place.

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
        return self._rotate_one(x, positions, axes, out, False)

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
            As for :meth:`rotate`.

        Returns
        -------
        array, like x
            x before :meth:`rotate`, to the rounding of two rotations.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> rope = rope_xp.RoPE(layout="half")
        >>> x = np.arange(8.0).reshape(2, 4)
        >>> back = rope.unrotate(rope.rotate(x, [7, 1_000_000]), [7, 1_000_000])
        >>> bool(np.allclose(back, x, rtol=0, atol=1e-14))
        True
        """
        return self._rotate_one(x, positions, axes, out, True)

    def _rotate_one(
        self, x: ArrayT, positions: Positions, axes: str | None, out: ArrayT | None, inverse: bool
    ) -> ArrayT:
        outs = None if out is None else (out,)
        signature = call_cache.signature(self, (x,), positions, axes, outs, inverse)
        return call_cache.run(signature, parse.rotate, self, x, positions, axes, out, inverse)[0]  # type: ignore[no-any-return]  # same kind as x

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

        Both rotations are composed into one table, so x is rounded once. Repeated moves accumulate
        these roundings: after 1,000 moves float32 is off by 4e-5 of the largest key, and with
        ``slots``, computed in float64 where there is one, by 1e-5. Move bfloat16 keys seldom and
        far, see :doc:`caches`.

        Parameters
        ----------
        x, axes, out
            As for :meth:`rotate`: keys that this RoPE rotated at ``old_positions``.
        old_positions, new_positions : array or sequence, (tokens,) or (batch, tokens)
            In tokens; None for 0, 1, ...
        to : RoPE, optional
            What rotates the result. Default: this RoPE. It must rotate the same pairs.
        slots : array or sequence, (n,), optional
            Integers: slots along the tokens axis of x, a cache, whose keys are moved; positions are
            those of these n. All other slots stay as they are, and are not written where ``out`` is
            x. Of the library and device of x, numpy, or Python numbers; each slot once. Those on a
            device are not read: they must lie within the cache.

        Returns
        -------
        array, like x

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> rope = rope_xp.RoPE()
        >>> keys = np.arange(16.0).reshape(2, 8)
        >>> cached = rope.rotate(keys, [100, 101])
        >>> moved = rope.rerotate(cached, [100, 101], [4, 5])
        >>> bool(np.allclose(moved, rope.rotate(keys, [4, 5]), rtol=0, atol=1e-13))
        True

        Two slots of a cache of 64, in place:

        >>> cache = np.ones((64, 1, 8), np.float32)
        >>> rope.rerotate(cache, [100, 101], [4, 5], slots=[17, 42], out=cache) is cache
        True
        """
        if slots is not None:
            taken = take_slots(x, slots, axes, out)
            moved = self.rerotate(taken.keys, old_positions, new_positions, to=to, axes=axes)
            return write_slots(taken, moved)  # type: ignore[no-any-return]  # same kind as x
        to = self if to is None else to
        fields.check_rope(to, RoPE, "to")
        call = parse.rerotate(self, to, x, old_positions, new_positions, axes, out)
        return choose.run(call)[0]  # type: ignore[no-any-return]  # same kind as x

    # --- angles ----------------------------------------------------------------------------------

    def at(self, positions: Positions, *, like: Array) -> Angles:
        """Return the angles of positions, computed once for all layers of a forward pass.

        Parameters
        ----------
        positions : array or sequence, (tokens,) or (batch, tokens)
            As for :meth:`apply`.
        like : array, (..., head_dim)
            An array such as q, whose values are not read. The angles are of its library, device and
            head_dim, and in float64 if it is, else in float32.

        Returns
        -------
        Angles

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> q, k = np.ones((1, 4, 8, 64), np.float32), np.ones((1, 4, 2, 64), np.float32)
        >>> angles = rope_xp.RoPE(layout="half").at(1000 + np.arange(4), like=q)
        >>> for layer in range(32):
        ...     q_rotated, k_rotated = angles.apply(q, k)
        """
        return build_angles(self, positions, like)

    def with_tables(self, cos: Array, sin: Array) -> Angles:
        """Return the angles of given tables, with the layout and slice of this RoPE.

        The tables replace its frequencies, scaling and attention factor; the angles rotate as
        :func:`rope_xp.apply_tables` does.

        Parameters
        ----------
        cos, sin : array, broadcastable to (batch, tokens, r/2)
            One column for each pair, of the library and device of the arrays to rotate, or numpy.

        Raises
        ------
        RopeError
            If shapes do not fit each other, or ``rotary_dim``; without that, also if tables in host
            memory hold each angle twice, as those of Hugging Face do.
        TypeError
            If cos or sin is no array of floats.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> x = np.array([[1.0, 2.0, 3.0, 4.0]])
        >>> cos, sin = np.array([[0.0, 1.0]]), np.array([[1.0, 0.0]])
        >>> rope_xp.RoPE(layout="half").with_tables(cos, sin).rotate(x).tolist()
        [[-3.0, 2.0, 1.0, 4.0]]
        """
        parse_tables.check_rope_tables(self, cos, sin)
        return Angles(cos, sin, self)

    def frequencies(self, head_dim: int) -> NDArray[np.float64]:
        """Return the frequencies: ``base ** (-2 i / r)`` (arXiv 2104.09864, eq. 15), then scaling.

        Shape (r/2,), float64, radians per token. RopeError where scaling depends on the length of
        the context, and :meth:`for_length` has not fixed it.

        Examples
        --------
        >>> import rope_xp
        >>> rope_xp.RoPE().frequencies(8).tolist()
        [1.0, 0.1, 0.01, 0.001]
        """
        head_dim = numbers.check_positive_int("head_dim", head_dim)
        r, _ = slice_of(self, head_dim)
        if self.scaling is None:
            return inverse_frequencies(self.base, r)
        with np.errstate(all="ignore"):  # what is too large is infinite, and refused below
            scaled = np.asarray(self.scaling.frequencies(float(self.base), r), np.float64)
        _base.check_frequencies(self.scaling, scaled, r // 2)
        return scaled

    def wavelengths(self, head_dim: int) -> NDArray[np.float64]:
        """Return the tokens of a full turn of each pair, 2 pi / :meth:`frequencies`.

        Shape (r/2,), float64; inf where the frequency is zero.

        Examples
        --------
        >>> import rope_xp
        >>> rope_xp.RoPE().wavelengths(4).round(2).tolist()
        [6.28, 628.32]
        """
        with np.errstate(divide="ignore"):
            return 2.0 * math.pi / self.frequencies(head_dim)

    def cos_sin(
        self,
        positions: Positions,
        head_dim: int,
        *,
        xp: Namespace | None = None,
        device: Device | None = None,
        dtype: Any = None,
    ) -> tuple[Array, Array]:
        """Return cos and sin of the angles, times the attention factor.

        Parameters
        ----------
        positions : array or sequence, (..., tokens)
            Integers or floats, in tokens. With ``position_axes``: (components, ..., tokens).
        head_dim : int
            Components of a head.
        xp : namespace, optional
            The library of the result (numpy, torch, jax.numpy, ...). Default: that of positions,
            numpy for Python numbers; under torch.compile, which traces no dtypes of numpy, name it.
        device : device, optional
            Default: that of positions, or the library's default. Positions that lie on another
            device are not moved, but refused.
        dtype : dtype of xp, optional
            Default float32. float64 is computed in float64; anything else in float32.

        Returns
        -------
        cos, sin : array, (..., tokens, r/2)
            Off by less than 2.4e-7 for positions below 2**22 in modulus, 4e-7 below 2**31 (float32,
            before the attention factor).

        Examples
        --------
        >>> import rope_xp
        >>> cos, sin = rope_xp.RoPE().cos_sin([0, 1_000_000], head_dim=4)
        >>> cos.dtype.name, cos.shape
        ('float32', (2, 2))
        """
        head_dim = numbers.check_positive_int("head_dim", head_dim)
        lookup, backend = parse.cos_sin(self, positions, head_dim, xp, device, dtype)
        (cos, sin), _ = compute_cos_sin(backend, lookup)
        if dtype is None or cos.dtype == dtype:
            return cos, sin
        return backend.xp.astype(cos, dtype), backend.xp.astype(sin, dtype)

    def table(
        self,
        length: int,
        head_dim: int,
        *,
        form: str,
        xp: Namespace | None = None,
        device: Device | None = None,
        dtype: Any = None,
    ) -> Array | tuple[Array, Array]:
        """Return the table of another engine, of exact angles rounded once.

        Row p is for position p, from 0 to ``length - 1``. With ``position_axes`` all components of
        a row's position are p; engines pick the columns of each component from its own row.

        Parameters
        ----------
        length, head_dim : int
            Positions, and components of a head.
        form : {"vllm", "huggingface", "megatron", "complex", "onnx"}
            - "vllm": ``cos_sin_cache`` of vLLM, SGLang and flashinfer, (length, r): a column of
              cos for each pair, then one of sin.
            - "huggingface": cos and sin, each (length, r), a column for each component: (a, b, a,
              b), or (a, a, b, b) for the layout "interleaved".
            - "megatron": angles in radians, (length, 1, 1, r), doubled likewise, less whole turns,
              which float32 has no digits for. Megatron and TransformerEngine take the
              ``attention_factor`` separately, as ``mscale``.
            - "complex": cos + i sin, (length, r/2), as Meta and Mistral multiply by.
            - "onnx": cos and sin, each (length, r/2), as ONNX and flash-attn.
        xp, device
            As for :meth:`cos_sin`, but numpy by default.
        dtype : dtype of xp, optional
            float32 by default, float64, float16 or bfloat16; for "complex" complex64 or complex128.

        Returns
        -------
        array or (array, array)
            Times the attention factor, but for "megatron". Each number is that of float64, whose
            error is below 2**-52 (1 + position * frequency), rounded to dtype. :meth:`cos_sin` in
            float32 may differ by a few units in the last place: to match a serving engine bit for
            bit, pass its table to :meth:`with_tables`.

        Raises
        ------
        RopeError
            Also where scaling needs :meth:`for_length` first, or a compiler traces the call.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> rope = rope_xp.RoPE(base=500000.0, layout="half")
        >>> rope.table(8192, 128, form="vllm", dtype=np.float16).shape
        (8192, 128)
        >>> cos, sin = rope.table(8192, 128, form="onnx")
        >>> q = np.ones((1, 3, 8, 128), np.float32)
        >>> rotated = rope.with_tables(cos[[7, 8, 9]], sin[[7, 8, 9]]).rotate(q)
        """
        numbers.check_one_of("form", form, table_forms.FORMS)
        length = numbers.check_positive_int("length", length)
        backend = table_forms.find_host_backend(xp)
        positions = np.arange(length)
        if self.position_axes is not None:
            positions = np.broadcast_to(positions, (max(self.position_axes) + 1, length))
        cos, sin = self.cos_sin(positions, head_dim, dtype=np.float64)
        tables = tuple(
            table_forms.round_once(backend, table, device, dtype)
            for table in table_forms.arrange(form, self.layout, cos, sin)
        )
        return tables[0] if len(tables) == 1 else tables

    @property
    def attention_factor(self) -> float:
        """The factor on cos and sin (YaRN, LongRoPE); 1.0 without such scaling."""
        return 1.0 if self.scaling is None else self.scaling.effective_attention_factor

    @property
    def softmax_scale(self) -> float:
        """The factor for the caller's softmax scale (DeepSeek); never folded into q or k."""
        return 1.0 if self.scaling is None else self.scaling.softmax_scale

    def for_length(self, n: int) -> RoPE:
        """Return the RoPE fixed for a context of n tokens; itself where scaling has no length.

        Examples
        --------
        >>> import rope_xp
        >>> rope = rope_xp.RoPE()
        >>> rope.for_length(8192) is rope
        True
        """
        n = numbers.check_positive_int("n", n)
        if self.scaling is None:
            return self
        fixed = self.scaling.for_length(n)
        _base.check_fixed(self.scaling, fixed, n)
        return self if fixed is self.scaling else replace(self, scaling=fixed)
