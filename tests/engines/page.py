"""Render docs/scoreboard.md from results.json."""

import re
from pathlib import Path
from typing import Any

from findings import FINDINGS, NOT_RUN
from measure import COLUMNS

FAULTS = Path(__file__).with_name("faults")
_MARKS = {
    "right": "✓",
    "not offered": "–",
    "not run": "not run",
    "refused": "raises",
    "wrong": "**wrong**",
}
_INTRODUCTION = """\
<!-- Made by tests/engines/scoreboard.py from tests/engines/results.json. -->

# Scoreboard

Rotations of other packages, measured on a CPU against exact angles: {rows} functions of {packages}
packages. Results were measured on {dates}, while other work ran on the machine. They are errors, not
times, so that the load does not change them. Kernels of Triton run in its interpreter. Rows with the note "file alone"
import a file, or files, without the rest of its package. The versions are pinned in `constraints/engines.txt` and
`constraints/test.txt`. To measure again, install them as `.ci/engines` does, and run
`python tests/engines/scoreboard.py`.

✓ right; – not offered; "not run" not tried; "raises" an error instead of a result; **wrong** a wrong result without an
error, described under [Findings](#findings) with a script that shows it. Differences by design are not wrong.
[Test your kernel](test_your_kernel.md) describes how to measure your own.
"""
_PARTS = {"Rotation": (*COLUMNS[:5], "gradient"), "Scaling and precision": COLUMNS[5:-1]}
_COLUMNS = """
| column | call | right if |
|---|---|---|
| layout | 12 tokens, twice as many heads of q as of k | errors stay within 1e-5; the layout is shown |
| second base | base 500,000, after base 10,000 was used in the same process | within 5e-4 |
| batched decode | 5 sequences of one token, at positions of their own | within 5e-4 |
| packed | a row of 5 tokens and 7 tokens, both from position 0 | within 5e-4 |
| partial | `rotary_dim` 32 of 64 | within 5e-4 |
| linear, YaRN, Llama 3, LongRoPE | factors 4, 4, 8 and a list of 32; trained on 4,096, Llama 3 on 8,192 | within 5e-4 |
| position | positions to 1,048,576; tables are made for 131,072 | the first one whose cos or sin is off by more than 1e-2; at least 131,072 |
| bfloat16 | 600 tokens of bfloat16; the module or its table stays in float32 | within 2e-2, for inputs below 1 |
| module in bfloat16 | the same after `module.to(torch.bfloat16)`, or made in that dtype | within 2e-2 |
| gradient | of a weighted sum of results | within 1e-5 |
"""


def list_wrong(results: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the package and column of each wrong cell."""
    return sorted(
        {
            (row["package"], column)
            for row in results.values()
            for column, cell in row["cells"].items()
            if cell["verdict"] == "wrong"
        }
    )


def render(results: dict[str, Any]) -> str:
    """Return the page; KeyError for a wrong cell that no finding describes."""
    packages = sorted({row["package"] for row in results.values()})
    dates = ", ".join(sorted({row["date"] for row in results.values()}))
    parts = [_INTRODUCTION.format(rows=len(results), packages=len(packages), dates=dates)]
    rows = [(row, f"{row['package']} `{row['name']}`") for _, row in sorted(results.items())]
    for title, columns in _PARTS.items():
        shown = [(who, *(_show(c, row["cells"][c]) for c in columns)) for row, who in rows]
        parts += _table(title, ("function", *columns), shown)
    parts += ["\n## Columns\n", _COLUMNS, "\n## Findings\n"]
    findings: dict[str, list[tuple[str, str]]] = {}
    for package, column in list_wrong(results):
        findings.setdefault(FINDINGS[package, column], []).append((package, column))
    for script, where in sorted(findings.items()):
        parts.append(_describe(script, where, results))
    versions = [(who, row["version"], row["note"] or " ") for row, who in rows]
    parts += _table("Versions", ("function", "version", "note"), versions)
    without = [(who, *reason) for row, who in rows for reason in _list_reasons(row["cells"])]
    parts += _table("Cells without a result", ("function", "columns", "reason"), without)
    parts += _table("Packages that were not run", ("package", "reason"), sorted(NOT_RUN.items()))
    return "".join(parts)


def _list_reasons(cells: dict[str, dict[str, str]]) -> list[tuple[str, str]]:
    """Return the columns without a result, and why."""
    reasons: dict[str, list[str]] = {}
    for column, cell in cells.items():
        if cell["verdict"] in ("not offered", "not run", "refused"):
            start = "not run: " if cell["verdict"] == "not run" else ""
            text = re.sub(r"([|*_])", r"\\\1", start + cell["text"]).replace("<", "&lt;")
            reasons.setdefault(text, []).append(column)
    return [(", ".join(columns), text) for text, columns in reasons.items()]


def _table(title: str, head: tuple[str, ...], rows: list[Any]) -> list[str]:
    lines = [f"| {' | '.join(cells)} |\n" for cells in (head, ("---",) * len(head), *rows)]
    return [f"\n## {title}\n\n", *lines]


def _show(column: str, cell: dict[str, str]) -> str:
    if cell["verdict"] == "wrong":
        return f"**wrong**, {cell['text']}" if column == "position" else _MARKS["wrong"]
    if cell["verdict"] == "right" and column in ("layout", "position"):
        return cell["text"].replace("_", "\\_")
    return _MARKS[cell["verdict"]]


def _describe(script: str, where: list[tuple[str, str]], results: dict[str, Any]) -> str:
    """Return a finding: its script, whose docstring says what is wrong, and where it is known."""
    source = (FAULTS / script).read_text()
    _, text, code = source.split('"""', 2)
    title, _, body = text.strip().partition("\n\n")
    rows = [row for row in results.values() if row["package"] == where[0][0]]
    version, date = rows[0]["version"], rows[0]["date"]
    columns = ", ".join(column for _, column in where)
    return (
        f"\n### {title}\n\n{where[0][0]} {version}, {date}; {columns}. {body}\n\n"
        f"```python\n{code.strip()}\n```\n"
    )
