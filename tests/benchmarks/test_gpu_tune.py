"""Constants of kernels for GPUs that are tried: what there is, what is timed, what fails."""

import json

import pytest

from asv_benchmarks.gpu import measure, tune


@pytest.mark.parametrize("library", tune.MODULES)
def test_the_constants_are_there(library):
    if library == "torch":
        pytest.importorskip("triton")
    named = {*tune.SWEEPS[library], *(name for each in tune.ALONE[library] for name in each)}
    assert [name for name in named if not tune.modules(library, name)] == []


def test_one_combination_is_timed():
    pytest.importorskip("torch")
    contenders = {speed["contender"] for speed in tune.one("torch", "cpu", {}, 1)["speed"]}
    assert contenders == {"copy", "flat copy", measure.US, measure.IN_PLACE}


def test_what_fails_is_not_timed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tune, "combinations", lambda _: [{"A": 1}, {"A": 2}, {"A": 3}])
    shares = {1: 0.8, 2: 0.95}

    def tried(library, device, settings, repeat):
        if settings.get("A") not in shares:
            return {"settings": settings, "why": "rope_xp: rotates differently"}
        case = measure.Case(1, 6554)
        row = {"contender": measure.US, "direction": "forward", "bytes": case.bytes}
        row |= {"case": str(case), "of_copy": [shares[settings["A"]], 0.7, 1.0]}
        return {"settings": settings, "speed": [row, row | {"contender": measure.COPY}]}

    monkeypatch.setattr(tune, "tried", tried)
    out = tmp_path / "tune.json"
    assert tune.main(["--library", "cupy", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2:] == [
        "| A=2 | 0.95 |",
        "| A=1 | 0.80 |",
        "not timed: as is: rope_xp: rotates differently",
        "not timed: A=3: rope_xp: rotates differently",
    ]
    assert len(json.loads(out.read_text())) == 4
