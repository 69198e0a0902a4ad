"""Rotations as ONNX: the operator RotaryEmbedding, and what torch.onnx.export makes of a call."""

from __future__ import annotations

import doctest
import importlib
import warnings

import numpy as np
import pytest
from support.oracles import ulps
from support.targets import FUSED, numpy_dtype

from rope_xp import RoPE, RopeError
from rope_xp.scaling import DynamicNTK, YaRN

onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
reference = pytest.importorskip("onnx.reference")

written = importlib.import_module("rope_xp.onnx")

BATCH, TOKENS, HEADS, D, MOST = 2, 9, 3, 16, 5000
ROPES = {
    "interleaved": RoPE(),
    "half": RoPE(layout="half", base=5e5),
    "leading": RoPE(rotary_dim=8),
    "leading half": RoPE(layout="half", rotary_dim=8),
    "yarn": RoPE(scaling=YaRN(4.0, 1024)),
}


def session(model: object) -> object:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def sample(dtype: str = "float32") -> np.ndarray:
    x = np.random.default_rng(0).standard_normal((BATCH, TOKENS, HEADS, D))
    return x.astype(numpy_dtype(dtype))


def positions() -> np.ndarray:
    drawn = np.random.default_rng(1).integers(0, MOST, (BATCH, TOKENS))
    drawn[0, :2] = 0, MOST - 1
    return drawn


def packed(x: np.ndarray, num_heads: int | None) -> np.ndarray:
    """Return (batch, tokens, heads, head_dim) with the axes that the operator has."""
    if num_heads is None:
        return np.ascontiguousarray(x.transpose(0, 2, 1, 3))
    return x.reshape(*x.shape[:2], -1)


def unpacked(y: np.ndarray, num_heads: int | None) -> np.ndarray:
    return y.transpose(0, 2, 1, 3) if num_heads is None else y.reshape(BATCH, TOKENS, HEADS, D)


@pytest.mark.parametrize("num_heads", [None, HEADS], ids=["4-D", "3-D"])
@pytest.mark.parametrize("name", ROPES)
def test_operator(name: str, num_heads: int | None) -> None:
    rope, x, p = ROPES[name], sample(), positions()
    model = written.model(rope, D, MOST, num_heads=num_heads)
    onnx.checker.check_model(model, full_check=True)
    expected = rope.rotate(x, p)
    feeds = {"x": packed(x, num_heads), "position_ids": p}
    (exact,) = reference.ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(unpacked(exact, num_heads), expected)
    (fused,) = session(model).run(None, feeds)  # whose kernel may fuse multiply-add
    r = rope.rotary_dim or D
    fused, layout = unpacked(fused, num_heads), rope.layout
    assert ulps(fused[..., :r], expected[..., :r], x[..., :r], layout) <= FUSED
    np.testing.assert_array_equal(fused[..., r:], x[..., r:])


def test_float16_is_rounded_once() -> None:
    x, p = sample("float16"), positions()
    model = written.model(RoPE(), D, MOST, dtype="float16")
    onnx.checker.check_model(model, full_check=True)
    feeds = {"x": packed(x, None), "position_ids": p}
    expected = RoPE().rotate(x, p)
    (exact,) = reference.ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(unpacked(exact, None), expected)
    # A fused multiply-add moves a float32 by 2e-7; where that is a tie, float16 goes the other way.
    fused = unpacked(session(model).run(None, feeds)[0], None)
    assert fused.dtype == np.float16
    assert (np.abs(fused.astype(float) - expected) <= np.spacing(np.abs(expected))).all()
    assert (fused == expected).mean() > 0.99


def test_bfloat16_is_written() -> None:
    pytest.importorskip("ml_dtypes")
    model = written.model(RoPE(), D, MOST, dtype="bfloat16")
    onnx.checker.check_model(model, full_check=True)
    x, p = sample("bfloat16"), positions()
    feeds = {"x": packed(x, None), "position_ids": p}
    (got,) = reference.ReferenceEvaluator(model).run(None, feeds)
    np.testing.assert_array_equal(unpacked(got, None), RoPE().rotate(x, p))


def test_two_ropes_in_one_graph() -> None:
    """q and k of one layer, whose tables must not be mixed up."""
    helper, float_ = onnx.helper, onnx.TensorProto.FLOAT
    ropes = {"q": RoPE(), "k": RoPE(base=500.0, layout="half")}
    nodes, tables = [], []
    for name, rope in ropes.items():
        made, initializers = written.nodes(
            rope, D, MOST, inputs=(name, "p"), output=f"{name}_rotated", name=f"rope_{name}"
        )
        nodes += made
        tables += initializers
    shape = ["b", "h", "s", D]
    values = [helper.make_tensor_value_info(name, float_, shape) for name in ropes]
    at = helper.make_tensor_value_info("p", onnx.TensorProto.INT64, ["b", "s"])
    results = [helper.make_tensor_value_info(f"{name}_rotated", float_, shape) for name in ropes]
    graph = helper.make_graph(nodes, "layer", [*values, at], results, tables)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", written.OPSET)])
    onnx.checker.check_model(model, full_check=True)
    x, p = packed(sample(), None), positions()
    got = reference.ReferenceEvaluator(model).run(None, {"q": x, "k": x, "p": p})
    for g, rope in zip(got, ropes.values(), strict=True):
        np.testing.assert_array_equal(g, rope.rotate(x, p, axes="bhsd"))


@pytest.mark.parametrize(
    ("rope", "options", "error", "message"),
    [
        (RoPE(layout="interleaved_to_half"), {}, RopeError, "take layout='interleaved'"),
        (RoPE(rotary_dim=8, rotary_offset=-8), {}, RopeError, "at component 8; split it off"),
        (RoPE(position_axes=(0, 1) * 4), {}, RopeError, "position_axes; trace the model"),
        (RoPE(scaling=DynamicNTK(2.0, 64)), {}, RopeError, "for_length"),
        (RoPE(rotary_dim=32), {}, RopeError, "does not lie within head_dim=16"),
        (RoPE(), {"dtype": "float64"}, RopeError, "dtype must be one of 'float32'"),
        (RoPE(), {"max_positions": 0}, RopeError, "max_positions must be positive"),
        (RoPE(), {"max_positions": 8.0}, TypeError, "max_positions must be an integer"),
        (RoPE(), {"num_heads": 0}, RopeError, "num_heads must be positive"),
        (RoPE(), {"head_dim": 0}, RopeError, "head_dim must be positive"),
        ("half", {}, TypeError, "rope must be a rope_xp.RoPE"),
    ],
)
def test_refused(rope: object, options: dict, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        written.model(rope, **({"head_dim": D, "max_positions": 64} | options))
    with pytest.raises(RopeError, match="two names"):
        written.nodes(RoPE(), D, 64, inputs="xp")


def test_examples() -> None:
    results = doctest.testmod(written)
    assert results.attempted > 5
    assert results.failed == 0


# --- torch.onnx.export ---------------------------------------------------------------------------


def exported(module: object, arguments: tuple, shapes: tuple) -> object:
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter still uses what torch deprecates
        program = torch.onnx.export(
            module, arguments, dynamo=True, dynamic_shapes=shapes, verbose=False
        )
    return program.model_proto


@pytest.mark.covering
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("given", ["positions", "counted"])
@pytest.mark.parametrize(
    "rope",
    [
        RoPE(),
        RoPE(layout="half", scaling=YaRN(4.0, 1024)),
        RoPE(layout="interleaved_to_half", rotary_dim=8, rotary_offset=4),
    ],
    ids=["interleaved", "half", "trailing"],
)
def test_torch_export(rope: RoPE, given: str, dtype: str) -> None:
    torch = pytest.importorskip("torch")

    class Attention(torch.nn.Module):
        def forward(self, q, k, p=None):
            return rope.apply(q, k, p)

    def arguments(batch: int, tokens: int) -> tuple:
        q, k = torch.randn(batch, tokens, 4, D), torch.randn(batch, tokens, 2, D)
        p = torch.randint(1 - 2**31, 2**31, (tokens,))
        q, k = q.to(getattr(torch, dtype)), k.to(getattr(torch, dtype))
        return (q, k, p) if given == "positions" else (q, k)

    batch, tokens = torch.export.Dim("batch", max=64), torch.export.Dim("tokens", min=2, max=4096)
    x_axes = {0: batch, 1: tokens}
    shapes = (x_axes, x_axes, {0: tokens}) if given == "positions" else (x_axes, x_axes)
    run = session(exported(Attention().eval(), arguments(2, 9), shapes))
    for size in ((2, 9), (3, 700)):
        new = arguments(*size)
        feeds = {i.name: x.numpy() for i, x in zip(run.get_inputs(), new, strict=True)}
        for g, e in zip(run.run(None, feeds), Attention()(*new), strict=True):
            np.testing.assert_array_equal(g, e.numpy())
