"""The report on GPUs, run on the CPU: what it finds, leaves out by name, and refuses to make up."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asv_benchmarks import gpu_report, gpu_rivals
from rope_xp._bench import targets

pytest.importorskip("torch")


def test_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(gpu_report.SHAPES, "cpu", [(2, 3)])
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    out = tmp_path / "report.json"
    options = ["--device", "cpu", "--libraries", "torch,cupy", "--repeat", "3", "--no-compile"]
    assert gpu_report.main([*options, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["missing"]["torch:cpu usual compiled"] == "left out by --no-compile"
    assert "liger_kernel" in found["missing"]["torch:cpu liger"]
    assert found["missing"]["cupy:cpu"] == "cupy has no cpu"
    rows = {(row["direction"], row["contender"]): row for row in found["speed"]}
    assert set(rows) == {
        *(("forward", name) for name in ("copy", "rope_xp", "usual", "rope_xp in place")),
        *(("forward and backward", name) for name in ("copy", "rope_xp", "usual")),
    }
    for (direction, name), row in rows.items():
        assert row["bytes_of_q_and_k"] == 2 * 3 * 40 * 128 * 2
        assert 0 < row["best_us"] <= row["median_us"]
        assert row["timed_by"] == "wall clock"
        copies = 1 if direction == "forward" else 2
        limit = copies * rows[direction, "copy"]["median_us"]
        if name != "copy":
            assert row["share_of_copy"] == pytest.approx(limit / row["median_us"])
    errors = found["largest_error_at_1M"]["torch:cpu"]
    assert errors["rope_xp"] <= 4e-7 < 1e-2 < errors["usual"]
    assert set(found["overhead_us"]["torch:cpu"]) == {"rope_xp", "rope_xp in place", "usual"}
    printed = capsys.readouterr().out
    assert "| torch:cpu | forward | 2 | 3 | rope_xp |" in printed
    assert "missing: torch:cpu liger: " in printed


def test_without_a_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(targets, "find", lambda name: "no accelerator found")
    out = tmp_path / "report.json"
    assert gpu_report.main(["--out", str(out)]) == 1
    assert not out.exists()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "torch:gpu: no accelerator found" in printed.err
    assert "nothing was measured" in printed.err


def test_it_is_saved_after_each_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(gpu_report.SHAPES, "cpu", [(1, 1)])
    saved: list[list[str]] = []

    def save(found: dict[str, Any]) -> None:
        saved.append(list(found["largest_error_at_1M"]))

    gpu_report.report("cpu", ["torch", "jax"], 1, False, save)
    assert saved == [["torch:cpu"], ["torch:cpu", "jax:cpu"]]


def test_gradients_are_those_of_the_rotation() -> None:
    """What is timed is what is meant: the gradient of a rotation turns back."""
    target = targets.find("torch:cpu")
    q, k, positions = gpu_report.inputs(target, 2, 3)
    functions, _ = gpu_rivals.functions(target, False)
    for name in ("rope_xp", "usual"):
        both = gpu_rivals.forward_and_backward(target, functions[name](positions), q, k, positions)
        for gradient, x in zip(both(), (q, k), strict=True):
            expected = gpu_rivals.ROPE.unrotate(x, positions)
            distance = (gradient.float() - expected.float()).abs().max()
            # bfloat16 is rounded to, by "usual" its tables and products too: 5 times 2**-8 of 4.
            assert distance <= 5 * 2.0**-8 * 4, name


def test_a_contender_that_fails_is_missing_by_name() -> None:
    target = targets.find("torch:cpu")

    def broken(*_: object) -> None:
        msg = "no such\nkernel"
        raise RuntimeError(msg)

    made = {"broken": lambda _: broken, "rope_xp": lambda _: gpu_rivals.ROPE.apply}
    found, missing = gpu_report.tried(target, made)
    assert list(found) == ["rope_xp"]
    assert missing == {"broken": "no such kernel"}


def test_contenders_take_turns() -> None:
    seen: list[str] = []
    actions = {name: lambda name=name: (seen.append(name),) for name in "abc"}
    times = gpu_report.in_turns(lambda action: (action(), 1.0)[1], actions, 5)
    assert {name: len(taken) for name, taken in times.items()} == dict.fromkeys("abc", 5)
    turns = np.array(seen).reshape(7, 3)
    assert all(set(turn) == set("abc") for turn in turns)
    assert len({tuple(turn) for turn in turns}) > 1
