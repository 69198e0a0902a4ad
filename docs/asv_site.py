"""Publish the history that docs/benchmarks keeps, as asv shows it, beside the pages."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
RESULTS = HERE / "benchmarks" / "results"


def publish(to: Path) -> str | None:
    """Write asv's site to a folder; return why there is none, or None.

    asv reads dates and the order of commits from git, so it takes a checkout that has them all.
    """
    if missing := [commit for commit in commits() if not _has(commit)]:
        return f"this checkout lacks {len(missing)} of the commits that were measured"
    try:
        from asv.util import load_json
    except ImportError:
        return "asv is not installed (pip install 'rope-xp[docs]')"
    settings = load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    # Whatever branch is checked out, the commits that lead to it are those to show.
    settings |= {
        "repo": str(ROOT),
        "branches": ["HEAD"],
        "results_dir": str(RESULTS),
        "project_url": "../index.html",
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "asv.conf.json"
        path.write_text(json.dumps(settings), "utf-8")
        command = [sys.executable, "-m", "asv", "publish", "--no-pull", "--html-dir", str(to)]
        done = subprocess.run(  # noqa: S603  # asv
            [*command, "--config", str(path)], check=False, capture_output=True, text=True
        )
    return None if done.returncode == 0 else f"asv publish failed: {done.stdout}{done.stderr}"


def commits() -> list[str]:
    """Return the hashes of all commits that have results."""
    files = RESULTS.glob("*/*-*.json")
    return sorted({json.loads(path.read_text("utf-8"))["commit_hash"] for path in files})


def _has(commit: str) -> bool:
    command = ["git", "-C", str(ROOT), "cat-file", "-e", f"{commit}^{{commit}}"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0  # noqa: S603  # git
