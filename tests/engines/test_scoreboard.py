"""The scoreboard's page is that of its results, and some packages still do what it says."""

import json
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cases import slow

HERE = Path(__file__).parent
STORED = json.loads((HERE / "results.json").read_text())


def test_scoreboard_page_is_that_of_results_and_has_a_script_for_each_wrong_one() -> None:
    scoreboard = runpy.run_path(str(HERE / "scoreboard.py"))
    assert scoreboard["render"]() == scoreboard["PAGE"].read_text(), "run scoreboard.py --render"
    wrong = {
        (row["package"], column)
        for row in STORED.values()
        for column, cell in row["cells"].items()
        if cell["verdict"] == "wrong"
    }
    assert wrong == set(scoreboard["FINDINGS"])
    assert {p.name for p in HERE.glob("faults/*.py")} == {*scoreboard["FINDINGS"].values()}


def measure(folder: Path, *options: str) -> tuple[subprocess.CompletedProcess[str], dict]:
    """Run a copy of the scoreboard, and return its results."""
    command = [sys.executable, str(folder / "tests" / "engines" / "scoreboard.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done, json.loads((folder / "tests" / "engines" / "results.json").read_text())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    shutil.copytree(HERE, tmp_path / "tests" / "engines")
    (tmp_path / "docs").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("file", "package"),
    [slow("modules", "rotary-embedding-torch"), slow("graphs", "onnxruntime"),
     ("arrays_of_jax", "mlx")],
)  # fmt: skip
def test_package_does_what_the_scoreboard_says(file: str, package: str, copy: Path) -> None:
    pytest.importorskip({"mlx": "mlx.core"}.get(package, package.replace("-", "_")))
    (copy / "tests" / "engines" / "results.json").write_text("{}")
    done, found = measure(copy, package, "--file", file)
    assert done.returncode == 0, done.stderr
    assert {row["package"] for row in found.values()} == {package}
    for key, row in found.items():
        verdicts, stored = (
            {column: cell["verdict"] for column, cell in cells.items()}
            for cells in (row["cells"], STORED[key]["cells"])
        )
        assert verdicts == stored


@pytest.mark.slow
def test_scoreboard_tells_of_verdicts_that_changed(copy: Path) -> None:
    pytest.importorskip("mlx.core")
    results = json.loads(json.dumps(STORED))
    results["mlx: nn.RoPE"]["cells"]["linear"]["verdict"] = "wrong"
    (copy / "tests" / "engines" / "results.json").write_text(json.dumps(results))
    done, found = measure(copy, "mlx")
    assert "was ('mlx: nn.RoPE', 'linear', 'wrong')" in done.stdout, done.stderr
    assert "is ('mlx: nn.RoPE', 'linear', 'right')" in done.stdout
    assert done.returncode == 1
    assert found["mlx: nn.RoPE"]["cells"]["linear"]["verdict"] == "right"
    assert "| mlx `nn.RoPE` |" in (copy / "docs" / "scoreboard.md").read_text()
