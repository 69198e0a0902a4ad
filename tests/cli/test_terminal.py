"""python -m rope_xp in a terminal of 80 columns, and before a reader that goes away."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import golden
from support.exhaustive import exhaustive
from support.terminals import raw, shown, without_colours

import rope_xp
from rope_xp.__main__ import COMMANDS, main
from rope_xp._cli import info

PHI3 = str(Path(golden.__path__[0]) / "configs" / "phi_3_mini_128k.json")
FEW = ("--tokens", "16", "--repeat", "1", "--backend", "numpy")
MUCH = {
    "info": ("info",),
    "demo": ("demo", *FEW),
    "inspect": ("inspect", PHI3),
    "check": ("check", PHI3),
    "bench": ("bench", *FEW),
    "help": ("--help",),
}
"""Calls whose output is for people or programs to read on; plot prints a name alone."""


def start(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "rope_xp", *arguments]
    pipe = subprocess.PIPE
    # Unbuffered, argparse would see the error of its own writing, and pass over it.
    env = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env)


@pytest.mark.parametrize(
    "name",
    [exhaustive(name) if name == "info" else name for name in MUCH],  # imports every library
)
def test_a_reader_that_goes_away(name: str) -> None:
    assert {*COMMANDS} - {*MUCH} == {"plot"}
    process = start(*MUCH[name])
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert process.wait(300) == 141  # as a shell reports SIGPIPE
    process.stderr.close()


def test_a_reader_that_goes_away_amid_the_output() -> None:
    """More than a pipe holds, so that printing fails before the end."""
    code = f"from rope_xp.__main__ import main\nfor _ in range(99): s = main(['inspect', {PHI3!r}])"
    command = f'{sys.executable} -c "{code}\nraise SystemExit(s)" | head -1'
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("model type: phi3\n", "")


def test_version() -> None:
    process = start("--version")
    printed, _ = process.communicate(timeout=300)
    assert printed == f"rope-xp {rope_xp.__version__}\n"
    assert process.returncode == 0


def test_the_script_is_called_by_its_own_name(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["/usr/bin/rope-xp", "--help"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("usage: rope-xp [-h] [--version] COMMAND")


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", *FEW),
        ("check", PHI3),
        ("check", "json:dumps"),
        ("inspect", "no/such-model"),
        ("--help",),
        *((name, "--help") for name in COMMANDS),
    ],
    ids=" ".join,
)
def test_lines_fit_80_columns(arguments: tuple[str, ...]) -> None:
    lines = shown("-m", "rope_xp", *arguments).splitlines()
    assert len(lines) > 0
    assert [line for line in lines if len(line) > 80] == []


def test_info_fits_80_columns(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Here and not in a process of its own, which would import every library anew."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    reason = "a reason of more words than fit beside the name of its path, " * 2
    here = info._library_report(
        version="1.0", devices=["cpu"], paths={"fast": reason, "portable": None}
    )
    monkeypatch.setattr(info, "_describe_library", lambda row: here)
    assert main(["info"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("more words than") for line in lines)
    assert [line for line in lines if len(line) > 80] == []


def test_progress_is_shown_in_a_terminal_and_cleared() -> None:
    status, seen = raw("-m", "rope_xp", "demo", *FEW)
    assert status == 0
    assert "\x1b[K1 of 2: numpy:cpu from position 0\r\x1b[K2 of 2" in seen
    assert re.search(r"from +error +formula's +time +x the formula", without_colours(seen))


WITHOUT = """
import sys
sys.modules["llvmlite"] = None
from rope_xp.__main__ import main
raise SystemExit(main(["demo", "--tokens", "16", "--repeat", "1", "--backend", "numpy"]))
"""


def test_demo_says_first_what_would_make_it_faster() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True, timeout=300
    )
    first, *_ = done.stdout.splitlines()
    assert first == (
        "slower than it need be: llvmlite is not installed (pip install 'rope-xp[llvmlite]')"
    )


def test_info_says_first_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = info._library_report(problem="not installed (pip install x)")
    here = info._library_report(version="1.0", devices=["cpu"])
    monkeypatch.setattr(
        info, "_describe_library", lambda row: missing if row.name == "cupy" else here
    )
    names = [name for name, _ in info._lines(info.collect())]
    assert names.index("cupy") < names.index("numpy")
