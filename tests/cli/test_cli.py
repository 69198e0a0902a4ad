"""python -m rope_xp: info, arguments, and what reaches the terminal, the network and the shell."""

import json
import os
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from rope_xp_backends.cpu import native
from support import programs
from support.inspected import GOLDEN, LLAMA

import rope_xp
from rope_xp import RopeError
from rope_xp import __main__ as cli
from rope_xp._cli.isolation import isolate
from rope_xp._dispatch import find

DEEPSEEK = GOLDEN / "configs" / "deepseek_v3.json"  # whose report imports no transformers


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
    assert f"rope_xp: {rope_xp.__version__}\n" in printed


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
    (tmp_path / "config.json").write_text(DEEPSEEK.read_text())
    command = [sys.executable, "-m", "rope_xp", "inspect", "."]
    paths = os.pathsep.join((str(programs.ROOT), str(programs.ROOT / "backends")))
    environment = programs.environment(PYTHONPATH=paths)
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}], ids=str)
def test_command_whose_reader_goes_away_ends_as_by_sigpipe(unbuffered):
    command = [sys.executable, "-W", "error", "-m", "rope_xp", "inspect", str(DEEPSEEK)]
    # Unbuffered, printing fails before the end; argparse would ignore the error of its own.
    env = {key: x for key, x in os.environ.items() if key != "PYTHONUNBUFFERED"} | unbuffered
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=env) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(300) == 141  # as a shell reports SIGPIPE


# A title, colours, C1 controls, lines of one's own, text from right to left, and half a character.
STEERING = "\x1b]0;title\x07\x1b[2J\x9b31m\x7f\r\nsuspicious: nothing\u202e\u2028\ud800"
NAMES = {
    "a model type": {**LLAMA, "model_type": STEERING},
    "a layer type": {**LLAMA, "rope_scaling": {STEERING: {"rope_type": "default"}}},
    "a rotary parameter": {**LLAMA, "rope_scaling": {"rope_type": "linear", STEERING: 1}},
    "a key": {**LLAMA, f"rope_{STEERING}": 1},
    "a value": {**LLAMA, "rope_local_base_freq": STEERING},
    "a part": {"model_type": "clip", STEERING: LLAMA},
}


@pytest.mark.parametrize("command", [["inspect"], ["check"], ["inspect", "--json"]], ids=" ".join)
@pytest.mark.parametrize("name", NAMES)
def test_names_and_values_of_a_file_steer_no_terminal(name, command, tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps(NAMES[name]))
    cli.main([*command, str(file), "--layout", "half"])
    out, err = capsys.readouterr()
    assert not [c for c in out + err if not (c.isprintable() or c == "\n")]
    assert out.count("\nsuspicious:") <= 1
    if out and "--json" in command:
        json.loads(out)


def test_names_of_files_steer_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    name = STEERING.replace("\ud800", "\udcff")  # a byte that is no UTF-8
    Path(name).write_text("{")
    for arguments in (["inspect", name], ["check", name], ["inspect", f"no-{name}"]):
        assert cli.main(arguments) == 1
    with pytest.raises(SystemExit):
        cli.main(["inspect", "config.json", name])  # one argument too many, such as by inspect *
    printed = "".join(capsys.readouterr())
    assert not [c for c in printed if not (c.isprintable() or c == "\n")]
    assert printed.count("title") >= 4


def test_long_texts_of_a_file_are_cut(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "rope_" + "x" * 10**6: 1}))
    assert cli.main(["inspect", str(file)]) == 0
    assert 4000 < len(capsys.readouterr().out) < 8000


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--version"], f"rope-xp {rope_xp.__version__}\n"),
        (["--help"], "usage: rope-xp [-h] [--version] COMMAND"),
        *(
            ([name, "--help"], cli.COMMANDS[name].__doc__.partition("\n")[0])
            for name in cli.COMMANDS
        ),
    ],
)
def test_script_rope_xp_prints_its_version_and_help(arguments, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/rope-xp", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 0
    assert expected in capsys.readouterr().out
    project = tomllib.loads((programs.ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"rope-xp": f"{cli.main.__module__}:main"}


@pytest.mark.parametrize("event", ["socket.connect", "open"])
def test_isolate_rejects_network_and_pickles_until_it_ends(event, tmp_path, capsys):
    (tmp_path / "model.bin").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def ask():
            print("something")
            if event == "open":
                (tmp_path / "model.bin").read_bytes()
            else:
                with socket.socket() as client:
                    client.connect(server.getsockname())

        with isolate(), pytest.raises(RopeError, match=f"network and no pickle; rejected {event}"):
            ask()
        assert capsys.readouterr().out == ""
        ask()
