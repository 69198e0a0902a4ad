"""What .ci/run reads the built reference with notices a name that Sphinx left out."""

from pathlib import Path

import pytest
from support import check_reference

ROOT = Path(__file__).parents[2]
API = (ROOT / "docs" / "api.md").read_text("utf-8")


@pytest.mark.parametrize(
    "name",
    ["rope_xp.apply", "rope_xp.layers.torch.Rotary.forward", "rope_xp.scaling.YaRN"],
)
def test_a_name_that_is_missing(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, names = tmp_path / "api.html", check_reference.list_names(API)
    for kept_names, status in ((names, 0), ([n for n in names if n != name], 1)):
        page.write_text("".join(f'<dt class="sig" id="{n}"></dt>' for n in kept_names), "utf-8")
        assert check_reference.main(str(ROOT / "docs" / "api.md"), str(page)) == status
    assert f"lacks {name}\n" in capsys.readouterr().out


def test_a_source_without_names_is_no_success(tmp_path: Path) -> None:
    page = tmp_path / "empty.md"
    page.write_text("# Nothing\n", "utf-8")
    assert check_reference.main(str(page), str(page)) == 1
