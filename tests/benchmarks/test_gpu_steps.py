"""The steps of .ci/gpu, of which one may fail, and what they name."""

import os
import re
import subprocess
import sys

import pytest
from support.programs import ROOT

SCRIPT = ROOT / ".ci" / "gpu"
STEPS = re.search(r"^steps=\((.*)\)$", SCRIPT.read_text(), re.MULTILINE)[1].split()


@pytest.fixture
def run(tmp_path):
    """Run steps with a Python, and a sanitizer, that do what a line of sh says."""

    def run_steps(*steps, says="exit 0"):
        for name, line in (("python", says), ("compute-sanitizer", "exit 99")):
            stub = tmp_path / name
            stub.write_text(f"#!/bin/sh\n{line}\n")
            stub.chmod(0o755)
        path = f"{tmp_path}:{os.environ['PATH']}"
        return subprocess.run(
            [SCRIPT, tmp_path / "found", *steps],
            env=os.environ | {"PYTHON": str(tmp_path / "python"), "PATH": path},
            check=False,
            capture_output=True,
            text=True,
        )

    return run_steps


def test_a_step_that_fails_ends_no_other(run, tmp_path):
    done = run("info", "report-cupy", "bars", says='echo "did $2"; [ $2 != rope_xp ]')
    assert done.returncode == 1
    ends = re.findall(r"^==== (\S+): (.+), \d+ s$", done.stdout, re.MULTILINE)
    assert ends == [("info", "exit status 1"), ("report-cupy", "done"), ("bars", "done")]
    log = (tmp_path / "found" / "log.txt").read_text()
    ran = ["did rope_xp", "did asv_benchmarks.gpu.report", "did asv_benchmarks.gpu.bars"]
    assert re.findall("^did .+$", log, re.MULTILINE) == ran
    assert run("bars").returncode == 0
    assert "no step is called warp; there are info tests-kernels" in run("warp").stdout


def test_the_steps_name_what_there_is(run):
    done = run()
    assert "sanitizer: the sanitizer found errors" in done.stdout
    started = re.findall(r"^==== (\S+): (.* -m .*)$", done.stdout, re.MULTILINE)
    assert [step for step, _ in started] == STEPS
    page = (ROOT / "docs" / "gpu.md").read_text()
    for step, command in started:
        assert f"`{step}`" in page
        for name in re.findall(r"(?<= )(?:tests/|asv_benchmarks\.)[\w./]+", command):
            path = name if name.startswith("tests") else f"{name.replace('.', '/')}.py"
            assert (ROOT / path).exists(), name


def test_report_needs_no_asv():
    """Where there is a GPU there may be no asv_runner."""
    code = "import sys; sys.modules['asv_runner'] = None; import asv_benchmarks.gpu.report"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
