"""Compile the kernels for CPUs into the module rope_xp_backends.cpu._native.

hatchling calls NativeModule for a wheel. `python backends/build.py` compiles in place, next to the
sources. Without the module, calls take the portable path. So an install does not fail when a build
does: the reason is written to a file in the module's place. Windows has no pthreads, and so no
module. These environment variables are read:

CXX                   the compiler, with arguments. Else it is g++ or clang++, or zig without them.
ROPE_XP_BUILD         never: compile nothing. require: a wheel without the module is an error.
ROPE_XP_BUILD_TARGET  x86_64-manylinux_2_28 or aarch64-manylinux_2_28: by zig, on either machine.
"""

import importlib.util
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LOG = logging.getLogger(__name__)
PLACE = "rope_xp_backends/cpu"
MODULE = "_native.abi3.so"
REASON = "_native_missing.txt"
ZIG = [sys.executable, "-m", "ziglang", "c++"]
OLDEST = {"g++": 12, "clang++": 15}
"""The compilers that are looked for, and the first version of each that compiles the sources."""
PLAIN_UNITS = ("entry", "call", "slots", "exact", "signature", "arrays", "module")
"""Sources that are compiled once, for all instruction sets."""
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-fno-exceptions", "-fno-rtti"),
    *("-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-DNDEBUG"),
)


class NotBuilt(Exception):  # noqa: N818  # no error: the install goes on
    """Why there is no module."""


class Target(NamedTuple):
    """What is compiled for: the processor, the platform in a wheel's name, the compiler's flags."""

    machine: str
    tag: str
    flags: tuple[str, ...] = ()


class NativeModule(BuildHookInterface[BuilderConfig]):
    """Puts the module, or the reason why there is none, into a wheel."""

    def dependencies(self) -> list[str]:
        return ["ziglang"] if not find_obstacle() and choose_compiler() == ZIG else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sources = Path(self.root, "backends", PLACE)
        self.made = TemporaryDirectory(prefix="rope_xp-")  # hatchling reads it after this method
        folder = sources if version == "editable" else Path(self.made.name)
        reason = compile_or_say(sources, folder)
        if reason and os.environ.get("ROPE_XP_BUILD") == "require":
            self.made.cleanup()
            raise NotBuilt(reason)
        if reason:
            self.app.display_warning(f"rope_xp: no compiled kernels for CPUs: {reason}")
        if version != "editable":
            name = REASON if reason else MODULE
            build_data["force_include"][str(folder / name)] = f"{PLACE}/{name}"
            if not reason:
                build_data["pure_python"] = False
                build_data["tag"] = f"cp311-abi3-{find_target().tag}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        self.made.cleanup()


def compile_or_say(sources: Path, folder: Path) -> str:
    """Leave in a folder either the module or the reason why there is none, which is returned."""
    try:
        compile_module(sources, folder / MODULE, find_target())
    except (NotBuilt, OSError) as error:
        (folder / MODULE).unlink(missing_ok=True)  # an older one
        (folder / REASON).write_text(f"{error}\n", encoding="utf-8")
        return str(error)
    (folder / REASON).unlink(missing_ok=True)
    return ""


def find_obstacle() -> str:
    """Return why nothing is compiled here, or an empty string. Other reasons are compilers' own."""
    obstacles = {
        "ROPE_XP_BUILD=never": os.environ.get("ROPE_XP_BUILD") == "never",
        "Windows has no pthreads": sys.platform == "win32",
        "only CPython has the stable ABI": sys.implementation.name != "cpython",
        "32-bit Python": sys.maxsize < 2**32,
    }
    return next((why for why, holds in obstacles.items() if holds), "")


def find_target() -> Target:
    """Return what ROPE_XP_BUILD_TARGET asks for, or else this machine."""
    if name := os.environ.get("ROPE_XP_BUILD_TARGET"):
        if name not in ("x86_64-manylinux_2_28", "aarch64-manylinux_2_28"):
            raise NotBuilt(f"ROPE_XP_BUILD_TARGET={name} is not known")
        machine, _, libc = name.partition("-")
        return Target(machine, f"{libc}_{machine}", ("-target", f"{machine}-linux-gnu.2.28"))
    machine = platform.machine()  # on a Mac, a Python for both processors is named universal2
    tag = re.sub(r"[-.]", "_", sysconfig.get_platform()).replace("universal2", machine)
    return Target(machine, tag)


def choose_compiler() -> list[str]:
    """Return the command of $CXX, of a compiler on the path, or of zig."""
    if os.environ.get("ROPE_XP_BUILD_TARGET"):
        return ZIG
    if command := shlex.split(os.environ.get("CXX", "")):
        return command
    return next(([name] for name in OLDEST if read_version(name) >= OLDEST[name]), ZIG)


def read_version(compiler: str) -> int:
    """Return the first number of its version, 0 if it does not run."""
    try:
        return int(run([compiler, "-dumpversion"]).partition(".")[0])
    except (NotBuilt, ValueError):
        return 0


def compile_module(sources: Path, module: Path, target: Target) -> None:
    """Compile the sources, and replace the module at once, as a process may have it open."""
    if obstacle := find_obstacle():
        raise NotBuilt(obstacle)
    compiler = choose_compiler()
    if compiler == ZIG and importlib.util.find_spec("ziglang") is None:
        oldest = " or ".join(f"{name} {version}" for name, version in OLDEST.items())
        raise NotBuilt(f"no C++ compiler: neither {oldest} or later, nor the package ziglang")
    common = [*compiler, *target.flags, *FLAGS, "-I", sysconfig.get_path("include"), "-c"]
    linking = [*compiler, *target.flags, "-shared", "-pthread", *list_link_flags(compiler, target)]
    with TemporaryDirectory(prefix="rope_xp-") as work:
        objects, commands = [], []
        for number, unit in enumerate(list_units(target.machine, compiler)):
            objects.append(str(Path(work, f"{number}.o")))
            commands.append([*common, *unit, "-o", objects[-1]])
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
            list(pool.map(partial(run, folder=sources, caches=work), commands))
        linked = Path(work, MODULE)
        run([*linking, *objects, "-o", str(linked)], sources, work)
        new = module.with_suffix(".new")
        shutil.copy(linked, new)
        new.replace(module)


def list_units(machine: str, compiler: list[str]) -> Iterator[list[str]]:
    """List the sources with their own flags, what takes longest first.

    No path is among them, so that the folder changes no byte.
    """
    zig = is_zig(compiler)  # which spells names of processors in its own way
    if machine in ("x86_64", "amd64"):
        dash = "_" if zig else "-"
        for n in (2, 3, 4):
            yield ["rotate.cpp", f"-DLEVEL={n}", f"-march=x86{dash}64{dash}v{n}"]
        yield ["rotate.cpp", "-DLEVEL=5", f"-march=x86{dash}64{dash}v4", "-mavx512bf16"]
        baseline = [f"-march=x86{dash}64"]
    else:
        baseline = ["-mcpu=baseline"] if zig else []  # zig compiles for the processor it runs on
        yield ["rotate.cpp", "-DLEVEL=0", *baseline]
    for name in PLAIN_UNITS:
        yield [f"{name}.cpp", *baseline]


def is_zig(compiler: list[str]) -> bool:
    """Return whether a command is zig's, by whatever path it is called."""
    return any(Path(part).name.startswith("zig") for part in compiler)


def list_link_flags(compiler: list[str], target: Target) -> list[str]:
    """List what leaves out the C++ library, and what would differ from build to build."""
    if target.tag.startswith("macosx"):
        return ["-undefined", "dynamic_lookup"]
    without = "-nostdlib++" if is_zig(compiler) else "-Wl,--as-needed"  # g++ 12 lacks the option
    return [without, "-Wl,--build-id=none", "-s"]


def run(command: list[str], folder: Path | None = None, caches: str | None = None) -> str:
    """Run a compiler and return what it prints. If it fails, its first error is the reason."""
    zig = {f"ZIG_{name}_CACHE_DIR": caches for name in ("GLOBAL", "LOCAL") if caches}
    env = {**zig, **os.environ, "LC_ALL": "C"}  # errors in English
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, check=False, capture_output=True, text=True
        )
    except OSError as error:
        raise NotBuilt(f"{command[0]}: {error.strerror}") from error
    if done.stderr:
        LOG.info(done.stderr)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
        lines = lines or done.stderr.splitlines() or [f"exit status {done.returncode}"]
        raise NotBuilt(f"{Path(command[0]).name}: {lines[0].strip()}")
    return done.stdout


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")  # of compilers, in full
    place = Path(__file__).resolve().parent / PLACE
    sys.exit(compile_or_say(place, place) or 0)
