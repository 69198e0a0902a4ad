"""The report on GPUs, run on the CPU: what it finds, leaves out by name, and refuses to make up."""

import json
import math
import sys
import time
import xml.etree.ElementTree as ET
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from asv_benchmarks import gpu_bars, gpu_clock, gpu_facts, gpu_picture, gpu_report, gpu_rivals
from asv_benchmarks.gpu_bars import BOTH, COPY, FLAT_COPY
from asv_benchmarks.gpu_measure import Case
from rope_xp._bench import targets

pytest.importorskip("torch")

ONE_HEAD = Case(1, 16, (1,), 64)


def test_on_the_cpu(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(gpu_report.CASES, "cpu", [Case(2, 3), ONE_HEAD])
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.setitem(sys.modules, "transformers.models.llama.modeling_llama", None)
    out = tmp_path / "report.json"
    options = ["--device", "cpu", "--libraries", "torch,cupy", "--repeat", "3", "--no-compile"]
    assert gpu_report.main([*options, "--out", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["missing"]["torch:cpu usual compiled"] == "left out by --no-compile"
    assert "liger" in report["missing"]["torch:cpu liger"]
    assert report["missing"]["cupy:cpu"] == "cupy has no cpu"
    rows = {(r["direction"], r["contender"], r["tokens"]): r for r in report["speed"]}
    forward = (COPY, "rope_xp", "rope_xp in place", "rope_xp given angles", "usual")
    both = (COPY, "rope_xp", "rope_xp given angles", "usual")
    names = [("forward", name) for name in forward] + [(BOTH, name) for name in both]
    expected_rows = {(*name, tokens) for name in names for tokens in (3, 16)}
    assert set(rows) == expected_rows | {("forward", FLAT_COPY, 3)}  # of one array it is the copy
    assert len(report["speed"]) == len(rows)  # those of rope_xp alone have made way
    for row in rows.values():
        assert 0 < row["min_us"] <= row["median_us"] <= row["max_us"]
        assert row["timed_by"] == "wall clock"
    measured = report["targets"]["torch:cpu"]
    errors = measured["largest_error_at_1M"]
    assert errors["rope_xp"] <= 4e-7 < 1e-2 < errors["usual"]
    assert set(measured["host_us"]) == set(forward) - {COPY}
    assert all(path.startswith("torch: ") for path in measured["paths"].values())
    printed = capsys.readouterr().out
    assert "| rope_xp is times as fast as | 1 x 16, one head of 64 | 2 x 3 |" in printed
    assert "missing: torch:cpu liger: " in printed


def row(target, contender, share, direction="forward", **other):
    case = Case(**({"batch": 1, "tokens": 6554} | other))
    return {
        "target": target,
        "contender": contender,
        "direction": direction,
        **(case._asdict() | {"heads": list(case.heads), "bytes": case.bytes, "host_hidden": 1.0}),
        "median_us": 31.0 / share,
        "min_us": 30.0 / share,
        "max_us": 33.0 / share,
        "share_of_copy": None if contender == COPY else [share, 0.9 * share, 1.1 * share],
        "timed_by": "events",
    }


SHARES = {
    "rope_xp": 0.95, "rope_xp in place": 0.96, "usual compiled": 0.5, "liger": 0.8,
    "flash-attn": 0.9, "HF apply": 0.2, "one head": 0.7, "rope_xp in jit": 0.9, "host": 20.0,
    "flat copy": 1.02, "decode": 0.9, "backward": 0.91, "launches": 1, "peak": 1.0,
}  # fmt: skip


def build_report(**changed):
    """A report in which every bar is reached, but for what is changed."""
    share = SHARES | changed
    device = {"device": {"name": "NVIDIA H200"}, "paths": {"1 x 6554": "torch: triton"}}
    facts = {"host_us": {"rope_xp": share["host"], "HF apply": 30.0}, "largest_error_at_1M": {}}
    facts |= {"launches": {"rope_xp": share["launches"]}, "peak": {"rope_xp": share["peak"]}}
    most, decode = {"tokens": 16384}, {"batch": 256, "tokens": 1}
    one, two = {"heads": (1,), "head_dim": 64}, row("torch:gpu", "rope_xp", 0.95, BOTH, **most)
    speed = [
        *(row("torch:gpu", COPY, 1, BOTH), row("torch:gpu", "rope_xp", share["backward"], BOTH)),
        *(
            row("torch:gpu", name, share[name])
            for name in ("usual compiled", "liger", "flash-attn", "HF apply")
        ),
        *(row("torch:gpu", name, share[name], **most) for name in (FLAT_COPY, "rope_xp")),
        two | {"median_us": 2 * two["median_us"]},
        *(row("torch:gpu", name, 0.95, **decode) for name in ("rope_xp in place", "rope_xp")),
        row("torch:gpu", "liger", share["decode"], **decode),
        *(row("jax:gpu", COPY, 1), row("jax:gpu", "rope_xp in jit", share["rope_xp in jit"])),
    ]
    for target in ("torch:gpu", "cupy:gpu"):
        speed += [row(target, name, share[name]) for name in ("rope_xp", "rope_xp in place")]
        speed += [row(target, COPY, 1), row(target, COPY, 1, **one)]
        speed += [row(target, "rope_xp", share["one head"], **one)]
    return {
        "machine": {"platform": "Linux", "versions": {"torch": "2.11.0"}},
        "targets": {"torch:gpu": device | facts, "cupy:gpu": device | facts, "jax:gpu": device},
        "speed": speed,
        "missing": {"torch:gpu quack": "No module named 'quack'"},
    }


def judge(report):
    cells = [line.strip("| ").split(" | ") for line in gpu_bars.bars(report).splitlines()[2:]]
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
        ({"usual compiled": 0.9}, ["times as fast as torch.compile"]),
        ({"liger": 0.9}, ["times as fast as Liger"]),
        ({"flash-attn": 0.96}, ["times as fast as the fastest other"]),
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


def test_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "report.svg"
    gpu_picture.draw(build_report(), path)
    labels = {text.text for text in ET.parse(path).iter("{http://www.w3.org/2000/svg}text")}
    assert {"torch:gpu, forward", f"torch:gpu, {BOTH}", "jax:gpu, forward", "64 MiB"} <= labels
    assert {"rope_xp", "rope_xp in place", "usual compiled", "liger", "rope_xp in jit"} <= labels


class Event:
    """An event of a stream of which nothing is ever waited for."""

    def __init__(self, enable_timing=False):
        self.at = math.nan

    def record(self):
        self.at = time.perf_counter()

    def query(self):
        return False

    def synchronize(self):
        assert math.isfinite(self.at)

    def elapsed_time(self, stop):
        return (stop.at - self.at) * 1e3


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    import torch

    find = targets.find
    monkeypatch.setattr(
        targets, "find", lambda name: replace(find(name.replace("gpu", "cpu")), name=name)
    )
    monkeypatch.setitem(gpu_report.CASES, "gpu", [Case(1, 1), ONE_HEAD])
    monkeypatch.setattr(gpu_clock, "READ_BYTES", 1 << 16)
    for name, stand_in in {
        "Event": Event,
        "get_device_properties": lambda _: SimpleNamespace(name="a CPU", L2_cache_size=7),
        "reset_peak_memory_stats": lambda: None,
        "memory_allocated": lambda: 0,
        "max_memory_allocated": lambda: 3072 * 40 * 128,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    event = SimpleNamespace(device_type=torch.autograd.DeviceType.CUDA)
    other = SimpleNamespace(device_type=torch.autograd.DeviceType.CPU)

    @contextmanager
    def profile(activities, acc_events):
        yield SimpleNamespace(events=lambda: [other, event])

    monkeypatch.setattr(torch.profiler, "profile", profile)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_torch_as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(gpu_rivals, "RIVALS", {})
    saved = []
    report = gpu_report.report(
        "gpu", ["torch"], 2, False, lambda report: saved.append(len(report["speed"]))
    )
    # After each case, should the next one break off; ours first, then all in turns.
    assert saved == [8, 15, 15, 17, 19, 19]
    measured = report["targets"]["torch:gpu"]
    assert measured["device"] == {"name": "a CPU", "L2_cache_size": 7}
    assert {row["timed_by"] for row in report["speed"]} == {"events, caches flushed by reading"}
    assert {row["host_hidden"] for row in report["speed"]} == {1.0}
    assert measured["launches"]["rope_xp"] == 1
    assert measured["peak"]["rope_xp"] == pytest.approx(1.5)  # of results of 2 bytes a number
    assert "| torch, one head, (1, 65536, 1, 64)" in gpu_bars.markdown(report)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_breaks_at_one_size_is_missing_there_alone(monkeypatch):
    def refuse(message):
        raise RuntimeError(message)

    def fails_at_one(arrays, positions):
        refuse("out of memory") if len(arrays) == 1 else None
        return gpu_rivals._ours(arrays, positions)

    def made_for_many(positions, arrays):
        refuse("no kernel for one token") if arrays and arrays[0].shape[1] == 1 else None
        return gpu_rivals._ours

    contenders = {"rope_xp": gpu_rivals.Contender(lambda *_: gpu_rivals._ours, True)}
    contenders["fragile"] = gpu_rivals.Contender(lambda *_: fails_at_one, alone=True)
    contenders["of many"] = gpu_rivals.Contender(made_for_many)
    monkeypatch.setattr(gpu_rivals, "contenders", lambda *_: (contenders, {}))
    monkeypatch.setattr(gpu_facts, "host_microseconds", lambda *_: refuse("no clock"))
    report = gpu_report.report("gpu", ["torch"], 1, False, lambda _: None)
    assert report["missing"] == {
        "torch:gpu fragile, 1 x 16, one head of 64": "out of memory",
        "torch:gpu of many, 1 x 1": "no kernel for one token",
        "torch:gpu of many": "no kernel for one token",
        "torch:gpu rope_xp host_us": "no clock",
        "torch:gpu fragile host_us": "no clock",
    }
    timed = {(row["contender"], row["tokens"]) for row in report["speed"]}
    assert {("fragile", 1), ("rope_xp", 16)} <= timed
    assert ("fragile", 16) not in timed
    assert "not measured" in gpu_bars.markdown(report)


def test_the_contenders_of_a_gpu_are_those_of_the_bars():
    """A bar about a contender of another name would never be measured."""
    assert gpu_rivals.IN_JIT in gpu_rivals.contenders(targets.find("jax:cpu"), False)[0]
    found, missing = gpu_rivals.contenders(targets.find("torch:cpu"), False)
    assert {gpu_rivals.USUAL_COMPILED, *gpu_bars.OTHERS, gpu_rivals.LIGER} <= {*found, *missing}
