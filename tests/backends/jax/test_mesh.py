"""Shardings of jax pass through a rotation, and nothing moves between devices."""

from __future__ import annotations

import pytest
from support.programs import printed

pytest.importorskip("jax")


@pytest.mark.parametrize("path", ["jit", "jit-gpu"])
def test_on_eight_devices(path: str) -> None:
    # The number of devices is fixed when jax starts, and warnings are errors there too.
    found = printed("meshes.py", path, options=("-W", "error"))
    count, *rest = found.split(maxsplit=1)
    assert rest == ["cases\n"], found
    assert int(count) > 800
