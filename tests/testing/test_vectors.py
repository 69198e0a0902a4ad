"""Vectors for ports: what is in them, and the reader in C that compares a port with them."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import oracles
from support.inspected import REAL

import rope_xp
from rope_xp import RoPE, RopeError, scaling
from rope_xp.__main__ import main
from rope_xp.hf import IndexerPlan, LayerPlan, NormPlan, Temperature
from rope_xp.testing import Vectors, vectors

SOURCE = Path(__file__).parents[2] / "docs" / "examples" / "vectors.c"
HALF = RoPE(layout="half")


def make_layer(rope: RoPE | None = HALF, head_dim: int = 8, **more: Any) -> LayerPlan:
    fields = {"kind": "attention", "heads": 4, "kv_heads": 2, **more}
    return LayerPlan(rope=rope, head_dim=head_dim, **fields)


LAYERS = {
    "half": make_layer(),
    "interleaved": make_layer(RoPE()),
    "interleaved_to_half": make_layer(RoPE(layout="interleaved_to_half", rotary_dim=4), kv_heads=1),
    "the end of a head": make_layer(RoPE(rotary_dim=4, rotary_offset=-4)),
    "yarn": make_layer(RoPE(layout="half", scaling=scaling.YaRN(4.0, 32))),
    "dynamic": make_layer(RoPE(layout="half", scaling=scaling.DynamicNTK(2.0, 64))),
    "images": make_layer(RoPE(layout="half", position_axes=(0, 1, 2, 0))),
    "rows and columns": make_layer(RoPE.axial((4, 4), layout="half")),
    "no positions": make_layer(None),
    "a single head": make_layer(heads=1, kv_heads=1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_results_are_those_of_apply(name: str) -> None:
    layer, tensors = LAYERS[name], vectors([LAYERS[name]]).tensors
    cases = {key.split("/")[1] for key in tensors if key.endswith("/q")}
    assert cases >= {"prefill", "decode", "packed", "offsets", "far", "slots"}
    assert ("images" in cases) == (layer.rope is not None and layer.rope.position_axes is not None)
    tolerance = tensors["attention/tolerance"][0]
    for case in cases:
        own = {key.split("/")[-1]: x for key, x in tensors.items() if f"/{case}/" in key}
        q, k, positions = own["q"], own["k"], own["positions"]
        assert np.abs(q).max() <= 2
        if layer.rope is not None:
            rope = layer.rope.for_length(positions.max() + 1)
            q, k = rope.apply(q, k, positions)
            np.testing.assert_array_equal(own["frequencies"], rope.frequencies(8))
        for ours, array in ((q, "q"), (k, "k")):
            assert np.abs(ours - own[f"{array}_rotated"]).max() <= tolerance / 8, case
    slots = tensors["attention/slots/slots"][0]
    moved = tensors["attention/slots/k_cache_rotated"]
    np.testing.assert_array_equal(moved[slots], tensors["attention/slots/k_rotated"][0])
    others = [i for i in range(6) if i not in slots]
    np.testing.assert_array_equal(moved[others], tensors["attention/slots/k_cache"][others])


def test_results_are_exact_far_from_the_start() -> None:
    """Against fifty digits: nearly every number is the float32 nearest to the exact one."""
    tensors = vectors([make_layer(RoPE(layout="half"), head_dim=64)]).tensors
    x, rotated = (
        tensors[f"attention/far/{name}"].astype(np.float64) for name in ("q", "q_rotated")
    )
    positions = tuple(tensors["attention/far/positions"][0].tolist())
    cos, sin = oracles.exact_cos_sin(positions, oracles.exact_frequencies(1e4, 64))
    a, b = x[..., :32], x[..., 32:]
    cos, sin = cos[:, None], sin[:, None]
    exact = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    assert (exact.astype(np.float32) == rotated).mean() > 0.99
    np.testing.assert_allclose(rotated, exact, rtol=0, atol=2.0**-22)


@pytest.mark.parametrize("over", ["head", "all heads", "slice"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("after", [False, True])
def test_norms_are_those_of_torch(kind: Any, over: Any, after: bool) -> None:
    rope = RoPE(layout="half", rotary_dim=4, rotary_offset=2)
    norm = NormPlan(eps=1e-2, kind=kind, over=over, offset=1.0, after_rotation=after)
    tensors = vectors([make_layer(rope, norm=norm)]).tensors
    for array in "qk":
        own = {
            key: torch.tensor(tensors[f"attention/prefill/{array}{key}"])
            for key in ("", "_rotated")
        }
        x = own["_rotated" if after else ""].double()
        weight = torch.tensor(tensors[f"attention/{array}_weight"]).double() + 1.0
        part = {"head": x, "all heads": x.flatten(2), "slice": x[..., 2:6]}[over]
        function = torch.nn.functional.rms_norm if kind == "rms" else torch.nn.functional.layer_norm
        y = function(part, weight.shape, weight, eps=1e-2)
        expected = x.clone()
        target = expected[..., 2:6] if over == "slice" else expected
        target.copy_(y.view(target.shape))
        if not after:
            expected = rope.rotate(expected, np.arange(7))
        theirs = torch.tensor(tensors[f"attention/prefill/{array}_normalized_rotated"])
        torch.testing.assert_close(theirs.double(), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("over", ["head", "all heads"])
@pytest.mark.parametrize(
    ("fault", "root"),
    [
        ("none", lambda m: np.sqrt(m + 1e-6)),
        ("eps is forgotten", np.sqrt),
        ("eps is outside the root", lambda m: np.sqrt(m) + 1e-6),
        ("eps is 1e-5", lambda m: np.sqrt(m + 1e-5)),
    ],
)
def test_vectors_show_a_wrong_eps(over: Any, fault: str, root: Any) -> None:
    tensors = vectors([make_layer(norm=NormPlan(eps=1e-6, over=over))]).tensors
    x, weight, y = (
        np.asarray(tensors[f"attention/{name}"], np.float64)
        for name in ("prefill/q", "q_weight", "prefill/q_normalized_rotated")
    )
    axes = (-2, -1) if over == "all heads" else -1
    mean = np.square(x).mean(axes, keepdims=True)
    normalized = x / root(mean) * weight.reshape(-1, x.shape[-1])
    off = np.abs(RoPE(layout="half").rotate(normalized, np.arange(7)) - y).max()
    assert (off > tensors["attention/tolerance"][0]) == (fault != "none")


def test_one_array_has_the_norm() -> None:
    norm = NormPlan(eps=1e-6, arrays=("k",), weighted=())
    names = {key.split("/")[-1] for key in vectors([make_layer(norm=norm)]).tensors}
    assert "k_normalized_rotated" in names
    assert {"q_normalized_rotated", "k_weight"}.isdisjoint(names)


def test_file_is_safetensors_with_the_same_bytes_each_time(tmp_path: Path) -> None:
    layers = rope_xp.plan(REAL["qwen3_30b_a3b"] | {"head_dim": 128})
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        vectors(layers).save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].stat().st_size < 250_000
    safetensors = pytest.importorskip("safetensors")
    file = vectors(layers)
    with safetensors.safe_open(paths[0], "pt") as read:
        assert read.metadata() == file.metadata
        assert set(read.keys()) == set(file.tensors)
        for name, x in file.tensors.items():
            tensor = read.get_tensor(name)
            if x.dtype == np.uint16:
                assert tensor.dtype == torch.bfloat16
                exact = file.tensors[name.removesuffix("_bfloat16")]
                np.testing.assert_allclose(tensor.double(), exact, rtol=2.0**-8, atol=1e-9)
            else:
                np.testing.assert_array_equal(tensor.numpy(), x)
    kinds = json.loads(file.metadata["kinds"])
    assert kinds["attention"]["layers"] == list(range(48))
    assert kinds["attention"]["rope"]["base"] == 1e6
    assert kinds["attention"]["norm"]["over"] == "head"
    assert file.metadata["format"] == "rope_xp vectors 1"


def test_kinds_and_what_only_some_have() -> None:
    temperature = Temperature(beta=0.5, length=4)
    indexer = IndexerPlan(rope=RoPE(rotary_dim=4), head_dim=16, heads=8)
    layers = [make_layer(), make_layer(None, temperature=temperature), LayerPlan(kind="conv")]
    file = vectors([*layers, make_layer(), make_layer(kind="sparse", indexer=indexer)])
    assert set(json.loads(file.metadata["kinds"])) == {"attention", "attention_2", "sparse"}
    assert {key.partition("/")[0] for key in file.tensors} == {
        *("attention", "attention_2", "sparse", "sparse.indexer")
    }
    factors = file.tensors["attention_2/prefill/query_factors"]
    np.testing.assert_allclose(factors[0], 1 + 0.5 * np.log1p(np.arange(7) // 4))
    assert file.tensors["sparse.indexer/prefill/k"].shape == (1, 7, 1, 16)
    assert "attention_2/pairs" not in file.tensors
    scaled = make_layer(RoPE(scaling=scaling.Linear(2.0)))
    described = json.loads(vectors([scaled]).metadata["kinds"])["attention"]["rope"]["scaling"]
    assert described == {"name": "Linear", "factor": 2.0}


def test_nothing_to_write_is_an_error() -> None:
    with pytest.raises(RopeError, match="layers must have at least one with attention"):
        vectors([LayerPlan(kind="conv")])


def test_files_that_would_be_large_are_an_error() -> None:
    with pytest.raises(RopeError, match="entries of kinds of layers must be at most 64"):
        vectors([make_layer(kind=f"k{i}") for i in range(65)])
    with pytest.raises(RopeError, match="head_dim must be at most 4096"):
        vectors([make_layer(None, head_dim=1 << 20)])


# --- the reader in C -----------------------------------------------------------------------------

COMPILER = shutil.which("gcc") or shutil.which("cc")
PLANTED = {  # in place of a line of the reader
    "layout": ("x[pairs[i]], b = factor * x[pairs[n + i]]", "x[2 * i], b = factor * x[2 * i + 1]"),
    "sign": ("a * cos(angle[i]) - b", "a * cos(angle[i]) + b"),
    "factor": ("angle, *factor, pairs", "angle, *factor / *factor, pairs"),
    "position": ("+ h / heads];", "+ h / heads] + w[i];"),
    "first token": ("+ h / heads];", "+ 0 * h / heads];"),
    "float32 angles": ("angle[i] = w[i] * p[", "angle[i] = (float)w[i] * (float)p["),
    "not a number": ("y[pairs[2 * n + i]] =", "y[pairs[2 * n + i]] = NAN *"),
}


def run_reader(folder: Path, source: str, file: Vectors) -> tuple[int, str]:
    assert COMPILER is not None
    (folder / "vectors.c").write_text(source)
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
    command = [COMPILER, *flags, "vectors.c", "-o", "reader", "-lm"]
    subprocess.run(command, check=True, cwd=folder)
    file.save(folder / "file")
    run = ["./reader", "file"]
    result = subprocess.run(run, check=False, cwd=folder, capture_output=True, text=True)
    return result.returncode, result.stdout


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
def test_reader_in_c_finds_all_results_right(tmp_path: Path) -> None:
    layers = [replace(layer, kind=name) for name, layer in LAYERS.items()]
    file = vectors(layers)
    cases = sum(name.endswith("/positions") for name in file.tensors)
    status, text = run_reader(tmp_path, SOURCE.read_text(), file)
    assert (status, text) == (0, f"{2 * cases} arrays compared, 0 wrong\n")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize("fault", PLANTED)
def test_reader_in_c_reports_planted_faults(tmp_path: Path, fault: str) -> None:
    right, wrong = PLANTED[fault]
    source = SOURCE.read_text()
    assert source.count(right) == 1
    planted = source.replace(right, wrong)
    status, text = run_reader(tmp_path, planted, vectors([LAYERS["yarn"]]))
    assert status == 1
    named = [line.split()[0] for line in text.splitlines() if "is off by" in line]
    if fault == "float32 angles":  # which is how most ports compute them
        assert {"attention/far/q", "attention/far/k"} <= set(named)
        assert "attention/prefill/q" not in named
    elif fault == "first token":
        assert {"attention/prefill/q", "attention/packed/k"} <= set(named)
    else:
        assert len(named) == 12


# --- the command ---------------------------------------------------------------------------------


def test_command_writes_the_file(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps(REAL["llama_3_1_8b"] | {"head_dim": 128}))
    out = tmp_path / "file.safetensors"
    assert main(["vectors", str(tmp_path), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 56 tensors of attention\n"
    vectors(rope_xp.plan(tmp_path)).save(tmp_path / "again")
    assert out.read_bytes() == (tmp_path / "again").read_bytes()


def test_command_names_what_is_missing(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "rope_theta": 1e4}))
    out = ["-o", str(tmp_path / "file")]
    assert main(["vectors", str(tmp_path), *out]) == 1
    assert "model_type 'mine' is not known" in capsys.readouterr().err
    assert main(["vectors", str(tmp_path), "--layout", "half", *out]) == 1
    assert "is missing, and a plan needs it" in capsys.readouterr().err
    assert main(["vectors", str(tmp_path / "no.json"), *out]) == 1
    assert not (tmp_path / "file").exists()
