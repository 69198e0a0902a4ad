"""Runtimes of ONNX graphs, of the operator RotaryEmbedding."""

from functools import cache
from typing import Any

import numpy as np
from measure import HEAD_DIM, Engine, Rotation
from shared import check

from rope_xp import RoPE
from rope_xp.testing import conventions


@cache
def _build(interleaved: int, rotary_embedding_dim: int, domain: str) -> Any:
    """Return a model of one operator, of opset 23 or of Microsoft's domain."""
    from onnx import TensorProto, helper

    options = {"interleaved": interleaved, "rotary_embedding_dim": rotary_embedding_dim}
    names = ["x", "p", "cos", "sin"] if domain else ["x", "cos", "sin", "p"]
    node = helper.make_node("RotaryEmbedding", names, ["y"], domain=domain, **options)
    table = ["n", (rotary_embedding_dim or HEAD_DIM) // 2]
    shapes = {"x": ["b", "h", "s", HEAD_DIM], "cos": table, "sin": table, "p": ["b", "s"]}
    values = {
        name: helper.make_tensor_value_info(
            name, TensorProto.INT64 if name == "p" else TensorProto.FLOAT, shape
        )
        for name, shape in shapes.items()
    }
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, shapes["x"])
    graph = helper.make_graph([node], "rotation", [values[n] for n in names], [y])
    opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


@cache
def _open_session(*options: Any) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(_build(*options).SerializeToString())


@cache
def _open_reference(*options: Any) -> Any:
    from onnx.reference import ReferenceEvaluator

    return ReferenceEvaluator(_build(*options))


@cache
def _compile(*options: Any) -> Any:
    import io

    import openvino

    core = openvino.Core()
    model = core.read_model(io.BytesIO(_build(*options).SerializeToString()))
    # Its default may be bfloat16 on a CPU that has it.
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return lambda inputs: compiled(inputs)[0]


def make(open_graph: Any, domain: str = "") -> Any:
    def rotation(rope: RoPE, dtype: str) -> Rotation:
        check(rope, partial=True)

        def kernel(x: Any, cos: Any, sin: Any, p: Any, **options: Any) -> Any:
            graph = open_graph(options["interleaved"], options["rotary_embedding_dim"], domain)
            inputs = {"x": np.ascontiguousarray(x), "cos": cos, "sin": sin, "p": p}
            return graph(inputs) if callable(graph) else graph.run(None, inputs)[0]

        return conventions.onnx(kernel, rope, HEAD_DIM)

    return rotation


_UNTRIED = {"partial": "its num_heads was not given"}
ENGINES = [
    Engine("onnxruntime", "RotaryEmbedding of opset 23", make(_open_session), library="numpy",
           takes_tables=True),
    Engine("onnxruntime", "com.microsoft.RotaryEmbedding", make(_open_session, "com.microsoft"),
           library="numpy", takes_tables=True, not_run=_UNTRIED),
    Engine("onnx", "RotaryEmbedding of opset 23", make(_open_reference), library="numpy",
           takes_tables=True),
    Engine("openvino", "RotaryEmbedding of com.microsoft", make(_compile, "com.microsoft"),
           library="numpy", takes_tables=True, not_run=_UNTRIED),
]  # fmt: skip
