"""The tests of the layer of Keras once more, in a process whose keras has the other backend."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import support.layers  # noqa: F401  # which chooses a backend
from support.programs import ROOT, environment

HERE = Path(__file__).parent


@pytest.mark.exhaustive
def test_the_other_backend_of_keras() -> None:
    pytest.importorskip("keras")
    backend = {"torch": "jax", "jax": "torch"}[os.environ["KERAS_BACKEND"]]
    pytest.importorskip(backend)
    files = [str(HERE / name) for name in ("test_layers.py", "test_keras.py")]
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-k", "keras", *files],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
        env=environment(KERAS_BACKEND=backend),
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    assert " passed" in done.stdout
