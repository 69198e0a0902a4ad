"""A plugin of pytest by which tests run a native module that checks itself, of :func:`build`."""

import importlib.util
import os
import subprocess
import sys
import sysconfig

from support.programs import ROOT

NAME = "rope_xp_backends.cpu._native"
FLAGS = ("-std=c++17", "-O0", "-g1", "-fPIC", "-fno-exceptions", "-fno-rtti", "-fno-math-errno")
KERNELS = {"0": (), "2": ("-march=x86-64-v2",), "3": ("-march=x86-64-v3",)}
"""Wider vectors take twice as long to compile."""


def build(folder, sanitizer, level):
    """Return the environment of processes that use the module, with kernels of one level alone."""
    common = ["g++", *FLAGS, "-ffp-contract=off", f"-fsanitize={sanitizer}"]
    common += ["-fno-sanitize-recover=all", f"-I{sysconfig.get_path('include')}"]
    common += [f"-Drope_xp_kernels_{i}=rope_xp_kernels_{level}" for i in (2, 3, 4, 5)]
    sources = ROOT / "backends" / "rope_xp_backends" / "cpu"
    plain = {path.stem: () for path in sources.glob("*.cpp") if path.stem != "rotate"}
    units = {"rotate": (f"-DLEVEL={level}", *KERNELS[level]), **plain}
    started = [
        subprocess.Popen(
            [*common, *flags, "-c", sources / f"{name}.cpp", "-o", folder / f"{name}.o"]
        )
        for name, flags in units.items()
    ]
    assert not any(process.wait(500) for process in started)
    made, objects = folder / "_native.abi3.so", [folder / f"{name}.o" for name in units]
    subprocess.run([*common, "-shared", "-pthread", *objects, "-o", made], check=True)
    library = f"lib{sanitizer[0]}san.so"  # which asks to be the first
    # libstdc++ too, or the exceptions of torch, which is loaded later, are no exceptions to it.
    first = " ".join(map(_find, (library, "libstdc++.so.6")))
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return {"ROPE_XP_SANITIZED": str(made), "LD_PRELOAD": first, **options}


def _find(library):
    find = ["g++", f"-print-file-name={library}"]
    return subprocess.run(find, check=True, capture_output=True, text=True).stdout.strip()


if file := os.environ.get("ROPE_XP_SANITIZED"):
    spec = importlib.util.spec_from_file_location(NAME, file)
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
