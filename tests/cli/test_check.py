"""python -m rope_xp check: functions, configurations and weights, and the exit status."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.inspected import LLAMA, with_rule

import rope_xp
from rope_xp import __main__ as cli

MODULE = """
import numpy as np

INV = 500000.0 ** (-np.arange(16) / 16)
late = lambda q, k, positions: rotate(q, k, positions + 1)
scaled = lambda x, positions: x * positions[:, None]

def tables(positions, dtype=np.float64):
    angles = positions[:, None].astype(dtype) * INV.astype(dtype)
    return np.cos(angles), np.sin(angles)

def by_tables(x, cos, sin):
    a, b = x[..., :16], x[..., 16:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

def rotate(q, k, positions):
    return tuple(by_tables(x, *tables(positions)) for x in (q, k))

def in_float32(x, positions):
    return by_tables(x, *tables(positions, np.float32))

def leave(q, k, positions):
    raise SystemExit(0)

class Holder:
    rotate = staticmethod(rotate)
"""


@pytest.fixture(autouse=True)
def _module(tmp_path, monkeypatch):
    (tmp_path / "rotates_by_hand.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    yield
    sys.modules.pop("rotates_by_hand", None)


def run_check(capsys, *arguments):
    status = cli.main(["check", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.parametrize(
    ("name", "status", "expected"),
    [
        ("rotate", 0, "result: nothing is wrong"),
        ("Holder.rotate", 0, "RoPE(base=500000.0, "),
        ("late", 1, "- positions are off by +1"),
        # Angles of float32 are no fault, and not said to be right.
        ("in_float32", 0, "no fault, but cos and sin are off by more than 1e-2 from position"),
    ],
)
def test_function_is_checked_and_faults_set_the_status(name, status, expected, capsys):
    actual, out, _ = run_check(capsys, f"rotates_by_hand:{name}", "--head-dim", "32")
    assert actual == status
    assert expected in out
    assert ("nothing is wrong" in out) == name.endswith("rotate")
    assert not [line for line in sys.path if line == str(Path.cwd())]


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("rotate", ". Try --head-dim, --axes or --tables"),
        ("by_tables", ". It takes cos and sin: pass --tables package.module:function, which"),
    ],
)
def test_function_that_cannot_be_called_is_told_of_by_its_first_error(name, advice, capsys):
    status, _, error = run_check(capsys, f"rotates_by_hand:{name}", "--axes", "bshd")
    arrays = "q, k" if name == "rotate" else "x"
    start = f"check: could not call {name} with {arrays} of shape (b, s, h, 128); "
    assert status == 2
    assert error.startswith(start[:-2])
    assert "first error: " in error
    assert advice in error
    assert len(error) < 400


def test_check_of_a_numpy_function_and_a_configuration_imports_no_framework(tmp_path):
    write_config(tmp_path, LLAMA)
    code = (
        "import sys; from rope_xp.__main__ import main\n"
        "assert main(['check', '.']) == 0\n"
        "assert main(['check', 'rotates_by_hand:rotate', '--head-dim', '32', '--json']) == 0\n"
        "assert not {'torch', 'transformers', 'jax', 'matplotlib'} & set(sys.modules)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr


def test_function_of_tables_is_checked_beside_its_tables(capsys):
    named = ["rotates_by_hand:by_tables", "--tables", "rotates_by_hand:tables"]
    status, out, _ = run_check(capsys, *named, "--head-dim", "32", "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["rope"]["base"], report["rope"]["layout"]) == (500000.0, "half")
    assert set(report["error"]) == {"128", "4096", "131072", "1048576"}
    expected = rope_xp.RoPE(base=500000.0).frequencies(32)
    assert report["frequencies"] == pytest.approx(expected, rel=1e-6)
    assert report["faults"] == report["differences"] == []


def test_function_that_is_no_rotation_is_an_error(capsys):
    named = ["rotates_by_hand:scaled", "--head-dim", "32"]
    status, _, error = run_check(capsys, *named)
    assert status == 1
    assert error.startswith("check: the function is not a rotation")
    faults = json.loads(run_check(capsys, *named, "--json")[1])["faults"]
    assert error == f"check: {faults[0]}\n"


def test_function_beside_a_configuration_differs_from_it(tmp_path, capsys):
    plain = {**LLAMA, "head_dim": 32, "rope_scaling": None}
    write_config(tmp_path, plain)
    arguments = ["rotates_by_hand:rotate", "--head-dim", "32", "--config", "config.json"]
    assert run_check(capsys, *arguments)[0] == 0
    write_config(tmp_path, {**plain, "rope_theta": 10000.0})
    status, out, _ = run_check(capsys, *arguments)
    assert status == 1
    assert "differences from config.json:\n- base is 500000, and not 10000" in out


@pytest.mark.parametrize("target", ["rotates_by_hand:leave", "leaves_at_once:rotate"])
def test_target_that_ends_the_program_is_no_pass(target, tmp_path, capsys):
    (tmp_path / "leaves_at_once.py").write_text("raise SystemExit(0)")
    status, out, error = run_check(capsys, target)
    assert (status, out) == (2, "")
    assert error.startswith("check: code that it called ended the program with 0;")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere", "'nowhere' is neither a file nor package.module:function"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("rotates_by_hand:missing", "has no attribute 'missing'"),
        ("rotates_by_hand:INV", "function must be callable; got ndarray"),
        ("rotates_by_hand.py:f", "names a file; name its module: rotates_by_hand:f"),
    ],
)
def test_target_that_is_none_is_an_error(target, message, capsys):
    status, _, error = run_check(capsys, target)
    assert status == 2
    assert message in error


def test_options_for_another_kind_of_target_are_refused(tmp_path: Path, capsys) -> None:
    function, folder = "rotates_by_hand:rotate", write_config(tmp_path, LLAMA)
    status, out, error = run_check(capsys, function, "--layout", "half", "--strict")
    assert (status, out) == (2, "")
    assert f"--strict, --layout: for a model; {function} is a function" in error
    status, out, error = run_check(capsys, folder, "--axes", "bshd", "--head-dim", "128")
    assert (status, out) == (2, "")
    assert f"--head-dim, --axes: for a function; {folder} is a model" in error
    layout = ["--head-dim", "32", "--config", folder, "--layout", "half"]
    assert run_check(capsys, function, *layout)[2] == ""


# --- models --------------------------------------------------------------------------------------


def write_config(folder, config):
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def test_configuration_passes_if_right_and_is_a_warning_if_odd_and_an_error_if_wrong(
    tmp_path, capsys
):
    status, out, _ = run_check(capsys, write_config(tmp_path, LLAMA))
    assert status == 0
    assert "result: nothing is wrong" in out
    folder = write_config(tmp_path, with_rule(LLAMA, original_max_position_embeddings=None))
    status, out, _ = run_check(capsys, folder)
    assert status == 0
    assert "original_max_position_embeddings is missing" in out
    assert run_check(capsys, folder, "--strict")[0] == 1
    (finding,) = json.loads(run_check(capsys, folder, "--json")[1])["findings"]
    assert finding["severity"] == "warning"
    assert "original_max_position_embeddings" in finding["what"]
    status, out, _ = run_check(capsys, write_config(tmp_path, with_rule(LLAMA, rope_type="warp")))
    assert status == 1
    assert "rope_type 'warp' is not known" in out
