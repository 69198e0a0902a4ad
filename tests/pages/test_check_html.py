"""What .ci/run reads built pages with notices whatever a browser would fetch from a network."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "tools"))

import check_html  # its folder was put on the path above

AFAR = "https://cdn.example.org/x"
CASES = [
    ("html", f'<script async src="{AFAR}"></script>', 1),
    ("html", f'<img src="x.png" srcset="y.png 1x, {AFAR} 2x">', 1),
    ("html", f"<style>@font-face {{ src: url({AFAR}) }}</style>", 1),
    ("css", f'@import "{AFAR}";', 1),
    ("html", f'<a href="{AFAR}">words</a>', 0),
    ("html", '<img src="data:image/png;base64,AA//">', 0),
    ("html", '<svg xmlns="http://www.w3.org/2000/svg"><use xlink:href="#m"/></svg>', 0),
]


@pytest.mark.parametrize(("suffix", "text", "status"), CASES)
def test_html_that_fetches_from_a_network_is_found(suffix, text, status, tmp_path, capsys):
    (tmp_path / "index.html").write_text("<p>", "utf-8")
    (tmp_path / f"x.{suffix}").write_text(text, "utf-8")
    assert check_html.main(str(tmp_path)) == status
    assert (f"x.{suffix} fetches" in capsys.readouterr().out) == bool(status)
