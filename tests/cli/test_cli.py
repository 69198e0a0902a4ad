"""python -m rope_xp: info and demo."""

import json
import os
import re
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from rope_xp_backends.cpu import native
from support import programs
from support.inspected import REAL

import rope_xp
from rope_xp import __main__ as cli
from rope_xp._bench import targets
from rope_xp._cli import demo
from rope_xp._dispatch import find

FEW = ["demo", "--tokens", "8", "--repeat", "1"]


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


@pytest.mark.slow
def test_demo_runs_on_every_library_within_the_bound(capsys):
    assert cli.main(["demo", "--tokens", "600", "--repeat", "1", "--json"]) == 0
    outcome = json.loads(capsys.readouterr().out)
    assert outcome["problems"] == []
    ran = {row["target"] for row in outcome["rows"]}
    absent = {skipped["target"] for skipped in outcome["skipped"]}
    assert all(name in ran or {name, name.partition(":")[0]} & absent for name in targets.ALL_NAMES)
    for row in outcome["rows"]:
        assert 0 < row["max_error"] <= row["error_bound"]
        # At a million the usual formula is wrong in the second digit.
        assert (row["usual_max_error"] > 0.05) == (row["start"] == 1_000_000)


def test_demo_prints_errors_and_times_first_and_what_is_missing_last(capsys):
    demo._print_rows(8, [demo.DemoRow("numpy:cpu", 1_000_000, "", 1, 3.3, 7e-7, 0.21, 1e-6, 0)])
    expected = "numpy:cpu: error 7e-7, usual 2e-1: 300,000 times smaller; 3.30 times as fast"
    assert capsys.readouterr().out.splitlines()[1] == expected
    assert cli.main(FEW) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"numpy:cpu: error \de-\d, usual \de-1: \d00,000 times smaller", lines[1])
    (header,) = (i for i, line in enumerate(lines) if line.startswith("target "))
    assert re.search(r"from position +error +usual error +ms +x usual", lines[header])
    assert re.match(r"numpy:cpu  (native|chunked) ", lines[header + 2])
    agreement = next(i for i, line in enumerate(lines) if line.startswith("All libraries agree"))
    assert not any("not installed" in line or "found" in line for line in lines[:agreement])
    assert max(map(len, lines)) <= 80


def shift(*arguments, **options):
    return tuple(y + np.float32(1e-4) for y in rope_xp.apply(*arguments, **options))


@pytest.mark.parametrize(
    ("name", "stand_in", "problem"),
    [
        ("apply", shift, "from position 0: error 1.0e-04 exceeds"),
        ("measure_target", Mock(side_effect=RuntimeError("full")), "0 did not run: full"),
    ],
)
def test_demo_fails_where_numbers_are_wrong_or_a_library_breaks(
    name, stand_in, problem, monkeypatch, capsys
):
    monkeypatch.setattr(demo, name, stand_in)
    assert cli.main([*FEW, "--backend", "numpy"]) == 1
    assert re.search(f"PROBLEM: numpy:cpu .*{problem}", capsys.readouterr().out)


@pytest.mark.parametrize(
    "arguments",
    [
        *("", "dance", "demo --tokens 0", "inspect config.json --length 0"),
    ],
)
def test_arguments_that_a_command_does_not_take_print_its_usage(arguments, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(arguments.split())
    assert stop.value.code == 2
    command = arguments.partition(" ")[0].replace("dance", "")
    assert f"usage: python -m rope_xp {command}" in capsys.readouterr().err


def test_demo_finds_nan_and_libraries_that_differ():
    def row(target, max_error, ulp):
        return demo.DemoRow(target, 0, "portable", 1.0, 1.0, max_error, 0.0, 1e-6, ulp)

    rows = [row("numpy:cpu", float("nan"), 0.0), row("torch:cpu", 0.0, 1.0)]
    rows.append(row("jax:cpu", 0.0, 2.5))
    assert len(demo.find_problems(rows, [])) == 3
    assert demo.summarize_agreement(rows).startswith("THE LIBRARIES DIFFER")


def test_python_m_in_a_folder_runs_no_file_of_it(tmp_path):
    for name in ("numpy", "argparse", "array_api_compat"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('it ran')\n")
    (tmp_path / "config.json").write_text(json.dumps(REAL["deepseek_v3"]))
    command = [sys.executable, "-m", "rope_xp", "inspect", "."]
    paths = os.pathsep.join((str(programs.ROOT), str(programs.ROOT / "backends")))
    environment = programs.environment(PYTHONPATH=paths)
    done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
