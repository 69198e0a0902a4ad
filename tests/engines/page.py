"""Render docs/scoreboard.md from results.json."""

from pathlib import Path
from typing import Any

from findings import FINDINGS

FAULTS = Path(__file__).with_name("faults")
_SCRIPTS = "https://github.com/OWNER/rope_xp/blob/main/tests/engines/faults"
_PAGE = """\
<!-- Made by tests/engines/scoreboard.py from tests/engines/results.json. -->

# Scoreboard

This page lists what rotations of other packages compute on a CPU, against exact angles. Kernels of Triton run in their
interpreter. Each function is called with a second base, one token for each sequence, packed sequences, a partial
rotation, four scaling rules, bfloat16, a module cast to bfloat16, and with gradients, as far as it offers them. A result
is right within 5e-4 in float32, and 2e-2 in bfloat16, for inputs below 1. Differences by design are not wrong.

"Exact to" is the first position whose cosine or sine is off by more than 1e-2; tables are made for 131,072 positions.
Each wrong result links to a script that shows it. `tests/engines/results.json` has all results with their errors.
To measure again, install the versions of `constraints/engines.txt` as `.ci/engines` does, and run
`python tests/engines/scoreboard.py`. [Checks](check.md) measures your own function.

Measured on {dates}:

| function | version | layout | exact to | wrong |
| --- | --- | --- | --- | --- |
{rows}
## Wrong results

| package | what is wrong |
| --- | --- |
{faults}"""


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
    scripts = {FINDINGS[key]: key[0] for key in list_wrong(results)}
    faults = {_read_title(script): package for script, package in scripts.items()}
    return _PAGE.format(
        dates=", ".join(sorted({row["date"] for row in results.values()})),
        rows="".join(_show_row(row) for _, row in sorted(results.items())),
        faults="".join(f"| {package} | {title} |\n" for title, package in sorted(faults.items())),
    )


def _show_row(row: dict[str, Any]) -> str:
    cells, note = row["cells"], f" ({row['note']})" if row["note"] else ""
    wrong = ", ".join(
        f"[{column}]({_SCRIPTS}/{FINDINGS[row['package'], column]})"
        for column, cell in cells.items()
        if cell["verdict"] == "wrong"
    )
    layout, position = (
        cells[c]["text"].replace("_", "\\_") if cells[c]["verdict"] == "right" else "–"
        for c in ("layout", "position")
    )
    name = f"{row['package']} `{row['name']}`"
    return f"| {name} | {row['version']}{note} | {layout} | {position} | {wrong or '–'} |\n"


def _read_title(script: str) -> str:
    """Return the first line of a script's docstring, which says what is wrong."""
    return (FAULTS / script).read_text().split('"""')[1].strip().partition("\n")[0]
