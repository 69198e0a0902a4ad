"""What runs on a GPU in one go: the constants that are tried, and steps of which one may fail."""

import json
import re
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from asv_benchmarks import gpu_all, gpu_measure, gpu_rivals, gpu_tune
from asv_benchmarks.gpu_all import Step

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("library", gpu_tune.MODULES)
def test_most_constants_are_there(library):
    if library == "torch":
        pytest.importorskip("triton")
    there = [name for name in gpu_tune.SWEEPS[library] if gpu_tune.known(library, name)]
    assert len(there) >= len(gpu_tune.SWEEPS[library]) / 2
    assert all(gpu_tune.known(library, name) for each in gpu_tune.ALONE[library] for name in each)


def test_one_combination_is_timed():
    pytest.importorskip("torch")
    contenders = {speed["contender"] for speed in gpu_tune.one("torch", "cpu", {}, 1)["speed"]}
    assert contenders == {"copy", "flat copy", gpu_rivals.US, gpu_rivals.IN_PLACE}


def test_what_fails_is_not_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_tune, "combinations", lambda _: [{"A": 1}, {"A": 2}, {"A": 3}])
    shares = {1: 0.8, 2: 0.95}

    def tried(library, device, settings, repeat):
        if settings["A"] not in shares:
            return {"settings": settings, "why": "rope_xp: rotates differently"}
        case = gpu_measure.Case(1, 6554)
        row = {"contender": gpu_rivals.US, "direction": "forward", "bytes": case.bytes}
        row |= {**case._asdict(), "share_of_copy": [shares[settings["A"]], 0.7, 1.0]}
        return {"settings": settings, "speed": [row, row | {"share_of_copy": None}]}

    monkeypatch.setattr(gpu_tune, "tried", tried)
    out = tmp_path / "tune.json"
    assert gpu_tune.main(["--library", "cupy", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "| A=2 | 0.95 |",
        "| A=1 | 0.80 |",
        "not timed: A=3: rope_xp: rotates differently",
    ]
    assert len(json.loads(out.read_text())) == 3


def python(code):
    return [sys.executable, "-c", code]


def test_a_step_that_fails_ends_no_other(tmp_path, monkeypatch, capsys):
    good = python("import os; print('said', os.environ['MARK'])")
    steps = [
        Step("good", good, 1, 60, {"MARK": "x7"}),
        Step("bad", python("raise SystemExit(3)"), 1, 60),
        Step("absent", ["no-such-command-anywhere"], 1, 60),
        Step("last", python("print('at last')"), 1, 60),
    ]
    monkeypatch.setattr(gpu_all, "steps", lambda out: steps)
    assert gpu_all.main(["--out", str(tmp_path)]) == 1
    ended = json.loads((tmp_path / "steps.json").read_text())
    outcomes = [row["how"].partition(":")[0] for row in ended.values()]
    assert outcomes == ["done", "exit status 3", "did not start", "done"]
    printed = capsys.readouterr().out
    assert printed.find("said x7") < printed.find("at last")
    assert "said x7" in printed
    assert gpu_all.main(["--out", str(tmp_path), "--only", "last"]) == 0


@pytest.mark.exhaustive
def test_a_step_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    """What it started would hold the GPU."""
    alive = tmp_path / "alive"
    child = (
        f"import time, pathlib\nwhile True: pathlib.Path({str(alive)!r}).touch(); time.sleep(0.05)"
    )
    code = "import subprocess, sys, time\n"
    code += f"subprocess.Popen([sys.executable, '-c', {child!r}])\ntime.sleep(99)"
    how = gpu_all.run(Step("hangs", python(code), 1, 3), tmp_path / "log.txt")
    assert how == "ended after 3 s"
    assert alive.exists()
    time.sleep(0.3)
    alive.unlink(missing_ok=True)
    time.sleep(0.5)
    assert not alive.exists()


def test_the_steps_are_commands_that_there_are(capsys):
    assert gpu_all.main(["--dry-run", "--out", "found"]) == 0
    printed = capsys.readouterr().out
    page = (ROOT / "docs" / "gpu.md").read_text()
    for step in gpu_all.steps(Path("found")):
        assert f"`{step.name}`" in page
        assert step.limit_s + gpu_all.GRACE_S < 600
        assert step.expected_s < step.limit_s
        assert f"{step.name}, about" in printed
        for word in step.command:
            if word.startswith("tests/"):
                assert (ROOT / word).exists(), word
            if re.fullmatch(r"asv_benchmarks\.\w+", word):
                assert (ROOT / f"{word.replace('.', '/')}.py").exists(), word


@pytest.mark.exhaustive
def test_all_steps_together_have_a_deadline(tmp_path, monkeypatch):
    monkeypatch.setattr(gpu_all, "GRACE_S", 1)
    # It ignores the interrupt, and so is killed.
    deaf = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(99)"
    steps = [Step("long", python(deaf), 1, 60)]
    steps += [Step("late", python("print('too late')"), 1, 60)]
    monkeypatch.setattr(gpu_all, "steps", lambda out: steps)
    started = time.perf_counter()
    assert gpu_all.main(["--out", str(tmp_path), "--seconds", "4"]) == 1
    assert time.perf_counter() - started < 20
    ended = json.loads((tmp_path / "steps.json").read_text())
    assert ended["long"]["how"] == "ended after 3 s"
    assert ended["late"]["how"] == "left out for want of time"


@pytest.mark.exhaustive
def test_a_step_that_is_cut_says_what_failed_so_far(tmp_path, monkeypatch):
    """It is interrupted first, so that pytest prints its failures and writes junit."""
    monkeypatch.setattr(gpu_all, "GRACE_S", 90)  # two cores run other tests meanwhile
    tests = tmp_path / "test_slow.py"
    tests.write_text(
        "import time\ndef test_bad(): assert 'this was' == 'seen'\n"
        "def test_endless(): time.sleep(600)\n"
    )
    (step,) = [step for step in gpu_all.steps(tmp_path) if step.name == "tests-kernels"]
    command = [word for word in step.command if not word.startswith("tests/")]
    command[command.index("-m", 3) + 1] = "not gpu"
    config = tmp_path / "pytest.ini"
    config.write_text("[pytest]\n")
    command += ["-c", str(config), "-n", "2", str(tests)]
    how = gpu_all.run(Step("cut", command, 1, 30), tmp_path / "log.txt")
    assert how == "ended after 30 s"
    assert "'this was' == 'seen'" in (tmp_path / "log.txt").read_text()
    cases = ET.parse(tmp_path / "tests-kernels.xml").iter("testcase")
    assert "test_bad" in {case.get("name") for case in cases if case.find("failure") is not None}


def test_the_sanitizer_has_a_verdict_of_its_own(tmp_path):
    """Its exit status is none of pytest's, and it runs no test that must fail under it."""
    (step,) = [step for step in gpu_all.steps(tmp_path) if step.name == "sanitizer"]
    status = int(step.command[step.command.index("--error-exitcode") + 1])
    assert status not in set(pytest.ExitCode)
    for number, words in ((status, "found errors"), (1, "tests failed")):
        ends = step._replace(command=python(f"raise SystemExit({number})"), environment={})
        assert words in gpu_all.run(ends, tmp_path / "log.txt")
    assert "not unsanitized" in step.command[step.command.index("-m", step.command.index("-q")) + 1]
    for word in step.command:
        if word.startswith("tests/"):
            for function in re.split(r"\n\n\n", (ROOT / word).read_text()):
                if re.search(r"CUDAGraph|reduce-overhead|profiler|memory_allocated", function):
                    assert "def test_" not in function or "mark.unsanitized" in function


def test_one_token_in_a_graph_needs_no_asv():
    """Where there is a GPU there may be no asv_runner."""
    code = "import sys; sys.modules['asv_runner'] = None; import asv_benchmarks.in_graph"
    subprocess.run(python(code), cwd=ROOT, check=True)
