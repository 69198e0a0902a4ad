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
    made, started = folder / "_native.abi3.so", {}
    for source in (ROOT / "backends" / "rope_xp_backends" / "cpu").glob("*.cpp"):
        flags = (f"-DLEVEL={level}", *KERNELS[level]) if source.stem == "rotate" else ()
        unit = folder / f"{source.stem}.o"
        started[unit] = subprocess.Popen([*common, *flags, "-c", source, "-o", unit])
    assert not any(process.wait(500) for process in started.values())
    subprocess.run([*common, "-shared", "-pthread", *started, "-o", made], check=True)
    # The sanitizer asks to be the first. libstdc++ too, or the exceptions of torch, which is loaded
    # later, are no exceptions to it.
    find = [[f"-print-file-name={name}"] for name in (f"lib{sanitizer[0]}san.so", "libstdc++.so.6")]
    first = [subprocess.check_output(["g++", *name], text=True).strip() for name in find]
    options = {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return {"ROPE_XP_SANITIZED": str(made), "LD_PRELOAD": " ".join(first), **options}


if file := os.environ.get("ROPE_XP_SANITIZED"):
    spec = importlib.util.spec_from_file_location(NAME, file)
    sys.modules[NAME] = importlib.util.module_from_spec(spec)
