"""python -m rope_xp: info, arguments, and a start in any folder."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
from rope_xp_backends.cpu import native
from support import programs
from support.inspected import REAL

import rope_xp
from rope_xp import __main__ as cli
from rope_xp._dispatch import find


def test_info_as_json_lists_libraries_and_paths(capsys):
    assert cli.main(["info", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {library.name for library in find.libraries} <= set(report["libraries"])
    assert report["libraries"]["numpy"] == {
        "version": np.__version__,
        "problem": None,
        "devices": ["cpu"],
        "lowest": "2.0",
        "paths": {"native": native.MISSING, "chunked": None, "portable": None},
    }


def test_info_names_a_forced_path_that_does_not_exist(monkeypatch, capsys):
    monkeypatch.setenv("ROPE_XP_PATH", "warp")
    assert cli.main(["info"]) == 0
    printed = capsys.readouterr().out
    assert "there is no path 'warp'" in printed
    assert re.search(rf"^rope_xp: +{re.escape(rope_xp.__version__)}$", printed, re.MULTILINE)


@pytest.mark.parametrize("arguments", ["", "dance", "demo --tokens 0"])
def test_arguments_that_a_command_does_not_take_print_its_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments.split())
    assert stop.value.code == 2
    command = arguments.partition(" ")[0].replace("dance", "")
    assert f"usage: python -m rope_xp {command}" in capsys.readouterr().err


def test_python_m_in_a_folder_runs_no_file_of_it(tmp_path):
    for name in ("numpy", "argparse", "array_api_compat"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "config.json").write_text(json.dumps(REAL["deepseek_v3"]))
    command = [sys.executable, "-m", "rope_xp", "inspect", "."]
    paths = os.pathsep.join((str(programs.ROOT), str(programs.ROOT / "backends")))
    environment = programs.environment(PYTHONPATH=paths)
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_each_command_says_what_it_does(name, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([name, "--help"])
    assert stop.value.code == 0
    summary, out = cli.COMMANDS[name].__doc__.partition("\n")[0], capsys.readouterr().out
    assert summary in " ".join(out.split())
