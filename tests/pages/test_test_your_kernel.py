"""docs/test_your_kernel.md: its examples are files, which pass."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.exhaustive import exhaustive

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = {"test_triton_kernel.py": "triton", "test_cpp_kernel.py": "c++"}


@pytest.mark.parametrize("name", [exhaustive("test_triton_kernel.py"), "test_cpp_kernel.py"])
def test_the_page_shows_an_example_that_passes(name: str) -> None:
    """To fix the page, paste the file without its docstring."""
    file, needed = DOCS / "examples" / name, EXAMPLES[name]
    _, _, code = file.read_text("utf-8").split('"""', 2)
    page = (DOCS / "test_your_kernel.md").read_text("utf-8")
    assert f"```python\n{code.lstrip()}```" in page
    found = shutil.which(needed) if needed == "c++" else importlib.util.find_spec(needed)
    if not (found and importlib.util.find_spec("torch")):
        pytest.skip(f"needs torch and {needed}")
    # In a process of its own, as Triton reads TRITON_INTERPRET when it is imported.
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", file]
    folders = (DOCS.parent, DOCS.parent / "backends", os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
