"""How tests run the programs beside them, which need a process of their own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
TESTS = HERE.parent
ROOT = TESTS.parent


def environment(**more: str) -> dict[str, str]:
    """Return this environment, in which a process finds rope_xp and the modules of the tests."""
    paths = [str(ROOT), str(ROOT / "backends"), str(TESTS), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)} | more


def printed(name: str | Path, *arguments: object, options: Sequence[str] = (), **more: str) -> str:
    """Return what a program prints, given options of Python and more of the environment."""
    return run(*options, HERE / name, *arguments, **more)


def run(*arguments: object, **more: str) -> str:
    """Return what Python prints, given arguments such as "-c" and more of the environment."""
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=environment(**more),
    )
    assert done.returncode == 0, f"{done.returncode}: {done.stderr[-8000:]}"
    return done.stdout
