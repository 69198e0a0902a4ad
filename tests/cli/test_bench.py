"""python -m rope_xp bench, and the figures that it and the tables of the pages are made of."""

from __future__ import annotations

import importlib.util
import json
import sys

import numpy as np
import pytest
from support.targets import numpy_dtype

from rope_xp import __main__ as cli
from rope_xp._bench import clock, inputs, targets
from rope_xp._cli import bench

FEW = ["--tokens", "16", "--repeat", "3"]


def test_figures_are_medians_of_turns() -> None:
    ours, others = [2.0, 1.0, 4.0], [6.0, 1.0, 2.0]
    assert clock.times_as_fast(ours, others) == clock.Spread(1.0, 0.5, 3.0)
    assert str(clock.Spread(0.4567, 12.34, 1234.5)) == "0.46 [12.3, 1234]"


def test_each_turn_times_each_action() -> None:
    called = []
    actions = [lambda i=i: called.append(i) or () for i in range(3)]
    times = clock.turns_of_seconds(targets.find("numpy:cpu"), 4, *actions)
    assert [len(of_one) for of_one in times] == [4, 4, 4]
    assert sorted(called) == sorted([0, 1, 2] * 5)  # the first to warm up


def test_in_words(capsys) -> None:
    assert cli.main(["bench", *FEW, "--backend", "numpy"]) == 0
    printed = capsys.readouterr().out
    assert "numpy:cpu  float32 " in printed
    assert "numpy:cpu  bfloat16" in printed


def test_as_json(capsys) -> None:
    few = ["--heads", "3", "1", "--backend", "numpy", "--json"]
    assert cli.main(["bench", *FEW, *few]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["heads"] == {"q": 3, "k": 1}
    assert [(row["target"], row["dtype"]) for row in found["rows"]] == [
        ("numpy:cpu", "float32"),
        ("numpy:cpu", "bfloat16"),
    ]
    for row in found["rows"]:
        for name in ("milliseconds", "times_copy", "times_usual", "token_microseconds"):
            assert 0 < row[name]["least"] <= row[name]["median"] <= row[name]["most"]


def test_lines_fit_80_columns_and_name_the_pages_of_2_mb() -> None:
    wide = clock.Spread(1234.5, 1111.1, 2222.2)
    rows = [
        bench.Row(target, dtype, "blockwise", wide, wide, wide, wide)
        for target in targets.NAMES
        for dtype in inputs.DTYPES
    ]
    lines = "\n".join(bench._lines(131_040, (12, 12), rows)).splitlines()
    assert max(map(len, lines)) <= 80
    assert any("pages of 2 MB" in line for line in lines)
    slow = clock.Spread(0.9, 0.8, 1.2)
    below = bench._lines(
        16, (3, 1), [bench.Row("numpy:cpu", "float32", "", slow, slow, slow, slow)]
    )
    assert not any("pages of 2 MB" in line for line in below)


def test_what_is_missing_is_said_first(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    found = importlib.util.find_spec

    def without(name: str, *rest: object) -> object:
        return None if name in {"dask", "llvmlite", "ml_dtypes"} else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    inputs.case.cache_clear()
    assert cli.main(["bench", *FEW, "--backend", "numpy", "--backend", "dask"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == [
        "PROBLEM: dask: not installed (pip install 'rope-xp[dask]')",
        (
            "llvmlite: not installed (pip install 'rope-xp[llvmlite]'); "
            "the slower paths run: numpy:cpu"
        ),
        "ml_dtypes: not installed (pip install ml_dtypes); no bfloat16: numpy:cpu",
    ]
    assert not any("bfloat16" in line for line in lines[3:])


def test_bfloat16_of_torch_needs_no_ml_dtypes(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    bfloat16 = numpy_dtype("bfloat16")
    plain = inputs.case("numpy:cpu", 5)
    inputs.case.cache_clear()
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    case = inputs.case("torch:cpu", 5, dtype="bfloat16")
    assert case.q.dtype == torch.bfloat16
    for given, rounded in zip(plain[1:3], case[1:3], strict=True):
        expected = given.astype(bfloat16).view(np.int16)
        np.testing.assert_array_equal(rounded.view(torch.int16).numpy(), expected)
    with pytest.raises(inputs.Absent, match="^ml_dtypes is not installed .pip install ml_dtypes"):
        inputs.case("numpy:cpu", 5, dtype="bfloat16")


def test_it_goes_on_where_a_library_breaks(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    def broken(*_: object) -> None:
        msg = "out of memory"
        raise RuntimeError(msg)

    monkeypatch.setattr(bench, "measure", broken)
    assert cli.main(["bench", "--backend", "numpy"]) == 1
    assert "PROBLEM: numpy:cpu float32: out of memory" in capsys.readouterr().out
