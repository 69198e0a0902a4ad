"""What .ci/run reads built pages with notices whatever a browser would fetch from a network."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import check_html

AFAR = "https://cdn.example.org/x"
FETCHING = (
    f'<script async src="{AFAR}"></script>',
    '<script src="//cdn.example.org/x"></script>',
    f'<link rel="stylesheet" href="{AFAR}">',
    f'<link rel="preconnect" href="{AFAR}">',
    f'<link href="{AFAR}" rel="shortcut icon">',
    f'<img alt="" src="{AFAR}">',
    f'<img src="x.png" srcset="y.png 1x, {AFAR} 2x">',
    f'<svg><image href="{AFAR}"/></svg>',
    f'<iframe src="{AFAR}"></iframe>',
    f"<style>@font-face {{ src: url({AFAR}) }}</style>",
    f'<style>@import "{AFAR}";</style>',
    f"<p style=\"background: url('{AFAR}')\"></p>",
)
STYLES = (f'@import "{AFAR}";', f"a {{ b: url( '{AFAR}' ) }}")
NOT_FETCHING = (
    f'<a href="{AFAR}">words</a>',
    f'<link rel="canonical" href="{AFAR}">',
    '<script src="_static/x.js"></script>',
    '<img src="data:image/png;base64,AA//">',
    '<svg xmlns="http://www.w3.org/2000/svg"><use xlink:href="#m"/></svg>',
    f"<code>url({AFAR})</code>",
)


@pytest.mark.parametrize(
    ("text", "suffix", "status"),
    [
        *((text, "html", 1) for text in FETCHING),
        *((text, "html", 0) for text in NOT_FETCHING),
        *((text, "css", 1) for text in STYLES),
    ],
)
def test_what_is_fetched(
    text: str, suffix: str, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "index.html").write_text("<p>", "utf-8")
    (tmp_path / f"x.{suffix}").write_text(text, "utf-8")
    assert check_html.main(str(tmp_path)) == status
    assert (f"x.{suffix} fetches" in capsys.readouterr().out) == bool(status)


def test_a_folder_without_pages_is_no_success(tmp_path: Path) -> None:
    assert check_html.main(str(tmp_path)) == 1
