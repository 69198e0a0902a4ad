"""python -m rope_xp demo and bench: their figures, and what they say of absent libraries."""

import importlib.util
import json
import re
import sys
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

import rope_xp
from rope_xp import __main__ as cli
from rope_xp._bench import clock, inputs, targets
from rope_xp._cli import bench, demo

FEW = ["--tokens", "8", "--backend", "numpy"]


def test_best_seconds_are_the_shortest_but_for_the_first(monkeypatch):
    now, lasting = [0.0], {"a": [1.0, 3.0, 2.0, 4.0], "b": [9.0, 5.0, 7.0, 8.0]}
    monkeypatch.setattr(clock.time, "perf_counter", lambda: now[0])

    def act(name):
        now[0] += lasting[name].pop(0)
        return ()

    assert clock.best_seconds(None, 3, lambda: act("a"), lambda: act("b")) == [2.0, 5.0]
    assert [clock.digits(x) for x in (0.4567, 12.34, 1234.5)] == ["0.46", "12.3", "1234"]


def test_bench_compares_times_and_lists_them_of_each_dtype(monkeypatch, capsys):
    monkeypatch.setattr(clock, "best_seconds", lambda *_: [0.004, 0.002, 0.012])
    assert cli.main(["bench", *FEW, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["target"], row["dtype"]) for row in rows] == [
        ("numpy:cpu", "float32"),
        ("numpy:cpu", "bfloat16"),
    ]
    for row in rows:
        figures = (row["milliseconds"], row["times_copy"], row["times_usual"])
        assert figures == pytest.approx((4, 0.5, 3))
        assert 0 < row["token_microseconds"] < 1e5
    assert cli.main(["bench", *FEW]) == 0
    line = r"\nnumpy:cpu +bfloat16 +(native|chunked) +4.00 +0.50 +3.00 +[\d.]+\n"
    assert re.search(line, capsys.readouterr().out)


def test_bench_says_which_packages_are_missing(monkeypatch, capsys):
    find_spec = importlib.util.find_spec
    absent = lambda name, *rest: None if name == "dask" else find_spec(name, *rest)  # noqa: E731  # one use
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    inputs.case.cache_clear()
    assert cli.main(["bench", *FEW]) == 0
    assert cli.main(["bench", *FEW, "--backend", "dask"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [re.split(" {2}", line)[0] for line in lines].count("numpy:cpu") == 2
    assert lines[-3:] == [
        "PROBLEM: dask did not run",
        "numpy:cpu bfloat16: ml_dtypes is not installed (pip install ml_dtypes)",
        "dask: not installed (pip install dask)",
    ]


@pytest.mark.slow
def test_demo_runs_on_every_library_within_the_bound(capsys):
    assert cli.main(["demo", "--tokens", "600", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["problems"] == []
    names = {row["target"] for row in outcome["rows"]} | outcome["missing"].keys()
    assert all({name, name.partition(":")[0]} & names for name in targets.ALL_NAMES)
    for row in outcome["rows"]:
        assert 0 < row["max_error"] <= row["error_bound"]
        # At a million the usual formula is wrong in the second digit.
        assert (row["usual_max_error"] > 0.05) == (row["start"] == 1_000_000)


def test_demo_prints_errors_and_times_and_how_libraries_differ(capsys):
    assert cli.main(["demo", *FEW]) == 0
    out = capsys.readouterr().out
    row = r"\nnumpy:cpu +(native|chunked) +1000000 +\de-07 +\de-01 +[\d.]+ +[\d.]+\n"
    assert re.search(row.replace(r"\de", r"\d\.\de"), out)
    figures = {"a": 0.0, "b": 2.0}
    demo._write_rows([demo.DemoRow(n, 0, "", 1, 3.3, 7e-7, 0.2, 1, u) for n, u in figures.items()])
    assert capsys.readouterr().out.endswith("Equal to a: b within 2 ulp.\n")


def shift(*arguments, **options):
    return tuple(y + np.float32(1e-4) for y in rope_xp.apply(*arguments, **options))


@pytest.mark.parametrize(
    ("module", "name", "stand_in", "problem"),
    [
        (demo, "apply", shift, "from position 0: error 1.0e-04 exceeds"),
        (demo, "measure_target", Mock(side_effect=RuntimeError("full")), "0 did not run: full"),
        (bench, "measure_target", Mock(side_effect=MemoryError("full")), "float32 did not run"),
    ],
)
def test_wrong_numbers_and_broken_libraries_set_the_status(
    module, name, stand_in, problem, monkeypatch, capsys
):
    monkeypatch.setattr(module, name, stand_in)
    assert cli.main([module.__name__.rpartition(".")[2], *FEW]) == 1
    assert re.search(f"PROBLEM: numpy:cpu .*{problem}", capsys.readouterr().out)


def test_demo_finds_nan_and_libraries_that_differ():
    row = {"start": 0, "max_error": 0.0, "error_bound": 1e-6, "ulp_from_first": 0.0}
    rows = [
        SimpleNamespace(target=target, **row | changes)
        for target, changes in (
            ("numpy:cpu", {"max_error": float("nan")}),
            ("torch:cpu", {"ulp_from_first": 1.0}),
            ("jax:cpu", {"ulp_from_first": 2.5}),
            ("mlx:cpu", {"ulp_from_first": 1.0}),
        )
    ]
    assert len(demo.find_problems(rows)) == 3
