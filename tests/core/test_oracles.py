"""ONNX's node tests and operators give the same numbers; tests/models has those of transformers."""

import importlib
import warnings

import numpy as np
import pytest

import rope_xp

node = pytest.importorskip("onnx.backend.test.case.node")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    # collect_testcases would import the cases of every operator, which takes eight seconds.
    importlib.import_module(f"{node.__name__}.rotaryembedding")
CASES = [c for c in node._NodeTestCases if "rotary" in c.name and "expanded" not in c.name]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_apply_tables_equals_the_node_tests_of_onnx(backend, case):
    assert len(CASES) == 8
    attributes = {a.name: a.i for a in case.model.graph.node[0].attribute}
    (x, cos, sin, *ids), (expected,) = case.data_sets[0]
    if ids:
        cos, sin = cos[ids[0]], sin[ids[0]]
    heads = attributes.get("num_heads")
    layout = "interleaved" if attributes.get("interleaved") else "half"
    shape, axes = x.shape, "bhsd"
    if heads:
        x, axes = x.reshape(*x.shape[:2], heads, -1), "bshd"
    rotated = backend.run(
        lambda x, c, s: rope_xp.apply_tables(x, c, s, layout=layout, axes=axes),
        *map(backend.make, (x, cos, sin)),
    )
    bound = 3e-7 if backend.ulps else 0  # the same operations in the same order
    np.testing.assert_allclose(backend.back(rotated).reshape(shape), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_apply_tables_far_from_0_equals_the_operators_of_onnx_and_torch(layout):
    oracle = pytest.importorskip("onnx.reference.ops.op_rotary_embedding")
    torch = pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((2, 3, 50, 16), np.float32)
    cos, sin = rope_xp.RoPE().cos_sin(np.arange(50) + 1_000_000, 16)
    tables = [np.ascontiguousarray(np.broadcast_to(t, (2, 50, 8))) for t in (cos, sin)]
    rotated = rope_xp.apply_tables(x, cos, sin, layout=layout, axes="bhsd")
    interleaved = layout == "interleaved"
    expected = oracle.rotary_embedding(x, *tables, interleaved=interleaved)
    np.testing.assert_array_equal(rotated, expected)
    by_torch = torch.onnx.ops.rotary_embedding(
        *map(torch.from_numpy, (x, *tables)), interleaved=interleaved
    )
    np.testing.assert_allclose(rotated, by_torch, rtol=0, atol=5e-7)  # sums in another order
