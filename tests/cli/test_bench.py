"""python -m rope_xp bench, and the figures that it and the tables of the pages are made of."""

import importlib.util
import json
import sys
from unittest.mock import Mock

from rope_xp import __main__ as cli
from rope_xp._bench import clock, inputs
from rope_xp._cli import bench

FEW = ["bench", "--tokens", "16", "--repeat", "3", "--backend", "numpy"]


def test_bench_figures_are_medians_of_turns():
    ours, others = [2.0, 1.0, 4.0], [6.0, 1.0, 2.0]
    assert clock.times_as_fast(ours, others) == clock.Spread(1.0, 0.5, 3.0)
    assert str(clock.Spread(0.4567, 12.34, 1234.5)) == "0.46 [12.3, 1234]"


def test_bench_as_json_lists_spreads_of_each_target(capsys):
    assert cli.main([*FEW, "--heads", "3", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["heads"] == {"q": 3, "k": 1}
    names = [(row["target"], row["dtype"]) for row in report["rows"]]
    assert names == [("numpy:cpu", "float32"), ("numpy:cpu", "bfloat16")]
    for row in report["rows"]:
        for name in ("milliseconds", "times_copy", "times_usual", "token_microseconds"):
            assert 0 < row[name]["least"] <= row[name]["median"] <= row[name]["most"]


def test_bench_says_first_which_packages_are_missing(monkeypatch, capsys):
    find_spec = importlib.util.find_spec

    def find_none(name, *rest):
        return None if name in {"dask", "ml_dtypes"} else find_spec(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_none)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    inputs.case.cache_clear()
    assert cli.main([*FEW, "--backend", "dask"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [
        "PROBLEM: dask: not installed (pip install dask)",
        "ml_dtypes: not installed (pip install ml_dtypes); no bfloat16: numpy:cpu",
    ]
    assert any("numpy:cpu  float32" in line for line in lines[2:])
    assert not any("bfloat16" in line for line in lines[2:])


def test_bench_goes_on_where_a_library_breaks(monkeypatch, capsys):
    monkeypatch.setattr(bench, "measure", Mock(side_effect=RuntimeError("out of memory")))
    assert cli.main(FEW) == 1
    assert "PROBLEM: numpy:cpu float32: out of memory" in capsys.readouterr().out
