"""python -m rope_xp check: functions, configurations, and the exit status."""

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


@pytest.fixture
def run(capsys):
    def check(*arguments):
        status = cli.main(["check", *arguments])
        return status, *capsys.readouterr()

    return check


def write_config(config):
    Path("config.json").write_text(json.dumps(config))


SMALL = ("--head-dim", "32")


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
def test_function_is_checked_and_faults_set_the_status(name, status, expected, run):
    actual, out, _ = run(f"rotates_by_hand:{name}", *SMALL)
    assert actual == status
    assert expected in out
    assert ("nothing is wrong" in out) == name.endswith("rotate")
    assert str(Path.cwd()) not in sys.path


def test_check_of_a_numpy_function_and_a_configuration_imports_no_framework():
    write_config(LLAMA)
    code = (
        "import sys; from rope_xp.__main__ import main\n"
        "assert main(['check', '.']) == 0\n"
        "assert main(['check', 'rotates_by_hand:rotate', '--head-dim', '32', '--json']) == 0\n"
        "assert not {'torch', 'transformers', 'jax', 'matplotlib'} & set(sys.modules)"
    )
    command = [sys.executable, "-W", "error", "-c", code]
    process = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert process.returncode == 0, process.stderr


def test_function_of_tables_is_checked_beside_its_tables(run):
    named = ["rotates_by_hand:by_tables", "--tables", "rotates_by_hand:tables"]
    status, out, _ = run(*named, *SMALL, "--json")
    report = json.loads(out)
    assert status == 0
    assert (report["rope"]["base"], report["rope"]["layout"]) == (500000.0, "half")
    assert set(report["error"]) == {"128", "4096", "131072", "1048576"}
    expected = rope_xp.RoPE(base=500000.0).frequencies(32)
    assert report["frequencies"] == pytest.approx(expected, rel=1e-6)
    assert report["faults"] == report["differences"] == []


def test_function_that_is_no_rotation_is_an_error(run):
    status, _, error = run("rotates_by_hand:scaled", *SMALL)
    assert status == 1
    assert error.startswith("check: the function is not a rotation")
    faults = json.loads(run("rotates_by_hand:scaled", *SMALL, "--json")[1])["faults"]
    assert error == f"check: {faults[0]}\n"


def test_function_beside_a_configuration_differs_from_it(run):
    plain = {**LLAMA, "head_dim": 32, "rope_scaling": None}
    arguments = ["rotates_by_hand:rotate", *SMALL, "--config", "config.json", "--layout", "half"]
    write_config(plain)
    assert run(*arguments)[0] == 0
    write_config({**plain, "rope_theta": 10000.0})
    status, out, _ = run(*arguments)
    assert status == 1
    assert "differences from config.json:\n- base is 500000, and not 10000" in out


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("rotates_by_hand:rotate --axes bshd", "could not call rotate with q, k of shape (b, s, "),
        ("rotates_by_hand:rotate --axes bshd", ". Try --head-dim, --axes or --tables"),
        ("rotates_by_hand:by_tables", "It takes cos and sin: pass --tables package.module:fun"),
        ("nowhere", "'nowhere' is neither a file nor package.module:function"),
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("rotates_by_hand:missing", "has no attribute 'missing'"),
        ("rotates_by_hand:INV", "function must be callable; got ndarray"),
        ("rotates_by_hand.py:f", "names a file; name its module: rotates_by_hand:f"),
        ("rotates_by_hand:leave", "code that it called ended the program with 0;"),
        ("leaves_at_once:rotate", "code that it called ended the program with 0;"),
        (
            "rotates_by_hand:rotate --layout half --strict",
            "--strict, --layout: for a model; rotates_by_hand:rotate is a function",
        ),
        ("rotates_by_hand:rotate --strict --config config.json", "--strict: for a model;"),
        (". --axes bshd --head-dim 128", "--head-dim, --axes: for a function; . is a model"),
    ],
)
def test_what_cannot_be_checked_is_an_error_and_no_pass(target, message, tmp_path, run):
    (tmp_path / "leaves_at_once.py").write_text("raise SystemExit(0)")
    status, out, error = run(*target.split())
    assert (status, out) == (2, "")
    assert error.startswith("check: ")
    assert message in error
    assert len(error) < 400


def test_configuration_passes_if_right_and_is_a_warning_if_odd_and_an_error_if_wrong(run):
    write_config(LLAMA)
    status, out, _ = run(".")
    assert status == 0
    assert "result: nothing is wrong" in out
    write_config(with_rule(LLAMA, original_max_position_embeddings=None))
    status, out, _ = run(".")
    assert status == 0
    assert "original_max_position_embeddings is missing" in out
    assert run(".", "--strict")[0] == 1
    (finding,) = json.loads(run(".", "--json")[1])["findings"]
    assert finding["severity"] == "warning"
    assert "original_max_position_embeddings" in finding["what"]
    write_config(with_rule(LLAMA, rope_type="warp"))
    status, out, _ = run(".")
    assert status == 1
    assert "rope_type 'warp' is not known" in out
