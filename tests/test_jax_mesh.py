"""Shardings of jax pass through a rotation, and nothing moves between devices."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("jax")

HERE = Path(__file__).parent


@pytest.mark.parametrize("path", ["jit", "jit-gpu"])
def test_on_eight_devices(path: str) -> None:
    # The number of devices is fixed when jax starts, and warnings are errors there too.
    done = subprocess.run(
        [sys.executable, "-W", "error", str(HERE / "meshes.py"), path],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    count, *rest = done.stdout.split(maxsplit=1)
    assert rest == ["cases\n"], done.stdout
    assert int(count) > 800
