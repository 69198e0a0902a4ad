"""What .ci/run reads the built reference with notices a name that Sphinx left out."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import check_reference

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text("utf-8")


def built(names: list[str]) -> str:
    return "".join(f'<dt class="sig" id="{name}"></dt>' for name in names)


@pytest.mark.parametrize(
    "name",
    [
        "rope_xp.apply",
        "rope_xp.integrations.transformers.check",
        "rope_xp.integrations.transformers.patch",
        "rope_xp.integrations.diffusers.Positions.__call__",
        "rope_xp.layers.torch.Rotary",
        "rope_xp.layers.torch.Rotary.forward",
        "rope_xp.testing.identify",
        "rope_xp.scaling.YaRN",
    ],
)
def test_a_name_that_is_missing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = check_reference.documented(API)
    page = tmp_path / "api.html"
    page.write_text(built(names), "utf-8")
    assert check_reference.main(str(ROOT / "docs" / "api.md"), str(page)) == 0
    page.write_text(built([each for each in names if each != name]), "utf-8")
    assert check_reference.main(str(ROOT / "docs" / "api.md"), str(page)) == 1
    assert f"lacks {name}\n" in capsys.readouterr().out


def test_a_source_without_names_is_no_success(tmp_path: Path) -> None:
    page = tmp_path / "empty.md"
    page.write_text("# Nothing\n", "utf-8")
    assert check_reference.main(str(page), str(page)) == 1
