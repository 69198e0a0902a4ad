"""python -m rope_xp inspect --plot: what is drawn, and what keeps it from being drawn."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.inspected import CONFIGS, LLAMA, UNCLEAR, waves

from rope_xp import RoPE, scaling
from rope_xp import __main__ as cli
from rope_xp._cli import plots


def draw(tmp_path: Path, config: dict[str, Any], name: str = "picture.png") -> tuple[int, Path]:
    (tmp_path / "config.json").write_text(json.dumps(config))
    picture = tmp_path / name
    return cli.main(["inspect", str(tmp_path), "--plot", str(picture)]), picture


@pytest.mark.parametrize("name", ["phi3", "gemma4"])
def test_plot(tmp_path: Path, capsys, name: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws (pip install 'rope-xp[plot]')")
    status, picture = draw(tmp_path, CONFIGS[name], "picture.svg")
    assert status == 0
    assert "tokens of a full turn" in picture.read_text("utf-8")
    assert "suspicious" in capsys.readouterr().out


def test_what_is_drawn() -> None:
    figure = pytest.importorskip(
        "matplotlib.figure", reason="matplotlib draws (pip install 'rope-xp[plot]')"
    )
    axes = figure.Figure().subplots()
    rule = scaling.Proportional(0.5)
    ropes = {"plain": RoPE(), "rule": RoPE(scaling=rule)}
    plots.draw_wavelengths(axes, ropes, 16, {"extended": 4000, "original": 100})
    assert axes.get_yscale() == "log"
    plain, ruled, standing, low, high = axes.get_lines()
    np.testing.assert_allclose(plain.get_ydata(), waves(1e4, 16), rtol=1e-13)
    assert plain.get_label() == "plain"
    np.testing.assert_allclose(ruled.get_ydata(), waves(1e4, 16)[:4], rtol=1e-13)
    assert ruled.get_label() == "rule;\n4 of 8 pairs do not turn (triangles)"
    np.testing.assert_array_equal(standing.get_xdata(), [4, 5, 6, 7])
    assert [line.get_ydata()[0] for line in (low, high)] == [100, 4000]
    assert [text.get_text() for text in axes.texts] == [
        "original, 100 tokens",
        "extended, 4000 tokens",
    ]


def test_matplotlib_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    status, picture = draw(tmp_path, LLAMA)
    assert status == 1
    assert not picture.exists()
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "needs matplotlib (pip install 'rope-xp[plot]')" in printed.err


def test_nothing_to_draw(tmp_path: Path, capsys) -> None:
    assert draw(tmp_path, UNCLEAR)[0] == 1
    assert "head_dim is not known" in capsys.readouterr().err


def test_a_picture_that_cannot_be_written(tmp_path: Path, capsys) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws (pip install 'rope-xp[plot]')")
    assert draw(tmp_path, LLAMA, "picture.tune")[0] == 1
    assert "Format 'tune' is not supported" in capsys.readouterr().err
    assert draw(tmp_path, LLAMA, "nowhere/picture.png")[0] == 1
    assert "No such file or directory" in capsys.readouterr().err
