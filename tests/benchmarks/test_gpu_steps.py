"""The steps of .ci/gpu, of which one may fail, and what they name."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / ".ci" / "gpu"
STEPS = re.search(r"^steps=\((.*)\)$", SCRIPT.read_text(), re.MULTILINE)[1].split()


def run(folder, *steps, says="exit 0", **environment):
    """Run steps with a Python that does what a line of sh says."""
    stub = folder / "python"
    stub.write_text(f"#!/bin/sh\n{says}\n")
    stub.chmod(0o755)
    command = [str(SCRIPT), str(folder / "found"), *steps]
    return subprocess.run(
        command,
        env=os.environ | {"PYTHON": str(stub)} | environment,
        check=False,
        capture_output=True,
        text=True,
    )


def test_a_step_that_fails_ends_no_other(tmp_path):
    done = run(tmp_path, "info", "report-cupy", "bars", says='echo "did $2"; [ $2 != rope_xp ]')
    assert done.returncode == 1
    ends = re.findall(r"^==== (\S+): (.+), \d+ s$", done.stdout, re.MULTILINE)
    assert ends == [("info", "exit status 1"), ("report-cupy", "done"), ("bars", "done")]
    log = (tmp_path / "found" / "log.txt").read_text()
    assert re.findall("^did .+$", log, re.MULTILINE) == [
        "did rope_xp",
        "did asv_benchmarks.gpu.report",
        "did asv_benchmarks.gpu.bars",
    ]
    assert run(tmp_path, "bars").returncode == 0


def test_a_step_of_another_name_is_refused(tmp_path):
    done = run(tmp_path, "warp")
    assert done.returncode == 2
    assert "no step is called warp; there are info tests-kernels" in done.stdout


def test_the_steps_name_what_there_is(tmp_path):
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    sanitizer = bin_folder / "compute-sanitizer"
    sanitizer.write_text("#!/bin/sh\nexit 99\n")
    sanitizer.chmod(0o755)
    done = run(tmp_path, PATH=f"{bin_folder}:{os.environ['PATH']}")
    assert "sanitizer: the sanitizer found errors" in done.stdout
    started = re.findall(r"^==== (\S+): (.* -m .*)$", done.stdout, re.MULTILINE)
    assert [step for step, _ in started] == STEPS
    page = (ROOT / "docs" / "gpu.md").read_text()
    for step, command in started:
        assert f"`{step}`" in page
        for word in command.split():
            if word.startswith("tests/"):
                assert (ROOT / word).exists(), word
            if re.fullmatch(r"asv_benchmarks\.[\w.]+", word):
                assert (ROOT / f"{word.replace('.', '/')}.py").exists(), word


def test_one_token_in_a_graph_needs_no_asv():
    """Where there is a GPU there may be no asv_runner."""
    code = "import sys; sys.modules['asv_runner'] = None; import asv_benchmarks.in_graph"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
