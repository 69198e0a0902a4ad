"""Rotations as ONNX: the operator RotaryEmbedding, and what torch.onnx.export makes of a call."""

import doctest
import importlib
import warnings

import numpy as np
import pytest
from support.cases import slow
from support.oracles import ulps
from support.targets import FUSED, numpy_dtype

from rope_xp import RoPE, RopeError
from rope_xp.scaling import DynamicNTK, YaRN

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
reference = pytest.importorskip("onnx.reference")

ours = importlib.import_module("rope_xp.onnx")

BATCH, TOKENS, HEADS, D, MOST = 2, 9, 3, 16, 5000
ROPES = {
    "interleaved": RoPE(),
    "half": RoPE(layout="half", base=5e5),
    "leading": RoPE(rotary_dim=8),
    "yarn": RoPE(scaling=YaRN(4.0, 1024)),
}
P = np.random.default_rng(1).integers(0, MOST, (BATCH, TOKENS))
P[0, :2] = 0, MOST - 1
CASES = [(name, num_heads, "float32") for name in ROPES for num_heads in (None, HEADS)]
CASES += [("interleaved", None, "float16"), ("interleaved", None, "bfloat16")]


def session(model):
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def sample(dtype="float32"):
    x = np.random.default_rng(0).standard_normal((BATCH, TOKENS, HEADS, D))
    return x.astype(numpy_dtype(dtype))


def evaluate(model, feeds):
    """Return what the code of onnx makes of a model that it finds valid."""
    onnx.checker.check_model(model, full_check=True)
    return reference.ReferenceEvaluator(model).run(None, feeds)


@pytest.mark.parametrize(("name", "num_heads", "dtype"), CASES)
def test_the_operator_of_model_rotates_as_the_rope(name, num_heads, dtype):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    rope, x = ROPES[name], sample(dtype)
    packed = x.reshape(BATCH, TOKENS, -1) if num_heads else x.transpose(0, 2, 1, 3).copy()
    model = ours.model(rope, D, MOST, num_heads=num_heads, dtype=dtype)
    expected, feeds = rope.rotate(x, P), {"x": packed, "position_ids": P}

    def unpack(y):
        return y.reshape(x.shape) if num_heads else y.transpose(0, 2, 1, 3)

    np.testing.assert_array_equal(unpack(evaluate(model, feeds)[0]), expected)
    if dtype == "bfloat16":  # whose arrays onnxruntime does not take
        return
    # The kernel of onnxruntime may fuse multiply-add.
    fused, r = unpack(session(model).run(None, feeds)[0]), rope.rotary_dim or D
    assert fused.dtype == dtype
    np.testing.assert_array_equal(fused[..., r:], x[..., r:])
    if dtype == "float32":
        assert ulps(fused[..., :r], expected[..., :r], x[..., :r], rope.layout) <= FUSED
        return
    # That moves a float32 by 2e-7; where it is a tie, float16 goes the other way.
    assert (np.abs(fused.astype(float) - expected) <= np.spacing(np.abs(expected))).all()
    assert (fused == expected).mean() > 0.99


def test_two_ropes_in_one_graph_keep_their_tables_apart():
    helper, ropes = onnx.helper, {"q": RoPE(), "k": RoPE(base=500.0, layout="half")}
    nodes, tables = [], []
    for name, rope in ropes.items():
        names = {"inputs": (name, "p"), "output": f"{name}_out", "name": f"rope_{name}"}
        rotation, initializers = ours.nodes(rope, D, MOST, **names)
        nodes, tables = nodes + rotation, tables + initializers
    value = helper.make_tensor_value_info
    q, k, q_out, k_out = (
        value(name, onnx.TensorProto.FLOAT, ["b", "h", "s", D])
        for name in ("q", "k", "q_out", "k_out")
    )
    at = value("p", onnx.TensorProto.INT64, ["b", "s"])
    graph = helper.make_graph(nodes, "layer", [q, k, at], [q_out, k_out], tables)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", ours.OPSET)])
    x = sample().transpose(0, 2, 1, 3).copy()
    for y, rope in zip(evaluate(model, {"q": x, "k": x, "p": P}), ropes.values(), strict=True):
        np.testing.assert_array_equal(y, rope.rotate(x, P, axes="bhsd"))


@pytest.mark.parametrize(
    ("rope", "options", "error", "message"),
    [
        (RoPE(layout="interleaved_to_half"), {}, RopeError, "use 'interleaved'"),
        (RoPE(rotary_dim=8, rotary_offset=-8), {}, RopeError, "at component 8; split it off"),
        (RoPE(position_axes=(0, 1) * 4), {}, RopeError, "position_axes; trace the model"),
        (RoPE(scaling=DynamicNTK(2.0, 64)), {}, RopeError, "for_length"),
        (RoPE(), {"dtype": "float64"}, RopeError, "dtype must be one of 'float32'"),
        (RoPE(), {"max_positions": 0}, RopeError, "max_positions must be positive"),
        (RoPE(), {"num_heads": 0}, RopeError, "num_heads must be positive"),
        ("half", {}, TypeError, "rope must be a rope_xp.RoPE"),
    ],
)
def test_ropes_and_sizes_that_the_operator_lacks_are_refused(rope, options, error, message):
    with pytest.raises(error, match=message):
        ours.model(rope, **({"head_dim": D, "max_positions": 64} | options))
    with pytest.raises(RopeError, match="two names"):
        ours.nodes(RoPE(), D, 64, inputs="xp")


def test_examples_of_the_module_are_right():
    results = doctest.testmod(ours)
    assert results.failed == 0 < results.attempted


@pytest.mark.parametrize(
    ("rope", "dtype"),
    [
        (RoPE(layout="half", scaling=YaRN(4.0, 1024)), "float32"),
        slow(RoPE(layout="interleaved_to_half", rotary_dim=8, rotary_offset=4), "float16"),
    ],
)
def test_exported_calls_have_the_bits_of_torch(rope, dtype):
    """By positions, and by none, of a length that is not known."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")

    class Attention(torch.nn.Module):
        def forward(self, q, k, p):
            return *rope.apply(q, k, p), *rope.apply(q, k)

    def arguments(batch, tokens):
        q, k = (torch.randn(batch, tokens, h, D).to(getattr(torch, dtype)) for h in (4, 2))
        return q, k, torch.randint(1 - 2**31, 2**31, (tokens,))

    batch, tokens = torch.export.Dim("batch", max=64), torch.export.Dim("tokens", min=2, max=4096)
    x_axes = {0: batch, 1: tokens}
    options = {"dynamic_shapes": (x_axes, x_axes, {0: tokens}), "dynamo": True, "verbose": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter still uses what torch deprecates
        program = torch.onnx.export(Attention().eval(), arguments(2, 9), **options)
    run = session(program.model_proto)
    for size in ((2, 9), (3, 700)):
        new = arguments(*size)
        feeds = {i.name: x.numpy() for i, x in zip(run.get_inputs(), new, strict=True)}
        for y, expected in zip(run.run(None, feeds), Attention()(*new), strict=True):
            np.testing.assert_array_equal(y, expected.numpy())
