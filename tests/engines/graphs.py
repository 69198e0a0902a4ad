"""Runtimes of ONNX graphs, of the operator RotaryEmbedding."""

import io
from functools import cache
from typing import Any

import numpy as np
from measure import HEAD_DIM, Make, Rotation, engine

from rope_xp import RoPE
from rope_xp.testing import conventions


@cache
def _build(interleaved: int, rotary_embedding_dim: int, domain: str) -> bytes:
    """Return a model of one operator, of opset 23 or of Microsoft's domain."""
    from onnx import TensorProto, helper

    options = {"interleaved": interleaved, "rotary_embedding_dim": rotary_embedding_dim}
    names = ["x", "p", "cos", "sin"] if domain else ["x", "cos", "sin", "p"]
    node = helper.make_node("RotaryEmbedding", names, ["y"], domain=domain, **options)
    table, whole = ["n", (rotary_embedding_dim or HEAD_DIM) // 2], ["b", "h", "s", HEAD_DIM]
    shapes = {"x": whole, "cos": table, "sin": table, "p": ["b", "s"], "y": whole}
    kinds = {name: TensorProto.INT64 if name == "p" else TensorProto.FLOAT for name in shapes}
    values = {n: helper.make_tensor_value_info(n, kinds[n], shapes[n]) for n in shapes}
    graph = helper.make_graph([node], "rotation", [values[n] for n in names], [values["y"]])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


@cache
def _open_session(*options: Any) -> Any:
    import onnxruntime

    session = onnxruntime.InferenceSession(_build(*options))
    return lambda inputs: session.run(None, inputs)[0]


@cache
def _open_reference(*options: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(_build(*options))
    return lambda inputs: evaluator.run(None, inputs)[0]


@cache
def _compile(*options: Any) -> Any:
    import openvino

    core = openvino.Core()
    model = core.read_model(io.BytesIO(_build(*options)))
    # Its default may be bfloat16 on a CPU that has it.
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda inputs: compiled(inputs)[0]


def _make(open_graph: Any, domain: str = "") -> Make:
    def rotation(rope: RoPE, dtype: str) -> Rotation:
        def kernel(x: Any, cos: Any, sin: Any, p: Any, **options: Any) -> Any:
            graph = open_graph(options["interleaved"], options["rotary_embedding_dim"], domain)
            return graph({"x": np.ascontiguousarray(x), "cos": cos, "sin": sin, "p": p})

        return conventions.onnx(kernel, rope, HEAD_DIM)

    return rotation


_OPSET, _TABLES = "RotaryEmbedding of opset 23", {"library": "numpy", "takes_tables": True}
_FULL = _TABLES | {"partial": True}
_UNTRIED = _TABLES | {"not_run": {"partial": "its num_heads was not given"}}
_MICROSOFT = "com.microsoft"
engine("onnxruntime", _OPSET, **_FULL)(_make(_open_session))
engine("onnxruntime", f"{_MICROSOFT}.RotaryEmbedding", **_UNTRIED)(_make(_open_session, _MICROSOFT))
engine("onnx", _OPSET, **_FULL)(_make(_open_reference))
engine("openvino", f"RotaryEmbedding of {_MICROSOFT}", **_UNTRIED)(_make(_compile, _MICROSOFT))
