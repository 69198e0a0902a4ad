"""docs/check.md: its examples of kernels are files, which pass."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
EXAMPLES = {"test_triton_kernel.py": "triton", "test_cpp_kernel.py": "c++"}


def test_the_page_shows_the_examples() -> None:
    """To fix the page, paste the file without its docstring."""
    page = (DOCS / "check.md").read_text("utf-8")
    for name in EXAMPLES:
        _, _, code = (DOCS / "examples" / name).read_text("utf-8").split('"""', 2)
        assert f"```python\n{code.lstrip()}```" in page


@pytest.mark.slow
@pytest.mark.parametrize(("name", "needed"), EXAMPLES.items())
def test_example_of_the_page_passes(name: str, needed: str) -> None:
    found = shutil.which(needed) if needed == "c++" else importlib.util.find_spec(needed)
    if not (found and importlib.util.find_spec("torch")):
        pytest.skip(f"needs torch and {needed}")
    # In a process of its own, as Triton reads TRITON_INTERPRET when it is imported.
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", name]
    folders = (DOCS.parent, DOCS.parent / "backends", os.environ.get("PYTHONPATH", ""))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    options = {"cwd": DOCS / "examples", "capture_output": True, "text": True}
    run = subprocess.run(command, env=environment, check=False, **options)
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
