"""What conventions share: arrays of a kernel's library, tables, and what an engine cannot do."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rope_xp._core.errors import RopeError
from rope_xp._core.typing import Array
from rope_xp.rope import RoPE
from rope_xp.testing._box import Function, read_host
from rope_xp.testing._compare import fix_length

Positions = NDArray[np.int64]
LENGTH = 131_072
"""Rows of tables: no kernel is called with positions beyond, which it would read behind them."""
_SWAPS = {"bshd": (0, 0), "nhd": (0, 0), "bhsd": (1, 2), "sbhd": (0, 1)}
"""The axes of (batch, tokens, heads, head_dim) that a view swaps for a kernel."""


def to_torch(x: Array) -> Array:
    """Return a tensor with the values of an array, which a kernel may write to."""
    import torch

    return torch.as_tensor(x).clone(memory_format=torch.contiguous_format)


def to_integers(x: Positions, like: Array, dtype: type[np.integer] = np.int32) -> Array:
    """Return a tensor of integers on the device of another tensor."""
    import torch

    return torch.as_tensor(x.astype(dtype), device=like.device)


def adapt(
    kernel: Function,
    rope: RoPE,
    rotate: Callable[..., Any],
    axes: str = "bshd",
    to: Callable[[Array], Array] = to_torch,
    *,
    limit: float = math.inf,
) -> Function:
    """Return function(q, k, positions) around rotate(q, k, p), of arrays with these axes.

    ``limit`` is the rows of tables that the kernel reads, beyond which it may not be called.

    n is batch and tokens; results may then have other axes with their numbers in this order. p is
    of numpy, (batch, tokens), with a leading axis if the rope has components.
    """

    def function(q: Array, k: Array, positions: Array, *cache: Array) -> Any:
        p = read_host(positions).astype(np.int64)
        if p.ndim != 2 + (rope.position_axes is not None):
            raise ValueError(f"positions must be (batch, tokens); got {p.shape}")
        swap, arrays = _SWAPS[axes], [to(x.swapaxes(1, 2)) for x in (q, k)]
        shape = (-1,) if axes == "nhd" else arrays[0].shape[:2]
        given = [x.reshape(*shape, *x.shape[2:]).swapaxes(*swap) for x in arrays]
        results = list(rotate(*given, p, *cache))
        for i, x in enumerate(arrays[:1] if cache else arrays):
            y = results[i].reshape(x.shape) if axes == "nhd" else results[i].swapaxes(*swap)
            results[i] = y.swapaxes(1, 2)
        return [np.array(y) for y in results] if isinstance(q, np.ndarray) else results

    function.__name__ = getattr(kernel, "__name__", type(kernel).__name__)
    vars(function)["rope_xp_limit"] = limit
    return function


def get_tables(rope: RoPE, head_dim: int, form: str) -> Callable[[Array], tuple[Array, ...]]:
    """Return what gives the tables of a form, of the dtype and device of a tensor, made once."""

    @cache
    def build(device: Any, dtype: Any) -> tuple[Array, ...]:
        import torch

        tables = rope.table(LENGTH, head_dim, form=form, xp=torch, device=device, dtype=dtype)
        return tables if isinstance(tables, tuple) else (tables,)

    return lambda x: build(x.device, x.dtype)


def check(
    rope: RoPE,
    head_dim: int,
    layouts: tuple[str, ...] = ("interleaved", "half"),
    *,
    components: bool = False,
    factor: bool = True,
) -> RoPE:
    """Return a rope with its rotary_dim, for short contexts; RopeError if an engine has none such.

    The options say whether it has positions of components, and a factor on cos and sin.
    """
    rope = fix_length(rope, head_dim)
    for name, fits, expected in (
        ("layout", rope.layout in layouts, " or ".join(layouts)),
        ("rotary_offset", rope.rotary_offset == 0, "0"),
        ("position_axes", components or rope.position_axes is None, "None"),
        ("attention_factor", factor or rope.attention_factor == 1.0, "1"),
    ):
        if not fits:
            raise RopeError(f"{name} must be {expected} there; got {getattr(rope, name)!r}")
    return rope


def find_runs(p: Positions, like: Array) -> tuple[Array, Array]:
    """Return where sequences of consecutive positions start, and their first positions, int32.

    The first array has the number of tokens at its end.
    """
    flat = p.ravel()
    starts = np.arange(flat.size) % p.shape[1] == 0
    starts[1:] |= np.diff(flat) != 1
    (indices,) = np.nonzero(starts)
    return to_integers(np.append(indices, flat.size), like), to_integers(flat[indices], like)


def count_sections(rope: RoPE) -> tuple[list[int], bool]:
    """Return the pairs of each component, and whether components take turns."""
    axes = rope.position_axes or ()
    return [axes.count(c) for c in range(max(axes) + 1)], list(axes) != sorted(axes)
