"""Measure what an engine's rotation does: one cell for each column of the scoreboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from arrays import differentiate, put, read

from rope_xp import RoPE, scaling

HEAD_DIM = 64
LENGTH = 131_072
"""Rows of a table, if an engine asks for them; the context of most models of 2026."""
Rotation = Callable[[Any, Any, np.ndarray], tuple[Any, Any]]
"""From q and k (batch, heads, tokens, head_dim) and positions (batch, tokens) of numpy."""
Make = Callable[[RoPE, str], Rotation]

_FACTORS = tuple(1.0 + i / 8 for i in range(HEAD_DIM // 2))
SCALINGS = {
    "linear": scaling.Linear(4.0),
    "YaRN": scaling.YaRN(4.0, 4096),
    "Llama 3": scaling.Llama3(8.0, 1.0, 4.0, 8192),
    "LongRoPE": scaling.LongRoPE((1.0,) * (HEAD_DIM // 2), _FACTORS, 4096, 32.0),
}
_USUAL = np.arange(600)[None]
_POSITIONS = {
    "second base": _USUAL,
    "batched decode": np.array([[3], [1000], [17], [0], [250]]),
    "packed": np.array([[*range(5), *range(7)]]),
    "partial": np.arange(12)[None],
    **dict.fromkeys((*SCALINGS, "bfloat16", "module in bfloat16"), _USUAL),
}
# What is cached for one base is no other's, and would spoil the columns after it.
_COLUMNS = ("layout", *(c for c in _POSITIONS if c != "second base"), "position", "gradient",
            "second base")  # fmt: skip
_RIGHT = {"float32": 5e-4, "bfloat16": 2e-2}
"""Largest error of a right result, for inputs below 1 in size and positions below 1024."""


class NotOfferedError(ValueError):
    """What an engine does not have; the message says what it has instead."""


@dataclass(frozen=True)
class Engine:
    """A rotation of a package: ``make(rope, dtype)`` returns it, or raises NotOfferedError.

    ``takes_tables`` says that callers compute cos and sin. ``is_module`` says that it is a module
    of torch with a dtype, which ``make`` casts it to. ``partial`` says that it rotates a part of
    the head. ``not_run`` has the columns that are not tried, and why.
    """

    package: str
    name: str
    make: Make
    layout: str = "half"
    library: str = "torch"
    takes_tables: bool = False
    is_module: bool = False
    scalings: tuple[type, ...] = ()
    partial: bool = False
    note: str = ""
    not_run: dict[str, str] = field(default_factory=dict)

    def open(self, rope: RoPE, dtype: str = "float32") -> Rotation:
        if rope.scaling is not None and not isinstance(rope.scaling, self.scalings):
            raise NotOfferedError("no such scaling")
        if rope.rotary_dim != HEAD_DIM and not self.partial:
            raise NotOfferedError("it rotates whole heads")
        return self.make(rope, dtype)


ENGINES: list[Engine] = []


def engine(package: str, name: str, **options: Any) -> Callable[[Make], Make]:
    """List a function as that which makes an engine."""

    def add(make: Make) -> Make:
        ENGINES.append(Engine(package, name, make, **options))
        return make

    return add


@dataclass(frozen=True)
class Cell:
    """A result: "right", "wrong", "not offered", "not run" or "refused", and what the page says of it."""

    verdict: str
    text: str


def measure(engine: Engine) -> dict[str, Cell]:
    """Return the cells of an engine."""
    return {column: _measure_cell(engine, column) for column in _COLUMNS}


def _measure_cell(engine: Engine, column: str) -> Cell:
    if column in engine.not_run:
        return Cell("not run", engine.not_run[column])
    if column == "bfloat16" and engine.library == "numpy":
        return Cell("not run", "arrays of numpy are given, which has no bfloat16")
    try:
        return _run(engine, column)
    except (NotOfferedError, NotImplementedError) as reason:
        return Cell("not offered", str(reason))
    except Exception as error:  # noqa: BLE001  # engines raise what they like; the page says it
        text = " ".join(str(error).split())[:160]
        verdict = "not offered" if "no autograd formula" in text else "refused"
        return Cell(verdict, f"{type(error).__name__}: {text}")


def _run(engine: Engine, column: str) -> Cell:
    rope = RoPE(layout=engine.layout, rotary_dim=HEAD_DIM)
    if engine.takes_tables and column in (*SCALINGS, "second base", "position"):
        raise NotOfferedError("its caller computes cos and sin")
    if column == "module in bfloat16" and not engine.is_module:
        kind = "a function" if engine.library == "torch" else "no module of torch"
        raise NotOfferedError(f"it is {kind}")
    if column not in _POSITIONS:
        find = {"layout": _find_layout, "position": _find_first_error}
        return find.get(column, _compare_gradients)(engine, rope)
    if column == "second base":
        _compare(engine, rope, _USUAL)
        rope = replace(rope, base=5e5)
    rope = replace(rope, rotary_dim=32) if column == "partial" else rope
    rope = replace(rope, scaling=SCALINGS.get(column))
    if column == "LongRoPE":  # the factors of long contexts, at positions of a short call
        rope = rope.for_length(LENGTH)
    dtype = "bfloat16" if "bfloat16" in column else "float32"
    module = "bfloat16" if "module" in column else "float32"
    return _compare(engine, rope, _POSITIONS[column], dtype, module)


def _make_inputs(batch: int, tokens: int) -> list[np.ndarray]:
    rng = np.random.default_rng([batch, tokens])
    return [rng.uniform(-1.0, 1.0, (batch, heads, tokens, HEAD_DIM)) for heads in (4, 2)]


def _compute_error(
    engine: Engine, rope: RoPE, p: np.ndarray, dtype: str, rotate: Rotation
) -> tuple[float, float]:
    """Return the largest error of a call, and of one that leaves its arguments as they are."""
    given = [put(engine.library, x, dtype) for x in _make_inputs(*p.shape)]
    inputs = [read(x) for x in given]
    results = [read(y) for y in rotate(*given, p)]
    exact = [rope.rotate(x, p, axes="bhsd") for x in inputs]
    unmoved = max(float(np.abs(y - x).max()) for x, y in zip(inputs, exact, strict=True))
    errors = []
    for y, expected in zip(results, exact, strict=True):
        if y.shape != expected.shape:
            raise ValueError(f"it returns {y.shape} for {expected.shape}")
        errors.append(float(np.nan_to_num(np.abs(y - expected), nan=np.inf).max()))
    return max(errors), unmoved


def _compare(
    engine: Engine, rope: RoPE, p: np.ndarray, dtype: str = "float32", module: str = "float32"
) -> Cell:
    rotate = engine.open(rope, module)
    error, unmoved = _compute_error(engine, rope, p, dtype, rotate)
    bound = _RIGHT[dtype] * max(1.0, rope.attention_factor)
    if unmoved <= 2 * bound:
        raise AssertionError("the call would not tell a rotation from none")
    return Cell("right" if error <= bound else "wrong", f"{error:.1g}")


def _find_layout(engine: Engine, rope: RoPE) -> Cell:
    rotate, p = engine.open(rope), np.tile(np.arange(12), (2, 1))
    errors = {}
    for layout in ("half", "interleaved", "interleaved_to_half"):
        other = replace(rope, layout=layout)
        errors[layout] = _compute_error(engine, other, p, "float32", rotate)[0]
        if errors[layout] <= 1e-5:
            return Cell("right" if layout == engine.layout else "wrong", layout)
    return Cell("wrong", f"{errors[engine.layout]:.1g}")


def _find_first_error(engine: Engine, rope: RoPE) -> Cell:
    """Return the first of some positions whose cos or sin is off by more than 1e-2."""
    rotate, from_zero, last = engine.open(rope), False, 0
    exact = rope.frequencies(HEAD_DIM)
    for n in sorted({1 << k for k in range(6, 21)} | {3 << k for k in range(14, 19)}):
        for whole in (False, True)[from_zero:]:
            tokens = np.arange(0 if whole else n - 4, n)
            if whole and n > LENGTH:
                return Cell("right", f"≥ {last + 1:,}")
            try:
                turned = _rotate_ones(engine, rotate, tokens)
                from_zero = whole
                break
            except NotOfferedError:
                if whole:
                    raise
            except Exception:  # noqa: BLE001  # a table ends, which each engine says in its way
                verdict = "right" if last + 1 >= LENGTH * 3 // 4 else "refused"
                return Cell(verdict, f"{last + 1:,}, then an error")
        off = np.abs(turned - np.exp(1j * np.multiply.outer(tokens[-4:], exact)))
        if not off.max() <= 1e-2:
            first = int(tokens[-4:][~(off <= 1e-2).all(axis=1)][0])
            return Cell("right" if first >= LENGTH else "wrong", f"{first:,}")
        last = n - 1
    return Cell("right", f"≥ {last + 1:,}")


def _rotate_ones(engine: Engine, rotate: Rotation, tokens: np.ndarray) -> np.ndarray:
    """Return cos + i sin of the last four tokens, (4, pairs)."""
    ones = np.zeros((1, 1, len(tokens), HEAD_DIM))
    n = HEAD_DIM // 2
    first = slice(0, n) if engine.layout == "half" else slice(0, None, 2)
    ones[..., first] = 1.0
    q, k = (put(engine.library, ones, "float32") for _ in range(2))
    y = read(rotate(q, k, tokens[None])[0])[0, 0, -4:]
    return y[:, first] + 1j * (y[:, n:] if engine.layout == "half" else y[:, 1::2])


def _compare_gradients(engine: Engine, rope: RoPE) -> Cell:
    rotate, p = engine.open(rope), np.arange(12)[None]
    weights = [np.array(x[..., ::-1]) for x in _make_inputs(*p.shape)]
    given = [put(engine.library, x, "float32") for x in _make_inputs(*p.shape)]
    found = differentiate(engine.library, lambda q, k: rotate(q, k, p), given, weights)
    if found is None:
        raise NotOfferedError("it computes no gradients")
    exact = [rope.unrotate(w, p, axes="bhsd") for w in weights]
    error = max(float(np.abs(x - y).max()) for x, y in zip(found, exact, strict=True))
    return Cell("right" if error <= 1e-5 else "wrong", f"{error:.1g}")
