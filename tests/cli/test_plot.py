"""python -m rope_xp plot: files, errors, and what is drawn."""

import sys
from pathlib import Path

import numpy as np
import pytest

from rope_xp import RoPE
from rope_xp import __main__ as cli
from rope_xp._cli import plot, plots
from rope_xp.papers import analysis

KINDS = ("decay", "wavelengths", "score", "accuracy")
BASES = {"base 10,000": RoPE(), "base 500,000": RoPE(base=500_000.0)}


@pytest.fixture
def axes():
    return pytest.importorskip("matplotlib.figure").Figure().subplots()


def main(*arguments):
    return cli.main(["plot", *map(str, arguments)])


def read_failure(capsys, *arguments):
    assert main(*arguments) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("plot: ")
    assert printed.err.count("\n") == 1
    return printed.err


# --- files ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_plot_of_each_kind_writes_a_picture(tmp_path, monkeypatch, capsys, kind):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    bases = ["--base", "1e4", "5e5", "1e6", "--distance", "300"]
    assert main(kind, *bases, "-o", "one.svg") == 0
    text = Path("one.svg").read_text("utf-8")
    assert "<text" in text  # words are no outlines
    assert "#ffffff" not in text  # nor is there a background
    if kind == "decay":
        assert main(kind, *bases, "--out", "other.svg") == main(kind, *bases) == 0
        assert Path("other.svg").read_text("utf-8") == text
        assert "<dc:date" not in text
        assert capsys.readouterr().out.split() == ["one.svg", "other.svg", "decay.png"]
        assert Path("decay.png").read_bytes().startswith(b"\x89PNG\r\n")


# --- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "arguments", "expected"),
    [
        ("decay", ["--out", "nowhere/picture.png"], "nowhere/picture.png: No such file or"),
        ("decay", ["--out", "picture.tune"], "Format 'tune' is not supported"),
        ("decay", ["--out", "."], "--out . names no file; pass a name such as decay.png"),
        ("decay", ["--distance", "1000000000000"], "--distance 1000000000000 is too far"),
        ("accuracy", ["--distance", "10000001"], "up to position 10000000; got 10000001"),
        ("decay", [], "need matplotlib (pip install matplotlib)"),
    ],
)
def test_errors_of_plot_are_one_line(tmp_path, monkeypatch, capsys, kind, arguments, expected):
    pytest.importorskip("matplotlib")
    if "need matplotlib" in expected:
        monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.chdir(tmp_path)
    assert expected in read_failure(capsys, kind, "--distance", "9", *arguments)
    assert not list(tmp_path.iterdir())


# --- what is drawn -------------------------------------------------------------------------------


def test_drawn_bound_is_that_of_the_analysis(axes):
    plot.draw_decay(axes, BASES, 32, 5000)
    lines = axes.get_lines()
    assert [line.get_label() for line in lines] == list(BASES)
    assert len({line.get_linestyle() for line in lines}) == len(BASES)  # without colours too
    for line, band, (colour, _), rope in zip(
        lines, axes.collections, plots.STYLES, BASES.values(), strict=False
    ):
        exact = analysis.decay_bound(rope, 32, np.arange(1, 5001))
        assert line.get_color() == colour
        x, y = line.get_data()
        np.testing.assert_array_equal(x[:20], np.arange(1, 21))  # one by one where there is room
        np.testing.assert_array_equal(y[:20], exact[:20])
        # The last point is the mean of all distances from halfway to the one before.
        count = round(2 * (5000 - x[-1])) + 1
        assert count > 20
        np.testing.assert_allclose(y[-1], exact[-count:].mean(), rtol=0, atol=1e-14)
        heights = band.get_paths()[0].vertices[:, 1]
        assert (heights.min(), heights.max()) == (exact.min(), exact.max())
        assert {exact[-count:].min(), exact[-count:].max()} <= set(heights)
    assert axes.get_xlabel() == "distance of query and key, tokens"
    assert axes.get_ylabel().startswith("bound on the score")


def test_drawn_scores_are_those_of_the_analysis(axes):
    plot.draw_score(axes, BASES, 128, 2000)
    lines = axes.get_lines()
    first, triangle, second, zero = lines
    assert first.get_label() == "base 10,000; first negative at 1,707"
    assert second.get_label() == "base 500,000; not negative"
    assert triangle.get_data() == ([1707], [0])
    assert set(zero.get_ydata()) == {0}
    for line, rope in zip((first, second), BASES.values(), strict=True):
        expected = analysis.score_curve(rope, 128, np.arange(1, 21)) / 128
        np.testing.assert_allclose(line.get_ydata()[:20], expected, rtol=0, atol=1e-15)
