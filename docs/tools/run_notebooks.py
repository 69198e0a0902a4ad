"""Run the notebooks in docs/notebooks, each in a fresh kernel; an error in a cell ends the run.

    python docs/tools/run_notebooks.py [--write] [NAME ...]

With --write their outputs are stored, which is what the pages show.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def run(path: Path, *, write: bool) -> None:
    """Run one notebook in its folder."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
    )
    client.execute()
    if write:
        # The version of Python, and warnings, which name paths, belong to this machine.
        notebook.metadata["language_info"] = {"name": "python"}
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
        nbformat.write(notebook, path)


def main(arguments: list[str]) -> None:
    """Run the notebooks of these names, or all."""
    names = [name for name in arguments if name != "--write"]
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            print(path.name, flush=True)
            run(path, write="--write" in arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
