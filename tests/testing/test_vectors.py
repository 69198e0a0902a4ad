"""Vectors for ports: what is in them, and the reader in C that compares a port with them."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from support import oracles
from support.inspected import REAL

import rope_xp
from rope_xp import RoPE, RopeError, scaling
from rope_xp.__main__ import main
from rope_xp.hf import IndexerPlan, LayerPlan, NormPlan, Temperature
from rope_xp.testing import vectors

SOURCE = (Path(__file__).parents[2] / "docs" / "examples" / "vectors.c").read_text()
HALF = RoPE(layout="half")
CASES = "prefill", "decode", "packed", "offsets", "far", "slots"


def make_layer(rope=HALF, head_dim=8, **more):
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
def test_vectors_have_the_results_of_apply(name):
    rope, tensors = LAYERS[name].rope, vectors([LAYERS[name]]).tensors
    cases = {key.split("/")[1] for key in tensors if key.endswith("/q")}
    images = {"images"} if getattr(rope, "position_axes", None) else set()
    assert cases == {*CASES} | images
    for case in cases:
        own = {key.split("/")[-1]: x for key, x in tensors.items() if f"/{case}/" in key}
        results, positions = [own["q"], own["k"]], own["positions"]
        assert np.abs(own["q"]).max() <= 2
        if rope is not None:
            at_length = rope.for_length(positions.max() + 1)
            results = at_length.apply(*results, positions)
            np.testing.assert_array_equal(own["frequencies"], at_length.frequencies(8))
        for ours, array in zip(results, "qk", strict=True):
            off = np.abs(ours - own[f"{array}_rotated"]).max()
            assert off <= tensors["attention/tolerance"][0] / 8, case
    expected = tensors["attention/slots/k_cache"].copy()
    expected[tensors["attention/slots/slots"][0]] = tensors["attention/slots/k_rotated"][0]
    np.testing.assert_array_equal(tensors["attention/slots/k_cache_rotated"], expected)


def test_vectors_are_exact_far_from_the_start():
    """Against fifty digits: nearly every number is the float32 nearest to the exact one."""
    tensors = vectors([make_layer(head_dim=64)]).tensors
    x, rotated = (np.float64(tensors[f"attention/far/{name}"]) for name in ("q", "q_rotated"))
    positions = tuple(tensors["attention/far/positions"][0].tolist())
    tables = oracles.exact_cos_sin(positions, oracles.exact_frequencies(1e4, 64))
    (a, b), (cos, sin) = np.split(x, 2, axis=-1), (t[:, None] for t in tables)
    exact = np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
    assert (exact.astype(np.float32) == rotated).mean() > 0.99
    np.testing.assert_allclose(rotated, exact, rtol=0, atol=2.0**-22)


@pytest.mark.parametrize("over", ["head", "all heads", "slice"])
@pytest.mark.parametrize("kind", ["rms", "layer"])
@pytest.mark.parametrize("after", [False, True])
def test_vectors_have_the_norms_of_torch(kind, over, after):
    rope = RoPE(layout="half", rotary_dim=4, rotary_offset=2)
    norm = NormPlan(eps=1e-2, kind=kind, over=over, offset=1.0, after_rotation=after)
    tensors = vectors([make_layer(rope, norm=norm)]).tensors
    function = getattr(torch.nn.functional, f"{kind}_norm")
    for array in "qk":
        start = f"attention/prefill/{array}"
        expected = torch.tensor(tensors[f"{start}_rotated" if after else start]).double()
        part = expected[..., 2:6] if over == "slice" else expected
        flat = part.flatten(2) if over == "all heads" else part
        weight = torch.tensor(tensors[f"attention/{array}_weight"]).double() + 1.0
        part.copy_(function(flat, weight.shape, weight, eps=1e-2).view(part.shape))
        if not after:
            expected = rope.rotate(expected, np.arange(7))
        theirs = torch.tensor(tensors[f"{start}_normalized_rotated"]).double()
        torch.testing.assert_close(theirs, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("fault", "root"),
    [
        ("none", lambda m: np.sqrt(m + 1e-6)),
        ("eps is forgotten", np.sqrt),
        ("eps is outside the root", lambda m: np.sqrt(m) + 1e-6),
        ("eps is 1e-5", lambda m: np.sqrt(m + 1e-5)),
    ],
)
def test_vectors_show_a_wrong_eps(fault, root):
    tensors = vectors([make_layer(norm=NormPlan(eps=1e-6))]).tensors
    names = "prefill/q", "q_weight", "prefill/q_normalized_rotated"
    x, weight, y = (np.float64(tensors[f"attention/{name}"]) for name in names)
    normalized = x / root(np.square(x).mean(-1, keepdims=True)) * weight
    off = np.abs(HALF.rotate(normalized, np.arange(7)) - y).max()
    assert (off > tensors["attention/tolerance"][0]) == (fault != "none")


def test_vectors_have_the_norm_of_one_array():
    norm = NormPlan(eps=1e-6, arrays=("k",), weighted=())
    names = {key.split("/")[-1] for key in vectors([make_layer(norm=norm)]).tensors}
    assert "k_normalized_rotated" in names
    assert {"q_normalized_rotated", "k_weight"}.isdisjoint(names)


def test_vectors_save_writes_safetensors_with_the_same_bytes_each_time(tmp_path):
    file = vectors(rope_xp.plan(REAL["qwen3_30b_a3b"] | {"head_dim": 128}))
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        file.save(path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert paths[0].stat().st_size < 250_000
    with pytest.importorskip("safetensors").safe_open(paths[0], "pt") as read:
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
    described = json.loads(file.metadata["kinds"])["attention"]
    assert described["layers"] == list(range(48))
    assert (described["rope"]["base"], described["norm"]["over"]) == (1e6, "head")
    assert file.metadata["format"] == "rope_xp vectors 1"


def test_vectors_have_each_kind_of_layer_and_what_only_some_have():
    temperature = Temperature(beta=0.5, length=4)
    indexer = IndexerPlan(rope=RoPE(rotary_dim=4), head_dim=16, heads=8)
    layers = [make_layer(), make_layer(None, temperature=temperature), LayerPlan(kind="conv")]
    scaled = make_layer(RoPE(scaling=scaling.Linear(2.0)), kind="scaled")
    file = vectors([*layers, make_layer(), make_layer(kind="sparse", indexer=indexer), scaled])
    kinds = {"attention", "attention_2", "sparse", "scaled"}
    assert {key.partition("/")[0] for key in file.tensors} == kinds | {"sparse.indexer"}
    factors = file.tensors["attention_2/prefill/query_factors"]
    np.testing.assert_allclose(factors[0], 1 + 0.5 * np.log1p(np.arange(7) // 4))
    assert file.tensors["sparse.indexer/prefill/k"].shape == (1, 7, 1, 16)
    assert "attention_2/pairs" not in file.tensors
    described = json.loads(file.metadata["kinds"])
    assert described.keys() == kinds
    assert described["scaled"]["rope"]["scaling"] == {"name": "Linear", "factor": 2.0}


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([LayerPlan(kind="conv")], "layers must have at least one with attention"),
        ([make_layer(kind=f"k{i}") for i in range(65)], "kinds of layers must be at most 64"),
        ([make_layer(None, head_dim=1 << 20)], "head_dim must be at most 4096"),
    ],
)
def test_vectors_refuse_plans_that_are_empty_or_large(layers, message):
    with pytest.raises(RopeError, match=message):
        vectors(layers)


COMPILER = shutil.which("gcc") or shutil.which("cc")


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
@pytest.mark.parametrize(
    ("right", "wrong", "cases"),  # a part of the reader, what takes its place, and what is off then
    [
        ("x[pairs[i]], b = factor * x[pairs[n + i]]", "x[2 * i], b = factor * x[2 * i + 1]", CASES),
        ("a * cos(angle[i]) - b", "a * cos(angle[i]) + b", CASES),
        ("angle, *factor, pairs", "angle, *factor / *factor, pairs", CASES),
        ("+ h / heads];", "+ h / heads] + w[i];", CASES),
        ("+ h / heads];", "+ 0 * h / heads];", CASES),
        ("angle[i] = w[i] * p[", "angle[i] = (float)w[i] * (float)p[", ["far"]),  # as ports do
        ("y[pairs[2 * n + i]] =", "y[pairs[2 * n + i]] = NAN *", CASES),
        ("int main", "int main", []),
    ],
    ids=["layout", "sign", "factor", "position", "first token", "float32", "nan", "right"],
)
def test_reader_in_c_finds_what_is_wrong_and_no_more(tmp_path, right, wrong, cases):
    assert SOURCE.count(right) == 1
    (tmp_path / "vectors.c").write_text(SOURCE.replace(right, wrong))
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"]
    command = [COMPILER, *flags, "vectors.c", "-o", "reader", "-lm"]
    subprocess.run(command, check=True, cwd=tmp_path)
    layers = [LAYERS["yarn"]] if cases else [replace(x, kind=n) for n, x in LAYERS.items()]
    file = vectors(layers)
    file.save(tmp_path / "file")
    command = ["./reader", "file"]
    run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    *lines, last = run.stdout.splitlines()
    off = {line.split()[0] for line in lines}
    assert off == {f"attention/{case}/{array}" for case in cases for array in "qk"}
    count = 2 * sum(name.endswith("/positions") for name in file.tensors)
    assert (run.returncode, last) == (bool(off), f"{count} arrays compared, {len(off)} wrong")


def test_command_vectors_writes_the_file(tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(REAL["llama_3_1_8b"] | {"head_dim": 128}))
    out = tmp_path / "file.safetensors"
    assert main(["vectors", str(tmp_path), "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 56 tensors of attention\n"
    vectors(rope_xp.plan(tmp_path)).save(tmp_path / "again")
    assert out.read_bytes() == (tmp_path / "again").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["."], "model_type 'mine' is not known"),
        ([".", "--layout", "half"], "is missing, and a plan needs it"),
        (["no.json"], "no.json"),
    ],
)
def test_command_vectors_names_what_is_missing(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mine", "rope_theta": 1e4}))
    assert main(["vectors", *arguments, "-o", "file"]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "file").exists()
