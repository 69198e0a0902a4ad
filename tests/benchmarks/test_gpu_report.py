"""The report on GPUs, run on the CPU: what it finds, leaves out by name, and refuses to make up."""

import json
import sys

import pytest

from asv_benchmarks.gpu import bars, measure, report
from asv_benchmarks.gpu.measure import BOTH, COPY, FLAT_COPY, FORWARD, Case
from asv_benchmarks.shared.rival_calls import Contender
from rope_xp._bench import targets

pytest.importorskip("torch")

ONE_HEAD = Case(1, 16, (1,), 64)


def test_on_the_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(report.CASES, "cpu", [Case(2, 3), ONE_HEAD])
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.setitem(sys.modules, "transformers.models.llama.modeling_llama", None)
    out = tmp_path / "report.json"
    options = ["--device", "cpu", "--libraries", "torch,cupy", "--repeat", "3", "--no-compile"]
    assert report.main([*options, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["missing"]["torch:cpu torch.compile"] == "left out by --no-compile"
    assert "liger" in found["missing"]["torch:cpu liger"]
    assert found["missing"]["cupy:cpu"] == "cupy has no cpu"
    rows = {(r["direction"], r["contender"], r["case"]): r for r in found["speed"]}
    forward = (COPY, "rope_xp", "rope_xp in place", "rope_xp given angles", "usual")
    both = (COPY, "rope_xp", "rope_xp given angles", "usual")
    names = [(FORWARD, name) for name in forward] + [(BOTH, name) for name in both]
    expected_rows = {(*name, str(case)) for name in names for case in report.CASES["cpu"]}
    assert set(rows) == expected_rows | {
        (FORWARD, FLAT_COPY, "2 x 3")
    }  # of one array it is the copy
    assert len(found["speed"]) == len(rows)  # those of rope_xp alone have made way
    for row in rows.values():
        median, least, most = row["us"]
        assert 0 < least <= median <= most
        share, lowest, highest = row["of_copy"]
        assert lowest <= share <= highest
        assert row["timed_by"] == "wall clock"
    measured = found["targets"]["torch:cpu"]
    assert measured["error"]["rope_xp"] <= 4e-7 < 1e-2 < measured["error"]["usual"]
    assert set(measured["host_us"]) == set(forward) - {COPY}
    assert all(path.startswith("torch: ") for path in measured["paths"].values())
    printed = capsys.readouterr().out
    assert "| rope_xp is times as fast as | 1 x 16, one head of 64 | 2 x 3 |" in printed
    assert "missing: torch:cpu liger: " in printed


def test_what_breaks_at_one_size_is_missing_there_alone(monkeypatch):
    def refuse(message):
        raise RuntimeError(message)

    def fails_at_one(arrays, positions):
        refuse("out of memory") if len(arrays) == 1 else None
        return measure._ours(arrays, positions)

    def made_for_many(at):
        refuse("no kernel for one token") if at.arrays[0].shape[1] == 1 else None
        return measure._ours

    made = {"rope_xp": Contender(lambda _: measure._ours, alone=True)}
    made["fragile"] = Contender(lambda _: fails_at_one, alone=True)
    made["of many"] = Contender(made_for_many)
    monkeypatch.setitem(report.CASES, "cpu", [Case(1, 1), ONE_HEAD])
    monkeypatch.setattr(measure, "contenders_of", lambda *_: made)
    found = report.report("cpu", ["torch"], 1, True, lambda _: None)
    assert found["missing"] == {
        "torch:cpu fragile, 1 x 16, one head of 64": "out of memory",
        "torch:cpu of many, 1 x 1": "no kernel for one token",
        "torch:cpu of many": "no kernel for one token",
    }
    timed = {(row["contender"], row["case"]) for row in found["speed"]}
    assert {("fragile", "1 x 1"), ("rope_xp", str(ONE_HEAD))} <= timed
    assert ("fragile", str(ONE_HEAD)) not in timed
    assert "not measured" in bars.markdown(found)


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_the_contenders_of_a_gpu_are_those_of_the_bars(library):
    """A bar about a contender of another name would never be measured."""
    known = {*measure.contenders_of(targets.find(f"{library}:cpu")), COPY, FLAT_COPY}
    asked = [bar for bar in bars.BARS if bar.target == f"{library}:gpu"]
    assert asked
    assert {name for bar in asked for name in (bar.ours, *bar.others)} <= known
