"""backends/build.py: what it compiles with, and what an install gets when that fails."""

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("build_kernels", ROOT / "backends" / "build.py")
build = importlib.util.module_from_spec(spec)
spec.loader.exec_module(build)

SOURCES = {
    "rotate.cpp": "namespace { volatile int level = LEVEL; }\n",
    **{f"{name}.cpp": "namespace { volatile int unit; }\n" for name in build.PLAIN_UNITS},
    "module.cpp": """#define Py_LIMITED_API 0x030B0000
#include <Python.h>
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", __FILE__, 0, 0, 0, 0, 0, 0};
PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&module); }
""",
}


@pytest.fixture(autouse=True)
def _no_wishes(monkeypatch):
    for name in ("CXX", "ROPE_XP_BUILD", "ROPE_XP_BUILD_TARGET"):
        monkeypatch.delenv(name, raising=False)


def make_hook() -> build.NativeModule:
    return build.NativeModule(str(ROOT), {}, None, None, "", "wheel")


def write(folder: Path, sources: dict[str, str]) -> None:
    folder.mkdir(exist_ok=True)
    for name, text in sources.items():
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("compilers", "expected"),
    [
        ({"g++": "echo 12", "clang++": "echo 19.1.7"}, ["g++"]),
        ({"g++": "echo 11", "clang++": "echo 15.0.7"}, ["clang++"]),
        ({"g++": "echo 11", "clang++": "echo 14.0.6"}, build.ZIG),
        ({"clang++": "exit 1"}, build.ZIG),  # Apple's, where no compiler is installed
    ],
)
def test_the_first_compiler_that_is_new_enough_is_taken(tmp_path, monkeypatch, compilers, expected):
    monkeypatch.setenv("PATH", str(tmp_path))
    write(tmp_path, {name: f"#!/bin/sh\n{command}\n" for name, command in compilers.items()})
    for name in compilers:
        (tmp_path / name).chmod(0o755)
    assert build.choose_compiler() == expected
    assert make_hook().dependencies() == ["ziglang"] * (expected == build.ZIG)


def test_cxx_wins_and_targets_of_releases_need_zig(monkeypatch):
    monkeypatch.setenv("CXX", "ccache 'my g++' -m64")
    assert build.choose_compiler() == ["ccache", "my g++", "-m64"]
    monkeypatch.setenv("ROPE_XP_BUILD_TARGET", "aarch64-manylinux_2_28")
    assert build.choose_compiler() == build.ZIG
    flags = ("-target", "aarch64-linux-gnu.2.28")
    assert build.find_target() == ("aarch64", "manylinux_2_28_aarch64", flags)
    units = list(build.list_units("aarch64", build.ZIG))
    plain = [[f"{name}.cpp", "-mcpu=baseline"] for name in build.PLAIN_UNITS]
    assert units == [["rotate.cpp", "-DLEVEL=0", "-mcpu=baseline"], *plain]


def test_a_wheel_is_named_for_the_machine(monkeypatch):
    monkeypatch.setattr(build.sysconfig, "get_platform", lambda: "macosx-11.0-arm64")
    monkeypatch.setattr(build.platform, "machine", lambda: "arm64")
    assert build.find_target() == ("arm64", "macosx_11_0_arm64", ())


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("CXX", "false", "false: exit status 1"),
        ("CXX", "sh -c 'echo why >&2; exit 3'", "sh: why"),
        ("CXX", "no-such-compiler -O3", "no-such-compiler: No such file or directory"),
        ("ROPE_XP_BUILD", "never", "ROPE_XP_BUILD=never"),
        ("ROPE_XP_BUILD_TARGET", "mips", "ROPE_XP_BUILD_TARGET=mips is not known"),
    ],
)
def test_without_a_module_the_wheel_is_pure(monkeypatch, capfd, variable, value, reason):
    monkeypatch.setenv(variable, value)
    hook, data = make_hook(), {"pure_python": True, "force_include": {}}
    hook.initialize("standard", data)
    ((file, name),) = data.pop("force_include").items()
    assert name == "rope_xp_backends/cpu/_native_missing.txt"
    assert Path(file).read_text() == f"{reason}\n"
    assert data == {"pure_python": True}
    assert f"no compiled kernels for CPUs: {reason}\n" in "".join(capfd.readouterr())
    hook.finalize("standard", data, "")
    if variable != "ROPE_XP_BUILD":
        monkeypatch.setenv("ROPE_XP_BUILD", "require")
        with pytest.raises(build.NotBuilt, match=reason):
            make_hook().initialize("standard", data)


@pytest.mark.skipif(build.choose_compiler() == build.ZIG, reason="neither g++ nor clang++ is here")
def test_a_module_has_the_same_bytes_from_every_folder(tmp_path):
    folders = [tmp_path / "a", tmp_path / "another"]
    for folder in folders:
        write(folder, {**SOURCES, build.REASON: "an older build"})
        assert build.compile_or_say(folder, folder) == ""
        assert {file.name for file in folder.iterdir()} == {*SOURCES, build.MODULE}
    first, second = ((folder / build.MODULE).read_bytes() for folder in folders)
    assert first == second
    command = [sys.executable, "-c", "import _native; print(_native.__doc__)"]
    assert build.run(command, folder) == "module.cpp\n"

    write(folder, {"rotate.cpp": "int f( {\n"})  # an error, after which nothing old is left
    assert "rotate.cpp:1:" in build.compile_or_say(folder, folder)
    assert {file.name for file in folder.iterdir()} == {*SOURCES, build.REASON}
