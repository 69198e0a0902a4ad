"""Check what a release holds, against what git tracks. Usage: check_dist.py [--bill BOM] FILE...

A wheel holds the two packages. In place of the sources of kernels for CPUs it holds the compiled
module, which fits the wheel's name, or the reason why there is none. An sdist holds all that is
tracked, so that whoever unpacks it can run the tests. The bill of materials names the wheel and
what it always installs.
"""

import argparse
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

ROOT = Path(__file__).parents[2]
KERNELS = "rope_xp_backends/cpu/"
MODULE = f"{KERNELS}_native.abi3.so"
MACHINES = {62: "x86_64", 183: "aarch64"}
"""The numbers in the head of an ELF file."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--bill", type=Path)
    parser.add_argument("files", nargs="+", type=Path)
    options = parser.parse_args(arguments)
    if options.bill is None:
        differ = [compare(file, *list_contents(file)) for file in options.files]
        return max(*differ, *(check_module(f) for f in options.files if "manylinux" in f.name))
    (wheel,) = options.files
    components = json.loads(options.bill.read_text())["components"]
    return compare(options.bill, {c["name"] for c in components}, list_installed(wheel))


def list_contents(file: Path) -> tuple[set[str], set[str]]:
    """Return what lies in a wheel or an sdist, and what has to."""
    if file.suffix == ".whl":
        names = {n for n in zipfile.ZipFile(file).namelist() if ".dist-info/" not in n}
        packages = list_tracked("rope_xp", "backends/rope_xp_backends")
        expected = {name.removeprefix("backends/") for name in packages}
        sources = {n for n in expected if n.startswith(KERNELS) and n.endswith((".cpp", ".h"))}
        pure = file.name.endswith("-py3-none-any.whl")
        return names, expected - sources | {f"{KERNELS}_native_missing.txt" if pure else MODULE}
    with tarfile.open(file) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    return names, list_tracked() | {"PKG-INFO"}


def check_module(wheel: Path) -> int:
    """Compare the processor and the version of glibc with those in the name of the wheel."""
    data = zipfile.ZipFile(wheel).read(MODULE)
    named = re.search(r"-cp311-abi3-manylinux_2_(\d+)_(\w+)\.whl$", wheel.name)
    machine = MACHINES.get(int.from_bytes(data[18:20], "little"))
    glibc = max(int(minor) for minor in re.findall(rb"GLIBC_2\.(\d+)", data))
    fits = named and machine == named[2] and glibc <= int(named[1]) and b"libstdc++" not in data
    print(f"{wheel.name}: {'' if fits else 'wrongly '}compiled for {machine}, glibc 2.{glibc}")
    return int(not fits)


def list_tracked(*folders: str) -> set[str]:
    command = ["git", "ls-files", "-z", *folders]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return set(filter(None, listed.stdout.split("\0")))


def list_installed(wheel: Path) -> set[str]:
    """Return the wheel's own name and those that it requires without an extra."""
    archive = zipfile.ZipFile(wheel)
    (file,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(file))
    always = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    return {metadata["Name"], *(re.match(r"[\w.-]+", required)[0] for required in always)}


def compare(file: Path, names: set[str], expected: set[str]) -> int:
    for name in sorted(names ^ expected):
        print(f"{'unexpected' if name in names else 'missing'} in {file.name}: {name}")
    print(f"{file.name}: {len(names)} names")
    return int(names != expected)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
