"""Plant faults in a copy of the tree, one at a time, and name those that no test notices.

    python tests/support/plant.py [WORD]

All faults of faults.py, or those whose file or tests have the word in them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.faults import FAULTS, Fault  # noqa: E402  # found by the line above

PASSED, FAILED = 0, 1  # pytest's; a process that crashes has a negative status


def copied(to: Path) -> Path:
    """Copy what git has of the tree, as it is now."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, check=True, cwd=ROOT, capture_output=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, to / name)
    return to


def status(tree: Path, tests: Iterable[str]) -> int:
    """Run tests of a tree, in one process and without its caches; return pytest's status."""
    paths = os.pathsep.join([str(tree), str(tree / "backends")])
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-qx", "-n", "0", "-p", "no:cacheprovider", *tests],
        check=False,
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths, "ROPE_XP_KERNEL_CACHE": "0"},
        capture_output=True,
        text=True,
    )
    if done.returncode > FAILED:
        raise SystemExit(f"pytest cannot run {tests}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.returncode


def noticed(tree: Path, fault: Fault) -> bool:
    """Return whether a test fails while the fault is there."""
    file = tree / fault.file
    sound = file.read_text(encoding="utf-8")
    file.write_text(sound.replace(fault.old, fault.new), encoding="utf-8")
    try:
        return status(tree, fault.tests.split()) != PASSED
    finally:
        file.write_text(sound, encoding="utf-8")


def main(word: str = "") -> None:
    faults = [fault for fault in FAULTS if word in fault.file or word in fault.tests]
    with tempfile.TemporaryDirectory() as made:
        tree = copied(Path(made))
        if status(tree, dict.fromkeys(" ".join(fault.tests for fault in faults).split())) != PASSED:
            raise SystemExit("a test fails without any fault")
        missed = 0
        for fault in faults:
            found = noticed(tree, fault)
            missed += not found
            print("noticed" if found else "NOT NOTICED", fault.file, repr(fault.new), flush=True)
    if missed:
        raise SystemExit(f"{missed} of {len(faults)} faults are not noticed")


if __name__ == "__main__":
    main(*sys.argv[1:])
