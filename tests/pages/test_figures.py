"""A figure that nothing measured is found in a page, and measured ones reach it."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "tools"))

import check_figures  # its folder was put on the path above
import figures  # from the same folder

MARK = "<!-- from: one_token, torch, new -->"


@pytest.fixture
def measured(monkeypatch):
    torch = {"new": 8.04, "out": 7.31, "formula": 52.06}
    held = {"unit": "us", "rows": {"torch": torch, "numpy": {"new": 4.0, "formula": 20.0}}}
    errors = {"unit": "", "rows": {"rope_xp: numpy": {"4k": 1.29e-7}, "a, b": {"4k": 0.0}}}
    monkeypatch.setattr(figures, "MEASURED", {"one_token": held, "accuracy": errors})


def unknown(text: str, *allowed: str) -> list[str]:
    entries = [
        check_figures.Entry(words, re.compile(r"\s+".join(map(re.escape, words.split()))))
        for words in allowed
    ]
    return [words for _, words in check_figures.find_unknown(text, entries, set())]


@pytest.mark.parametrize(
    "stray",
    [
        *("takes 17 us", "takes 5.2 ms", "1,024 MiB of tables", "3.5 GB/s", "off by 2.4e-4"),
        *("40% of the time", "14 times as fast", "twice as fast", "three times\nas long", "75x"),
        *("a third of the time", "by a factor of 200", "within 2 ulp", "about three minutes"),
        "| | rope_xp, ms |\n|---|---|\n| numpy | 6.8 |\n",
        "| | largest error |\n|---|---|\n| numpy | **0.5** |\n",
    ],
)
def test_planted_figure_is_found(stray: str) -> None:
    assert len(unknown(f"One call {stray} here.\n\n{stray}\n")) >= 1


@pytest.mark.parametrize(
    "text",
    [
        *("the base 10000 and 16 heads", "Gemma 3 in 16 bits", "at position 1M", "a second RoPE"),
        *("`2.4e-4` in code", "```\n5 ms\n```", "$3 \\cdot 10^{-8}$", "[speed](page-5%20ms.md)"),
        f"A call takes 8.0 us{MARK} in torch.",
        "<!-- made: speed -->\n\n| ms |\n|---|\n| 6.8 |\n\n<!-- end -->",
    ],
)
def test_text_without_a_stray_figure_has_no_finding(text: str) -> None:
    assert unknown(text) == []
    text = "Results are within 2 ulp of\nthe reference, and within 2 ulp of it."
    assert len(unknown(text, "within 2 ulp of the reference")) == 1  # it allows its words alone


def test_figures_of_the_file_are_said_with_units(measured) -> None:
    assert figures.say("one_token, torch, new") == "8.0 us"
    ratio = "one_token, torch, formula / new"
    assert figures.say(ratio) == "6.5"
    assert figures.say(f"{ratio}; {ratio.replace('torch', 'numpy')}") == "5.0 to 6.5"
    assert figures.say("accuracy, rope_xp: numpy, 4k") == "1.3e-7"
    assert figures.say("accuracy, a, b, 4k") == "0"
    with pytest.raises(KeyError):
        figures.say("one_token, torch, new / old")


def test_remake_writes_figures_before_their_marks(measured) -> None:
    pytest.importorskip("matplotlib")
    import remake

    ratios = MARK.replace("new", "out / new; one_token, torch, new / out")
    page = f"It takes 99 us{MARK}, and\n1 to 2{ratios}."
    made = remake.with_made(page)
    assert made.startswith(f"It takes 8.0 us{MARK}, and\n0.91 to 1.1<!--")
    assert remake.with_made(made) == made
    with pytest.raises(ValueError, match="no figure right before"):
        remake.with_made(f"It takes long{MARK}.")


def test_file_holds_what_the_command_measures() -> None:
    for module in ("torch", "jax", "mpmath", "asv_runner", "transformers"):
        pytest.importorskip(module)
    import measure

    assert list(figures.MEASURED) == [name for name in measure.GROUPS if name in figures.MEASURED]
    for name, group in measure.GROUPS.items():
        held = figures.MEASURED[name]
        assert (held["unit"], held["statistic"]) == (group.unit, group.statistic)
        assert {"command", "date", "machine", "versions", "rows"} < held.keys()
        numbers = [x for row in held["rows"].values() for x in row.values()]
        assert all(isinstance(x, float | int) for x in numbers)
