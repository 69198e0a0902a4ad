"""asv finds a slowdown that was planted, by name, and none where there is none.

Each test has asv build environments and measure two commits of a scratch repository, which takes
minutes: `pytest -n 0 -m planted`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

asv_util = pytest.importorskip("asv.util", reason="asv keeps the history (rope-xp[bench])")

pytestmark = pytest.mark.planted
ROOT = Path(__file__).resolve().parents[2]


class Case(NamedTuple):
    """What to run and install, and a factor above the noise, which docs/benchmarks.md has."""

    benchmarks: str
    packages: list[str]
    factor: str
    lost: str


CASES = {
    "short": Case(
        r"apply\.Memory\.track_time_over_limit\(.numpy:cpu., .float32",
        ["llvmlite"],
        "1.7",  # between runs of the same code this has varied by 1.32
        "apply.Memory.track_time_over_limit('numpy:cpu', 'float32')",
    ),
    "long": Case(
        r"apply\.(Prefill\.track|Memory\.track_time|Decode).*(numpy|torch):cpu.*float32",
        ["llvmlite", "torch"],
        "1.7",
        "apply.Prefill.track_time_over_copy('torch:cpu', 'float32')",
    ),
}
# As long as the rotation itself takes on a slow machine, so that it shows on any.
SLOW = """

import time as _time

_quick_apply = RoPE.apply


def _slow_apply(*arguments, **options):
    _time.sleep(0.02)
    return _quick_apply(*arguments, **options)


RoPE.apply = _slow_apply
"""


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    done = run("git", *who, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=CASES)
def scratch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Return a case, and a repository whose last commits are base, same and slow."""
    case = CASES[request.param]
    folder = tmp_path_factory.mktemp("scratch")
    tracked = run("git", "ls-files", folder=ROOT).stdout.split()
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    settings = asv_util.load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    needed = " ".join(["numpy", "array-api-compat", "asv_runner", *case.packages])
    constraints = ROOT / "constraints" / "test.txt"
    settings["install_command"] = [
        f"in-dir={{env_dir}} python -mpip install -c {constraints} {needed}",
        "in-dir={env_dir} python -mpip install --no-deps --force-reinstall {wheel_file}",
    ]
    (folder / "asv.conf.json").write_text(json.dumps(settings))
    git(folder, "init", "-q", "-b", "main")
    source = folder / "rope_xp" / "rope.py"
    quick = source.read_text()
    for name, text in {
        "base": quick,
        "same": quick + "# no slower\n",
        "slow": quick + SLOW,
    }.items():
        source.write_text(text)
        git(folder, "add", "-A")
        git(folder, "commit", "-qm", name)
        git(folder, "tag", name)
    machine = run(sys.executable, "-m", "asv", "machine", "--yes", folder=folder)
    assert machine.returncode == 0, machine.stderr
    return case, folder


def continuous(scratch: tuple[Case, Path], head: str) -> subprocess.CompletedProcess[str]:
    case, folder = scratch
    command = ["-m", "asv", "continuous", "base", head]
    command += ["--factor", case.factor, "-b", case.benchmarks]
    done = run(sys.executable, *command, folder=folder)
    assert "failed" not in done.stdout, done.stdout
    return done


def test_a_slowdown_is_found_by_name(scratch: tuple[Case, Path]) -> None:
    done = continuous(scratch, "slow")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PERFORMANCE DECREASED" in done.stdout
    lost = [line for line in done.stdout.splitlines() if line.startswith("| +")]
    assert any(scratch[0].lost in line for line in lost)


def test_no_slowdown_is_made_up(scratch: tuple[Case, Path]) -> None:
    done = continuous(scratch, "same")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BENCHMARKS NOT SIGNIFICANTLY CHANGED" in done.stdout
