"""Measure what an engine's rotation does: one cell for each column of the scoreboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rope_xp import RoPE, scaling
from rope_xp.testing._box import read_host
from rope_xp.testing._pairs import list_pairs

HEAD_DIM = 64
LENGTH = 131_072
"""Rows of a table, if an engine asks for them; the context of most models of 2026."""
Rotation = Callable[[Any, Any, np.ndarray], tuple[Any, Any]]
"""From q and k (batch, heads, tokens, head_dim) and positions (batch, tokens) of numpy."""
Make = Callable[[RoPE, str], Rotation]

TABLES = ("layout", "packed", "batched decode", "partial")
"""Columns of engines whose callers compute cos and sin."""
USUAL = ("layout", "position", "packed", "batched decode", "bfloat16", "second base")
_FACTORS = tuple(1.0 + i / 8 for i in range(HEAD_DIM // 2))
_SCALINGS = {
    "linear": scaling.Linear(4.0),
    "YaRN": scaling.YaRN(4.0, 4096),
    "Llama 3": scaling.Llama3(8.0, 1.0, 4.0, 8192),
    "LongRoPE": scaling.LongRoPE((1.0,) * (HEAD_DIM // 2), _FACTORS, 4096, 32.0),
}
_LONG = np.arange(600)[None]
_POSITIONS = {
    "batched decode": np.array([[3], [1000], [17], [0], [250]]),
    "packed": np.array([[*range(5), *range(7)]]),
    "partial": np.arange(12)[None],
}
_RIGHT = {"float32": 5e-4, "bfloat16": 2e-2}
"""Largest error of a right result, for inputs below 1 in size and positions below 1024."""


@dataclass(frozen=True)
class Engine:
    """A rotation of a package: ``make(rope, dtype)`` returns it, of a module of that dtype.

    ``from_zero`` says that its positions are 0, 1, 2, ...
    """

    package: str
    name: str
    columns: tuple[str, ...]
    make: Make
    layout: str = "half"
    library: str = "torch"
    note: str = ""
    from_zero: bool = False


ENGINES: list[Engine] = []


def engine(
    package: str, name: str, *more: str, columns: tuple[str, ...] = USUAL, **options: Any
) -> Callable[[Make], Make]:
    """List a function as that which makes an engine, and columns to measure."""

    def add(make: Make) -> Make:
        ENGINES.append(Engine(package, name, (*columns, *more), make, **options))
        return make

    return add


def measure(engine: Engine) -> dict[str, dict[str, str]]:
    """Return verdict, "right", "wrong" or "error", and text of the columns of an engine."""
    cells = {}
    # What is cached for one base is no other's, and would spoil the columns after it.
    for column in sorted(engine.columns, key=lambda column: column == "second base"):
        try:
            verdict, text = _MEASURES.get(column, _compare)(engine, column)
        except Exception as error:  # noqa: BLE001  # engines raise what they like
            verdict, text = "error", f"{type(error).__name__}: {error}"
        cells[column] = {"verdict": verdict, "text": text}
    return cells


def _put(library: str, x: np.ndarray, dtype: str) -> Any:
    if library == "torch":
        import torch

        return torch.tensor(x, dtype=getattr(torch, dtype))
    if library == "jax":
        import jax.numpy as jnp

        return jnp.asarray(x, dtype)
    if library == "mlx":
        import mlx.core as mx

        return mx.array(x.astype(np.float32)).astype(getattr(mx, dtype))
    return x.astype(dtype)


def _read(x: Any) -> np.ndarray:
    if type(x).__module__.startswith("mlx"):  # whose bfloat16 numpy cannot read
        import mlx.core as mx

        x = x.astype(mx.float32)
    return read_host(x)


def _compute_error(
    engine: Engine, rope: RoPE, p: np.ndarray, dtype: str, rotate: Rotation
) -> float:
    """Return the largest error of a call."""
    rng = np.random.default_rng(p.shape)
    shapes = [(len(p), heads, p.shape[1], HEAD_DIM) for heads in (4, 2)]
    given = [_put(engine.library, rng.uniform(-1.0, 1.0, shape), dtype) for shape in shapes]
    inputs = [_read(x) for x in given]  # before the call, which may overwrite them
    results = [_read(y) for y in rotate(*given, p)]
    errors = []
    for x, y in zip(inputs, results, strict=True):
        exact = rope.rotate(x, p, axes="bhsd")
        if y.shape != exact.shape:
            raise ValueError(f"it returns {y.shape} for {exact.shape}")
        if np.abs(x - exact).max() <= 2 * _RIGHT[dtype]:
            raise AssertionError("the call would not tell a rotation from none")
        errors.append(float(np.nan_to_num(np.abs(y - exact), nan=np.inf).max()))
    return max(errors)


def _compare(engine: Engine, column: str) -> tuple[str, str]:
    rope = RoPE(layout=engine.layout, rotary_dim=32 if column == "partial" else HEAD_DIM)
    dtype = "bfloat16" if "bfloat16" in column else "float32"
    p = _POSITIONS.get(column, _LONG)
    if column == "second base":
        _compute_error(engine, rope, p, dtype, engine.make(rope, dtype))
        rope = replace(rope, base=5e5)
    rope = replace(rope, scaling=_SCALINGS.get(column))
    if column == "LongRoPE":  # the factors of long contexts, at positions of a short call
        rope = rope.for_length(LENGTH)
    rotate = engine.make(rope, dtype if "module" in column else "float32")
    error = _compute_error(engine, rope, p, dtype, rotate)
    is_right = error <= _RIGHT[dtype] * max(1.0, rope.attention_factor)
    return "right" if is_right else "wrong", f"{error:.1g}"


def _find_layout(engine: Engine, column: str) -> tuple[str, str]:
    rotate = engine.make(RoPE(layout=engine.layout, rotary_dim=HEAD_DIM), "float32")
    p = np.tile(np.arange(12), (2, 1))
    for layout in ("half", "interleaved", "interleaved_to_half"):
        rope = RoPE(layout=layout, rotary_dim=HEAD_DIM)
        if _compute_error(engine, rope, p, "float32", rotate) <= 1e-5:
            return "right" if layout == engine.layout else "wrong", layout
    return "wrong", "none"


def _find_first_error(engine: Engine, column: str) -> tuple[str, str]:
    """Return the first of some positions whose cos or sin is off by more than 1e-2."""
    rope = RoPE(layout=engine.layout, rotary_dim=HEAD_DIM)
    rotate, last = engine.make(rope, "float32"), 0
    a, b, *_ = list_pairs(engine.layout, HEAD_DIM)
    for length in sorted({1 << k for k in range(6, 21)} | {3 << k for k in range(14, 19)}):
        if engine.from_zero and length > LENGTH:
            break
        tokens = np.arange(0 if engine.from_zero else length - 4, length)
        ones = np.zeros((1, 1, len(tokens), HEAD_DIM))
        ones[..., a] = 1.0
        try:
            q, k = (_put(engine.library, ones, "float32") for _ in range(2))
            y = _read(rotate(q, k, tokens[None])[0])[0, 0, -4:]
        except Exception:  # noqa: BLE001  # a table ends, which each engine says in its way
            return "right" if last + 1 >= LENGTH else "wrong", f"{last + 1:,}, then an error"
        exact = np.exp(1j * np.multiply.outer(tokens[-4:], rope.frequencies(HEAD_DIM)))
        is_right = (np.abs(y[:, a] + 1j * y[:, b] - exact) <= 1e-2).all(axis=1)
        if not is_right.all():
            first = int(tokens[-4:][~is_right][0])
            return "right" if first >= LENGTH else "wrong", f"{first:,}"
        last = length - 1
    return "right", f"≥ {last + 1:,}"


_MEASURES = {"layout": _find_layout, "position": _find_first_error}
