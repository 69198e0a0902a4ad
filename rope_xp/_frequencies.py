"""The fields of a RoPE, and the frequencies, cos and sin that they give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rope_xp._arguments import fields, parse, table_forms
from rope_xp._core import numbers
from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp._core.slices import slice_of
from rope_xp._core.typing import Array, Device, Layout, Namespace
from rope_xp._dispatch import find
from rope_xp._dispatch.libraries import is_dynamo_compiling
from rope_xp._rotation.frequencies import inverse_frequencies
from rope_xp.angles import look_up_cos_sin
from rope_xp.scaling import Axial, Scaling, _axial, _base

_TABLE_ROWS = 512
"""Rows of a table that are computed at once: in float64, they stay in a cache."""


@dataclass(frozen=True, kw_only=True)
class RopeFields:  # noqa: PLW1641  # dataclass adds the hash
    """See :class:`rope_xp.RoPE`, which adds the rotation of arrays."""

    __slots__ = ("__dict__", "__weakref__", "_handles")
    # Of tables, for native code: no field, so that equal ropes stay equal, and no part of copies.

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
            self._set_plain("rotary_dim", numbers.check_even("rotary_dim", self.rotary_dim))
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
        # A rope is a cache key, and scaling of another class has other frequencies.
        if type(other) is not type(self):
            return NotImplemented
        return vars(self) == vars(other) and numbers.is_identical(self.scaling, other.scaling)

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def axial(
        cls,
        sections: Sequence[int],
        *,
        bases: Sequence[float] | None = None,
        order: str = "blocks",
        **fields: Any,
    ) -> Self:
        """Return a RoPE for positions with several components, as images and videos have.

        Each component has its own series of frequencies, ``base ** (-2 j / n)`` for a section of n
        components of a head.

        Parameters
        ----------
        sections : sequence of int
            Components of a head for each component of a position, even numbers: (16, 56, 56) for
            Flux. They sum to ``rotary_dim``.
        bases, order, **fields
            See :class:`rope_xp.scaling.Axial`; also ``base``, ``layout`` and ``rotary_offset``.

        Examples
        --------
        >>> import rope_xp
        >>> rope = rope_xp.RoPE.axial((4, 2, 2), base=256.0)
        >>> rope.position_axes, rope.frequencies(8).tolist()
        ((0, 0, 1, 2), [1.0, 0.0625, 1.0, 1.0])
        """
        derived = [name for name in ("rotary_dim", "scaling", "position_axes") if name in fields]
        if derived:
            raise TypeError(f"RoPE.axial computes {', '.join(derived)} from sections; omit it")
        scaling = Axial(order=order, sections=sections, bases=bases)  # type: ignore[arg-type]  # it makes tuples
        axes = tuple(axis for axis, _ in _axial.assign_pairs(scaling.sections or (), order))
        return cls(rotary_dim=2 * len(axes), scaling=scaling, position_axes=axes, **fields)

    def for_length(self, n: int) -> Self:
        """Return the RoPE for a context of n tokens; itself if scaling does not depend on length.

        Examples
        --------
        >>> import rope_xp
        >>> rope = rope_xp.RoPE().for_length(8192)
        """
        n = numbers.check_positive_int("n", n)
        if self.scaling is None:
            return self
        is_ours = type(self.scaling).__module__.startswith("rope_xp.")
        is_cached = is_ours and not is_dynamo_compiling()
        fixed: Self | None = _find_fixed(self, n) if is_cached else _fix_length(self, n)
        return self if fixed is None else fixed

    @property
    def attention_factor(self) -> float:
        """The factor on cos and sin (YaRN, LongRoPE); 1.0 without such scaling."""
        return 1.0 if self.scaling is None else self.scaling.effective_attention_factor

    @property
    def softmax_scale(self) -> float:
        """The factor for the caller's softmax scale (DeepSeek); never folded into q or k."""
        return 1.0 if self.scaling is None else self.scaling.softmax_scale

    def frequencies(self, head_dim: int) -> NDArray[np.float64]:
        """Return the frequencies: ``base ** (-2 i / r)`` (arXiv 2104.09864, eq. 15), then scaling.

        Shape (r/2,), float64, radians per token. RopeError if scaling depends on the context length
        and :meth:`for_length` has not fixed it.

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
        with np.errstate(all="ignore"):  # overflow gives inf, which is refused below
            scaled = np.asarray(self.scaling.frequencies(float(self.base), r), np.float64)
        if scaled.shape != (r // 2,) or not np.isfinite(scaled).all():
            raise RopeError(
                f"scaling {self.scaling!r} must return {r // 2} finite frequencies, one per pair; "
                f"got shape {scaled.shape}: {scaled}"
            )
        return scaled

    def wavelengths(self, head_dim: int) -> NDArray[np.float64]:
        """Return the tokens of a full turn of each pair: 2 pi / :meth:`frequencies`, or inf.

        Examples
        --------
        >>> import rope_xp
        >>> rope_xp.RoPE().wavelengths(4).round(2).tolist()
        [6.28, 628.32]
        """
        with np.errstate(divide="ignore", over="ignore"):
            return 2.0 * math.pi / self.frequencies(head_dim)

    def cos_sin(
        self,
        positions: Any,
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
            See :meth:`apply`. With ``position_axes``: (components, ..., tokens).
        head_dim : int
        xp : namespace, optional
            The library of the result (numpy, torch, jax.numpy, ...). Default: that of positions,
            numpy for Python numbers. Pass it under torch.compile, which cannot trace numpy dtypes.
        device : device, optional
            Default: that of positions, which must lie on it, or the library's default.
        dtype : dtype of xp, optional
            Default: float32. float64 is computed in float64, all others in float32.

        Returns
        -------
        cos, sin : array, (..., tokens, r/2)
            Errors are below 2.4e-7 for absolute positions below 2**22, and below 4e-7 up to 2**31
            (float32, before the attention factor).

        Examples
        --------
        >>> import rope_xp
        >>> cos, sin = rope_xp.RoPE().cos_sin([0, 1_000_000], head_dim=4)
        >>> cos.dtype.name, cos.shape
        ('float32', (2, 2))
        """
        if device is None:
            tables = look_up_cos_sin(self, positions, head_dim, dtype, xp)
            if tables is not None:
                return tables
        head_dim = numbers.check_positive_int("head_dim", head_dim)
        lookup, backend = parse.cos_sin(self, positions, head_dim, xp, device, dtype)
        cos, sin = backend.cos_sin(lookup)
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
        """Return the table that another engine uses, with exact angles rounded once.

        Row p is for position p, from 0 to ``length - 1``. With ``position_axes`` all components are
        p, and the engine takes the columns of each component from its own row. RopeError if scaling
        needs :meth:`for_length` first, or if a compiler traces the call.

        Parameters
        ----------
        length, head_dim : int
        form : {"vllm", "huggingface", "megatron", "complex", "onnx"}
            - "vllm": ``cos_sin_cache`` of vLLM, SGLang and flashinfer, (length, r): a column of
              cos for each pair, then one of sin.
            - "huggingface": cos and sin, each (length, r), a column for each component: (a, b, a,
              b), or (a, a, b, b) for the layout "interleaved".
            - "megatron": angles in radians less whole turns, (length, 1, 1, r), doubled likewise.
              Megatron and TransformerEngine take the ``attention_factor`` as ``mscale``.
            - "complex": cos + i sin, (length, r/2), the factors of Meta's and Mistral's code.
            - "onnx": cos and sin, each (length, r/2), for ONNX and flash-attn.
        xp, device
            See :meth:`cos_sin`. Default: numpy.
        dtype : dtype of xp, optional
            float32 (default), float64, float16 or bfloat16; for "complex" complex64 or complex128.

        Returns
        -------
        array or (array, array)
            Multiplied by the attention factor, except "megatron". Values are computed in float64,
            with errors below 2**-52 (1 + position * frequency), and rounded to dtype.
            :meth:`cos_sin` in float32 may differ by a few ulp: to match a serving engine bit for
            bit, pass its table to :meth:`with_tables`.

        Examples
        --------
        >>> import numpy as np
        >>> import rope_xp
        >>> rope_xp.RoPE(layout="half").table(8192, 128, form="vllm", dtype=np.float16).shape
        (8192, 128)
        """
        numbers.check_one_of("form", form, table_forms.FORMS)
        length = numbers.check_positive_int("length", length)
        backend = find.require_backend_of_namespace(np if xp is None else xp)
        if backend.is_compiling():
            raise RopeError(
                "table is computed on the host in float64, which cannot be compiled; call it once "
                "outside of the compiled function, and pass the table as an argument"
            )
        components = () if self.position_axes is None else (max(self.position_axes) + 1,)
        hosts: list[NDArray[Any]] = []
        for start in range(0, length, _TABLE_ROWS):
            positions = np.arange(start, min(start + _TABLE_ROWS, length))
            positions = np.broadcast_to(positions, (*components, *positions.shape))
            exact = self.cos_sin(positions, head_dim, dtype=np.float64)
            blocks = table_forms.arrange(form, self.layout, *exact)
            hosts = hosts or [table_forms.empty(backend, x, length, dtype) for x in blocks]
            for host, block in zip(hosts, blocks, strict=True):
                table_forms.round_into(host[start : start + len(block)], block, backend, dtype)
        tables = tuple([table_forms.finish(backend, host, device, dtype) for host in hosts])
        return tables[0] if len(tables) == 1 else tables


@cached(64)
def _find_fixed(rope: Any, n: int) -> Any:
    """Return a rope for n tokens from a cache, as a new one takes longer than many calls."""
    return _fix_length(rope, n)


def _fix_length(rope: Any, n: int) -> Any:
    """Return a rope for n tokens, None for the same."""
    fixed: Scaling | None = rope.scaling.for_length(n)
    if fixed is None:  # which would drop it
        raise RopeError(
            f"{type(rope.scaling).__name__}.for_length({n}) returned None; it must return a "
            f"scaling, itself if it does not depend on the length; got {rope.scaling!r}"
        )
    return None if fixed is rope.scaling else replace(rope, scaling=fixed)


def initial_frequencies(rope: RopeFields, head_dim: int, heads: int = 1) -> NDArray[np.float64]:
    """Return the frequencies of a RoPE in the shape for :func:`rope_xp.apply_frequencies`."""
    r, offset = slice_of(rope, head_dim)
    if offset or rope.attention_factor != 1.0:
        raise RopeError(
            "learned frequencies need rotary_offset = 0 and attention_factor = 1; this rope has "
            f"rotary_offset = {offset} and attention_factor = {rope.attention_factor:g}"
        )
    frequencies = rope.frequencies(head_dim)
    if rope.position_axes is None:
        return frequencies if heads == 1 else np.tile(frequencies, (heads, 1))
    # A pair has its frequency for its own component, and 0 for the others.
    by_component = np.zeros((max(rope.position_axes) + 1, heads, r // 2))
    by_component[rope.position_axes, :, np.arange(r // 2)] = frequencies[:, None]
    return by_component
