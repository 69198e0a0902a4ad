"""Versions of libraries: what an older one than those tested is told."""

import sys
from types import SimpleNamespace

import pytest

from rope_xp import MissingBackendError
from rope_xp._core import versions


@pytest.mark.parametrize(
    ("version", "is_old"),
    [
        ("2.5.1+cu124", True),
        ("1.13", True),
        ("2.6.0", False),
        ("2.13.0a0+git1", False),
        ("3", False),
        ("unknown", False),
    ],
)
def test_an_old_version_is_named_beside_the_lowest(
    version: str, is_old: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))  # type: ignore[arg-type]  # no module
    if is_old:
        with pytest.raises(
            MissingBackendError, match=rf"torch {version[:3]}.* needs 2\.6 or later"
        ):
            versions.check_version("torch")
    else:
        versions.check_version("torch")
