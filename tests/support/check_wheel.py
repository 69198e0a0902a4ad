"""Check what a wheel holds: the two packages, and nothing else. Usage: check_wheel.py WHEEL."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main(wheel: str) -> int:
    names = {n for n in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in n}
    tracked = subprocess.run(
        ["git", "ls-files", "rope_xp", "backends/rope_xp_backends"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    expected = {name.removeprefix("backends/") for name in tracked}
    for name in sorted(names ^ expected):
        print(f"{'unexpected' if name in names else 'missing'} in the wheel: {name}")
    print(f"{Path(wheel).name}: {len(names)} files")
    return int(names != expected)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
