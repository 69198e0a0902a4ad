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


def test_page_is_that_of_results_and_of_no_others(tmp_path: Path) -> None:
    done = run("--check")
    assert done.returncode == 0, done.stderr
    changed = json.loads(json.dumps(STORED))
    cells = changed["transformers: LlamaRotaryEmbedding, apply_rotary_pos_emb"]["cells"]
    cells["layout"]["verdict"] = "not offered"
    (tmp_path / "results.json").write_text(json.dumps(changed))
    assert "is not that of results.json" in run("--check", results=tmp_path / "results.json").stderr


@pytest.mark.parametrize(
    ("file", "package", "module"),
    [
        slow("modules", "rotary-embedding-torch", "rotary_embedding_torch"),
        slow("graphs", "onnxruntime", "onnxruntime"),
        ("arrays_of_jax", "mlx", "mlx.core"),
    ],
)
def test_package_does_what_the_page_says(
    file: str, package: str, module: str, tmp_path: Path
) -> None:
    pytest.importorskip(module)
    done = run("--file", file, package, results=tmp_path / "results.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "results.json").read_text())
    assert found
    for key, row in found.items():
        verdicts = {column: cell["verdict"] for column, cell in row["cells"].items()}
        stored = {column: cell["verdict"] for column, cell in STORED[key]["cells"].items()}
        assert verdicts == stored
