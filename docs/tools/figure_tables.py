"""Make the tables of measured figures, as Markdown, from docs/measurements.json."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rope_xp._dispatch.libraries import LIBRARIES

FILE = Path(__file__).resolve().parents[1] / "measurements.json"
MEASURED: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
Rows = Mapping[str, Mapping[str, float]]
PREFILL = {
    "numpy": ("float32", "float16", "bfloat16"),
    "torch": ("float32", "bfloat16"),
    "jax": ("float32", "bfloat16"),
}


def rows(group: str) -> Rows:
    """Return the figures of a group."""
    found: Rows = MEASURED[group]["rows"]
    return found


def two(figure: float) -> str:
    """Return a figure in two digits, or all digits before its point."""
    rounded = float(f"{figure:.2g}")
    if rounded < 10:
        return f"{rounded:#.2g}"
    return f"{rounded:,.0f}" if rounded >= 10_000 else f"{rounded:.0f}"


def error(figure: float) -> str:
    """Return an error in two digits, such as 1.2e-7."""
    if figure == 0:
        return "0"
    return f"{figure:.1e}".replace("e-0", "e-").replace("e+00", "")


def describe(group: str) -> str:
    """Return where, when and with what a group was measured, as a sentence of a page."""
    held = MEASURED[group]
    text = f"{held['machine']}; {held['versions']}. Measured on {held['date']}."
    return textwrap.fill(text, 118) + "\n"


def markdown(heads: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a table."""
    made = [
        f"|{'|'.join(f' {text} ' if text else ' ' for text in line)}|" for line in (heads, *lines)
    ]
    return "\n".join([made[0], f"|{'---|' * len(heads)}", *made[1:], ""])


def cell(held: Mapping[str, float], column: str, form: Callable[[float], str] = two) -> str:
    """Return a figure, or of "a / b" the ratio; empty where it was not measured."""
    parts = column.split(" / ")
    if not all(part in held for part in parts):
        return ""
    return form(held[parts[0]] / held[parts[1]] if len(parts) == 2 else held[column])


def table(
    corner: str, found: Rows, heads: Mapping[str, str], form: Callable[[float], str] = two
) -> str:
    """Return a table of columns and ratios, under heads of their own."""
    lines = [(row, *(cell(held, column, form) for column in heads)) for row, held in found.items()]
    return markdown((corner, *heads.values()), lines)


def starting(group: str, start: str) -> Rows:
    """Return the rows that start so, without their start."""
    return {
        row.removeprefix(start): held for row, held in rows(group).items() if row.startswith(start)
    }


def prefill() -> Rows:
    """Return the rows of 4096 tokens of all libraries."""
    return {
        f"{library} {dtype}": rows(f"prefill_{library}")[dtype]
        for library, dtypes in PREFILL.items()
        for dtype in dtypes
    }


def errors(corner: str, found: Rows) -> str:
    """Return a table of errors by its own columns."""
    return table(corner, found, {column: column for column in next(iter(found.values()))}, error)


def readme() -> str:
    """Return what README says of 4096 tokens."""
    found = {name: held for name, held in prefill().items() if "float16" not in name.split()}
    del found["jax bfloat16"]
    ours = {name: found[name] for name in sorted(found, key=lambda name: "torch" not in name)}
    heads = {
        "new": "rope_xp, ms",
        "formula": "formula, ms",
        "formula / new": "times as fast",
        "compiled formula / new": "as the formula compiled",
    }
    return table("", {f"{n}{', jitted' * ('jax' in n)}": held for n, held in ours.items()}, heads)


def norm() -> str:
    """Return what a norm costs in the same pass, and apart from it."""
    eager = ("new", "norm", "norm, formula", "norm, formula, compiled")
    # In jax calls with a norm were jitted, and so is what they are compared with.
    jitted = ("jitted", "jitted norm", "", "norm, formula")
    trained = ("rope_xp", "norm", "norm, formula", "")
    lines = []
    for name, held in prefill().items():
        in_jax = name.startswith("jax")
        columns = jitted if in_jax else eager
        text = f"{name}{', jitted' * in_jax}, ms"
        lines.append((text, *(cell(held, column) for column in columns)))
    for name in ("torch float32", "torch bfloat16"):
        held = rows("training")[name]
        text = f"{name}, forward and backward, ms"
        lines.append((text, *(cell(held, column) for column in trained)))
    for name in ("numpy", "torch"):
        held = rows("one_token")[name]
        lines.append((f"one token, {name}, us", *(cell(held, column) for column in eager)))
    heads = ("", "rotation alone", "with `norm=`", "RMSNorm and formula, eager")
    return markdown((*heads, "compiled or jitted"), lines)


def rivals() -> str:
    """Return how 4096 tokens compare with packages."""
    names = {
        "rotary_embedding_torch": "rotary-embedding-torch",
        "torch_onnx": "`torch.onnx.ops.rotary_embedding`, given cos and sin",
        "onnxruntime": "onnxruntime's `RotaryEmbedding`, given cos and sin",
    }
    found = {}
    for row, held in rows("rivals").items():
        name, dtype = row.split()
        found[f"{names[name]}, {dtype}"] = held
    heads = {
        "rival": "ms",
        "rival / rope_xp": "rope_xp into new arrays, times as fast",
        "rival / rope_xp out": "into given arrays, times as fast",
    }
    return table("4096 tokens", found, heads)


def engines() -> str:
    """Return who rotates in place, the fastest of a row in bold."""
    heads = {
        "rope_xp torch": "rope_xp, torch",
        "rope_xp numpy": "rope_xp, numpy",
        "engine": "operator in C++",
        "onnxruntime": "onnxruntime",
        "mlx": "mlx",
        "formula": "formula, torch",
    }
    lines = []
    for row, held in rows("engines").items():
        best = min(held, key=held.__getitem__)
        told = (f"**{cell(held, key)}**" if key == best else cell(held, key) for key in heads)
        lines.append((row, *told))
    return markdown(("tokens, dtype, layout; us", *heads.values()), lines)


def accuracy() -> str:
    """Return errors of cos and sin; libraries that agree share a row."""
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, held in rows("accuracy").items():
        method, _, library = name.partition(": ")
        together.setdefault((method, tuple(map(error, held.values()))), []).append(library)
    lines = [(f"{method}: {', '.join(names)}", *told) for (method, told), names in together.items()]
    blocks = next(iter(rows("accuracy").values()))
    return markdown((COS_SIN, *blocks), lines)


def libraries() -> str:
    """Return the libraries, a row each, in Markdown."""
    lines = ["| library | recognised by | paths, fastest first | install |", "|---|---|---|---|"]
    for library in LIBRARIES:
        paths = ", ".join(f"`{path}`" for path in (*library.paths, "portable"))
        extra = f"`rope-xp[{library.extra}]`" if library.extra else "required"
        array = ", ".join(f"`{library.name}.{name}`" for name, _ in library.arrays)
        lines.append(f"| {library.name} | {array} | {paths} | {extra} |")
    lines.append(
        "| any other of the standard | `__array_namespace__` | `portable` | nothing more |"
    )
    return "\n".join(lines) + "\n"


COS_SIN = "largest error of cos and sin, positions up to"
TABLES: dict[str, Callable[[], str]] = {
    "README speed": readme,
    "README one token": lambda: table(
        "one token, us",
        rows("one_token"),
        {"new": "new arrays", "in place": "in place", "formula": "formula"},
    ),
    "accuracy": accuracy,
    "engines": engines,
    "layers": lambda: table(
        "one token, us",
        rows("layers"),
        {"layer": "layer", "apply": "`rope.apply`", "empty layer": "a layer that does nothing"},
    ),
    "libraries": libraries,
    "machine": lambda: describe("prefill_torch"),
    "norm": norm,
    "one token": lambda: table(
        "one token, us",
        rows("one_token"),
        {
            "new": "new arrays",
            "out": "`out=`",
            "in place": "in place",
            "norm": "`norm=`",
            "formula": "formula",
            "transformers": "transformers",
            "norm, formula": "RMSNorm and formula",
        },
    ),
    "ways": lambda: table(
        "one token, float32; times of the formula",
        rows("ways"),
        {"numpy": "numpy", "torch": "torch", "torch, gradients": "torch, with gradients"},
    ),
    "peak": lambda: table(
        "peak, in sizes of the results",
        rows("peak"),
        {"rope_xp": "rope_xp", "formula": "formula"},
    ),
    "rivals": rivals,
    "scores of Llama 3": lambda: errors("Llama 3, base 5e5", starting("scores", "Llama 3: ")),
    "speed": lambda: table(
        "4096 tokens",
        prefill(),
        {"new": "rope_xp, ms", "formula": "formula, ms", "formula / new": "times as fast"},
    ),
    "training": lambda: table(
        "forward and backward, 4096 tokens",
        rows("training"),
        {
            "rope_xp": "rope_xp, ms",
            "formula": "formula, ms",
            "formula / rope_xp": "times as fast",
        },
    ),
}
