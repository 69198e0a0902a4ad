"""The scoreboard's page is that of its results, and some packages still do what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.cases import slow

HERE = Path(__file__).parent
STORED: dict[str, Any] = json.loads((HERE / "results.json").read_text())


def run(*options: str, results: Path = HERE / "results.json") -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"SCOREBOARD_RESULTS": str(results)}
    command = [sys.executable, str(HERE / "scoreboard.py"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_scoreboard_page_is_that_of_results_and_of_no_others(tmp_path: Path) -> None:
    done = run("--check")
    assert done.returncode == 0, done.stderr
    changed = json.loads(json.dumps(STORED))
    cells = changed["transformers: LlamaRotaryEmbedding, apply_rotary_pos_emb"]["cells"]
    cells["layout"]["verdict"] = "not offered"
    other = tmp_path / "results.json"
    other.write_text(json.dumps(changed))
    assert "is not that of results.json" in run("--check", results=other).stderr
    compared = run("--compare", str(HERE / "results.json"), results=other)
    assert "layout', 'not offered')" in compared.stderr.split("\nis ")[1]
    assert (compared.returncode, run("--compare", str(other), results=other).returncode) == (1, 0)


@pytest.mark.parametrize(
    ("file", "package"),
    [slow("modules", "rotary-embedding-torch"), slow("graphs", "onnxruntime"),
     ("arrays_of_jax", "mlx")],
)  # fmt: skip
def test_package_does_what_the_scoreboard_says(file: str, package: str, tmp_path: Path) -> None:
    pytest.importorskip({"mlx": "mlx.core"}.get(package, package.replace("-", "_")))
    done = run("--file", file, package, results=tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert found
    for key, row in found.items():
        for column, cell in row["cells"].items():
            assert cell["verdict"] == STORED[key]["cells"][column]["verdict"], column
        assert row["cells"].keys() == STORED[key]["cells"].keys()
