"""The table of errors in docs/compare.md is what its generator measures."""

import sys
from pathlib import Path

import pytest
from support.exhaustive import exhaustive

pytest.importorskip("mpmath")
pytest.importorskip("torch")

DOCS = Path(__file__).resolve().parents[2] / "docs"
sys.path.insert(0, str(DOCS / "tools"))

import figures  # noqa: E402  # its folder was put on the path above
import package_errors  # noqa: E402  # from the same folder
from accuracy_table import find_largest_error  # noqa: E402  # from the same folder

PAGE = (DOCS / "compare.md").read_text("utf-8")
SLOW = ("equinox", "transformers")


@pytest.mark.parametrize(
    "name", [exhaustive(n) if n in SLOW else n for n in package_errors.PACKAGES]
)
def test_errors_of_the_compare_page_are_those_measured(name):
    if name not in package_errors.installed():
        pytest.skip(f"{name} is not installed")
    start = f"| {package_errors.name_version(name)} | "
    lines = [line for line in PAGE.splitlines() if line.startswith(start)]
    (errors,) = (line.strip("| ").split(" | ")[1:] for line in lines if "e-" in line)
    tables = package_errors.PACKAGES[name][1]()
    # At a million positions equinox and torchtune make whole tables of gigabytes.
    stops = list(package_errors.ENDS.values())[: 2 if name in {"equinox", "torchtune"} else 3]
    found = [figures.error(find_largest_error(tables(end), end)) for end in stops]
    assert found == errors[: len(stops)]
