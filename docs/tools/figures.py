"""Read docs/measurements.json, and say its figures and ratios as pages show them.

A figure is named by group, row and column: "one_token, torch, new". Two columns are a ratio, the
first over the second: "one_token, torch, formula / new"; so are two figures with "over" between
them. Several, with a semicolon between them, are a range from the least to the most.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

_SCORES = "scores, Llama 3: float32, {way}, {length}"
NAMED = {
    "all speeds": "; ".join(
        f"prefill_{library}, {dtype}, formula / new"
        for library, dtype in (
            *(("torch", "float32"), ("torch", "bfloat16")),
            *(("numpy", "float32"), ("numpy", "bfloat16"), ("jax", "float32")),
        )
    ),
    **{
        f"product, {n}": f"accuracy, float32 product: torch, {n}"
        for n in ("4k", "128k", "1M", "10M")
    },
    **{
        f"float32 scores, {length}": f"{_SCORES.format(way='float32 product', length=length)}"
        f" over {_SCORES.format(way='exact angles', length=length)}"
        for length in ("4k", "1M")
    },
    "bfloat16 scores, 1M": "scores, Llama 3: bfloat16, float32 product, rounded once, 1M"
    " over scores, Llama 3: bfloat16, exact angles, 1M",
}
"""What pages name in a few words: the ratios of README's table, and ratios of errors."""
FILE = Path(__file__).resolve().parents[1] / "measurements.json"
MEASURED: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
ERRORS = ("accuracy", "packages", "scores", "drift", "moves", "frequencies", "edges", "patched")


def rows(group: str) -> dict[str, dict[str, float]]:
    """Return the figures of a group."""
    found: dict[str, dict[str, float]] = MEASURED[group]["rows"]
    return found


def find(name: str) -> tuple[float, str]:
    """Return a figure or ratio and its unit; raise KeyError if the file has none of this name."""
    if " over " in name:
        over, under = (find(part)[0] for part in name.split(" over "))
        return over / under, ""
    group, row, column = _split(name)
    held = rows(group)[row]
    if " / " in column:
        over, under = column.split(" / ")
        return held[over] / held[under], ""
    return held[column], MEASURED[group]["unit"]


def _split(name: str) -> tuple[str, str, str]:
    """Return group, row and column; a row may have commas of its own."""
    group, _, rest = name.partition(", ")
    row, _, column = rest.rpartition(", ")
    return group, row, column


def say(name: str) -> str:
    """Return a figure, or a range of figures, in two digits and with its unit."""
    name = " ".join(name.split())
    name = NAMED.get(name, name)
    found = sorted(find(part.strip()) for part in name.split(";"))
    (least, unit), (most, _) = found[0], found[-1]
    is_ratio = " / " in name or " over " in name
    form = error if name.partition(",")[0] in ERRORS and not is_ratio else two
    texts = dict.fromkeys((form(least), form(most)))
    return " ".join([" to ".join(texts), unit]).strip()


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
