"""What python -m rope_xp prints of strangers' files, and with a reader that goes away."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.inspected import GOLDEN, LLAMA
from support.programs import ROOT

import rope_xp
from rope_xp.__main__ import main

DEEPSEEK = str(GOLDEN / "configs" / "deepseek_v3.json")  # whose report imports no transformers


@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}], ids=str)
def test_command_whose_reader_goes_away_ends_as_by_sigpipe(unbuffered):
    command = [sys.executable, "-W", "error", "-m", "rope_xp", "inspect", DEEPSEEK]
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
    main([*command, str(file), "--layout", "half"])
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
        assert main(arguments) == 1
    with pytest.raises(SystemExit):
        main(["inspect", "config.json", name])  # one argument too many, such as by inspect *
    printed = "".join(capsys.readouterr())
    assert not [c for c in printed if not (c.isprintable() or c == "\n")]
    assert printed.count("title") >= 4


def test_long_texts_of_a_file_are_cut(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**LLAMA, "rope_" + "x" * 10**6: 1}))
    assert main(["inspect", str(file)]) == 0
    assert 4000 < len(capsys.readouterr().out) < 8000


@pytest.mark.parametrize(
    ("argument", "start"),
    [("--help", "usage: rope-xp [-h] [--version] COMMAND"), ("--version", None)],
)
def test_script_rope_xp_prints_its_help_and_version(argument, start, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/rope-xp", argument])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith(start or f"rope-xp {rope_xp.__version__}\n")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"rope-xp": f"{main.__module__}:main"}
