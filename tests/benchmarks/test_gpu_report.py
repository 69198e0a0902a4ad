"""The report on GPUs, run on the CPU: what it finds, leaves out by name, and refuses to make up."""

import json
import sys

import pytest

from asv_benchmarks.gpu import report
from asv_benchmarks.gpu.measure import BOTH, COPY, FLAT_COPY, FORWARD, Case

pytest.importorskip("torch")

ONE_HEAD = Case(1, 16, (1,), 64)
OURS = ("rope_xp", "rope_xp given angles", "usual", COPY)


def test_the_report_has_a_row_for_each_contender_and_names_what_is_missing(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setitem(report.CASES, "cpu", [Case(2, 3), ONE_HEAD])
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.setitem(sys.modules, "transformers.models.llama.modeling_llama", None)
    out = tmp_path / "report.json"
    options = ["--device", "cpu", "--libraries", "torch,cupy", "--repeat", "3", "--no-compile"]
    assert report.main([*options, "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["missing"]["torch:cpu torch.compile"] == "left out by --no-compile"
    assert found["missing"]["cupy:cpu"] == "cupy has no cpu"
    rows = {(r["direction"], r["contender"], r["case"]): r for r in found["speed"]}
    names = {(FORWARD, "rope_xp in place")} | {(way, n) for n in OURS for way in (FORWARD, BOTH)}
    expected = {(*name, str(case)) for name in names for case in report.CASES["cpu"]}
    names.add(normed := (FORWARD, "rope_xp with a norm"))
    expected.add((*normed, "2 x 3"))
    assert set(rows) == expected | {(FORWARD, FLAT_COPY, "2 x 3")}  # of one array it is the copy
    assert len(found["speed"]) == len(rows)  # those of rope_xp alone have made way
    for median, least, most in (row[name] for row in rows.values() for name in ("us", "of_copy")):
        assert 0 < least <= median <= most
    measured = found["targets"]["torch:cpu"]
    assert measured["error"]["rope_xp"] <= 4e-7 < 1e-2 < measured["error"]["usual"]
    assert set(measured["host_us"]) == {name for _, name in names} - {COPY}
    assert all(path.startswith("torch: ") for path in measured["paths"].values())
    printed = capsys.readouterr().out
    assert "| rope_xp is times as fast as | 1 x 16, one head of 64 | 2 x 3 |" in printed
    assert "missing: torch:cpu liger: " in printed
