"""The report on GPUs, run on the CPU: what it finds, leaves out by name, and refuses to make up."""

import json
import sys

import pytest

from asv_benchmarks.gpu import bars, measure, report
from asv_benchmarks.gpu.measure import BOTH, COPY, FLAT_COPY, FORWARD, Case
from asv_benchmarks.shared.rival_calls import Contender
from rope_xp._bench import targets

pytest.importorskip("torch")

CASE, ONE_HEAD = Case(1, 6554), Case(1, 16, (1,), 64)


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


def row(target, contender, share, direction=FORWARD, case=CASE):
    copies = 2 if direction == BOTH else 1
    return {
        "target": target,
        "contender": contender,
        "direction": direction,
        "case": str(case),
        "bytes": case.bytes,
        "arrays": len(case.heads),
        "hidden": 1.0,
        "us": [copies * us / share for us in (31.0, 30.0, 33.0)],
        "of_copy": [share, 0.9 * share, 1.1 * share],
        "timed_by": "events",
    }


SHARES = {
    "rope_xp": 0.95, "rope_xp in place": 0.96, "torch_compile": 0.5, "liger": 0.8,
    "flash_attn": 0.9, "hf_apply": 0.2, "one head": 0.7, "rope_xp in jit": 0.9, "host": 20.0,
    "flat copy": 1.02, "decode": 0.9, "backward": 0.91, "launches": 1, "peak": 1.0,
}  # fmt: skip


def build_report(**changed):
    """A report in which every bar is reached, but for what is changed."""
    share = SHARES | changed
    facts = {"before": ["name", "NVIDIA H200"], "paths": {"1 x 6554": "torch: triton"}}
    facts |= {"host_us": {"rope_xp": share["host"], "hf_apply": 30.0}, "error": {}}
    facts |= {"launches": {"rope_xp": share["launches"]}, "peak": {"rope_xp": share["peak"]}}
    most, decode, one = Case(1, 16384), Case(256, 1), Case(1, 65536, (1,), 64)
    rivals = ("torch_compile", "liger", "flash_attn", "hf_apply")
    copy = row("torch:gpu", COPY, 1, BOTH)
    speed = [
        *(copy | {"us": [31.0, 30.0, 33.0]}, row("torch:gpu", "rope_xp", share["backward"], BOTH)),
        *(row("torch:gpu", name, share[name]) for name in rivals),
        *(row("torch:gpu", name, share[name], case=most) for name in (FLAT_COPY, "rope_xp")),
        row("torch:gpu", "rope_xp", 0.95, BOTH, case=most),
        *(row("torch:gpu", name, 0.95, case=decode) for name in ("rope_xp in place", "rope_xp")),
        row("torch:gpu", "liger", share["decode"], case=decode),
        *(row("jax:gpu", COPY, 1), row("jax:gpu", "rope_xp in jit", share["rope_xp in jit"])),
    ]
    for target in ("torch:gpu", "cupy:gpu"):
        speed += [row(target, name, share[name]) for name in ("rope_xp", "rope_xp in place")]
        speed += [row(target, COPY, 1), row(target, COPY, 1, case=one)]
        speed += [row(target, "rope_xp", share["one head"], case=one)]
    return {
        "versions": {"torch": "2.11.0"},
        "targets": {"torch:gpu": facts, "cupy:gpu": facts, "jax:gpu": facts | {"host_us": {}}},
        "speed": speed,
        "missing": {"torch:gpu quack": "No module named 'quack'"},
    }


def judge(found):
    cells = [line.strip("| ").split(" | ") for line in bars.bars(found).splitlines()[2:]]
    return {name: verdict for name, _, _, verdict in cells}


@pytest.mark.parametrize(
    ("changed", "fails"),
    [
        ({"rope_xp in place": 0.89}, ["torch, in place", "cupy, in place"]),
        ({"backward": 0.8}, ["torch, forward and backward"]),
        (
            {"flat copy": 1.05},
            ["torch, q and k forward, from 128", "torch, forward and backward, from 128"],
        ),
        ({"decode": 1.0}, ["256 sequences"]),
        ({"one head": 0.5}, ["torch, one head", "cupy, one head"]),
        ({"rope_xp in jit": 0.84}, ["jax in jit"]),
        ({"torch_compile": 0.9}, ["times as fast as torch.compile"]),
        ({"liger": 0.9}, ["times as fast as Liger"]),
        ({"flash_attn": 0.96}, ["times as fast as the fastest other"]),
        ({"host": 31.0}, ["one token, eager"]),
        ({"launches": 2}, ["one token, torch: launches"]),
        ({"peak": 1.5}, ["torch, peak", "cupy, peak"]),
    ],
)
def test_a_bar_that_is_missed_is_named(changed, fails):
    missed = [name for name, verdict in judge(build_report(**changed)).items() if verdict != "yes"]
    assert len(missed) == len(fails)
    for name, start in zip(missed, fails, strict=True):
        assert name.startswith(start)


@pytest.mark.usefixtures("as_on_a_gpu")
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
    monkeypatch.setattr(measure, "contenders_of", lambda *_: made)
    monkeypatch.setattr(measure, "launches", lambda *_: refuse("no profiler"))
    found = report.report("gpu", ["torch"], 1, True, lambda _: None)
    assert found["missing"] == {
        "torch:gpu fragile, 1 x 16, one head of 64": "out of memory",
        "torch:gpu of many, 1 x 1": "no kernel for one token",
        "torch:gpu of many": "no kernel for one token",
        "torch:gpu rope_xp launches": "no profiler",
        "torch:gpu fragile launches": "no profiler",
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
