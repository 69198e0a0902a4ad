"""Render docs/scoreboard.md from results.json."""

from pathlib import Path
from typing import Any

FAULTS = Path(__file__).with_name("faults")
FINDINGS = {
    ("equinox", "second base"): "base_in_cache.py",
    ("litgpt", "YaRN"): "yarn_ramp.py",
    ("rotary-embedding-torch", "bfloat16"): "positions_in_bfloat16.py",
    ("rotary-embedding-torch", "module in bfloat16"): "positions_in_bfloat16.py",
    ("transformers", "module in bfloat16"): "module_in_bfloat16.py",
    ("x-transformers", "module in bfloat16"): "positions_of_frequencies.py",
}
"""The scripts that show wrong cells, by package and column. Their titles are the page's text."""
_SCRIPTS = "../tests/engines/faults"
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


def render(results: dict[str, Any]) -> str:
    """Return the page; KeyError for a wrong cell that no finding describes."""
    rows = [row for _, row in sorted(results.items())]
    found = {
        (FINDINGS[row["package"], c], row["package"]) for row in rows for c in _list_wrong(row)
    }
    # The first line of a script's docstring says what is wrong.
    titles = ((FAULTS / script).read_text().split('"""')[1].strip() for script, _ in sorted(found))
    faults = zip((t.partition("\n")[0] for t in titles), sorted(found), strict=True)
    return _PAGE.format(
        dates=", ".join(sorted({row["date"] for row in rows})),
        rows="".join(map(_show_row, rows)),
        faults="".join(f"| {package} | {title} |\n" for title, (_, package) in sorted(faults)),
    )


def _list_wrong(row: dict[str, Any]) -> list[str]:
    return [column for column, cell in row["cells"].items() if cell["verdict"] == "wrong"]


def _show_row(row: dict[str, Any]) -> str:
    cells, note = row["cells"], f" ({row['note']})" if row["note"] else ""
    wrong = ", ".join(f"[{c}]({_SCRIPTS}/{FINDINGS[row['package'], c]})" for c in _list_wrong(row))
    layout, position = (
        cells[c]["text"].replace("_", "\\_") if cells[c]["verdict"] == "right" else "–"
        for c in ("layout", "position")
    )
    name = f"{row['package']} `{row['name']}`"
    return f"| {name} | {row['version']}{note} | {layout} | {position} | {wrong or '–'} |\n"
