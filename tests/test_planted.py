"""asv finds a slowdown that was planted, by name, and none where there is none.

Each test has asv build environments and measure two commits of a scratch repository, which takes
minutes: `pytest -m planted`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

asv_util = pytest.importorskip("asv.util", reason="asv keeps the history (rope-xp[bench])")
pytestmark = [pytest.mark.planted, pytest.mark.slow]

ROOT = Path(__file__).resolve().parent.parent
FACTOR = "1.3"
"""What CONTRIBUTING.md has `asv continuous` called with; docs/benchmarks.md has the noise below."""
BENCHMARKS = {
    "short": (r"apply\.Prefill\.track_time_over_copy\(.numpy:cpu., .float32", ["numba"]),
    "long": (r"apply\.(Prefill\.track|Decode).*(numpy|torch):cpu", ["numba", "ml_dtypes", "torch"]),
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


@pytest.fixture(scope="module", params=BENCHMARKS)
def scratch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """Return the benchmarks to run, and a repository whose last commits are base, same and slow."""
    benchmarks, packages = BENCHMARKS[request.param]
    folder = tmp_path_factory.mktemp("scratch")
    tracked = run("git", "ls-files", folder=ROOT).stdout.split()
    for name in tracked:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name)
    settings = asv_util.load_json(str(ROOT / "asv.conf.json"), js_comments=True)
    needed = " ".join(["numpy", "array-api-compat", "asv_runner", *packages])
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
    return benchmarks, folder


def continuous(scratch: tuple[str, Path], head: str) -> subprocess.CompletedProcess[str]:
    benchmarks, folder = scratch
    command = ["-m", "asv", "continuous", "base", head, "--factor", FACTOR, "-b", benchmarks]
    done = run(sys.executable, *command, folder=folder)
    assert "failed" not in done.stdout, done.stdout
    return done


def test_a_slowdown_is_found_by_name(scratch: tuple[str, Path]) -> None:
    done = continuous(scratch, "slow")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PERFORMANCE DECREASED" in done.stdout
    lost = [line for line in done.stdout.splitlines() if line.startswith("| +")]
    assert any("apply.Prefill.track_time_over_copy('numpy:cpu', 'float32')" in x for x in lost)


def test_no_slowdown_is_made_up(scratch: tuple[str, Path]) -> None:
    done = continuous(scratch, "same")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BENCHMARKS NOT SIGNIFICANTLY CHANGED" in done.stdout
