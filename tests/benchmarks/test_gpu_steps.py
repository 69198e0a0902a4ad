"""The steps of .ci/gpu, and what they name."""

import os
import re
import subprocess
import sys

from support.programs import ROOT

SCRIPT = ROOT / ".ci" / "gpu"
STEPS = re.search(r"^steps=\((.*)\)$", SCRIPT.read_text(), re.MULTILINE)[1].split()


def test_steps_name_what_there_is_and_none_ends_another(tmp_path):
    """A Python that does nothing stands for that of a machine with a GPU."""
    for name, code in (("python", '[ "$2" != rope_xp ]'), ("compute-sanitizer", "exit 99")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}\n")
        (tmp_path / name).chmod(0o755)
    own = {"PYTHON": str(tmp_path / "python"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [SCRIPT, tmp_path / "found"],
        env=os.environ | own,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "==== info: exit status 1" in done.stdout
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
