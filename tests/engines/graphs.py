"""Runtimes of ONNX graphs, of the operator RotaryEmbedding."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from measure import HEAD_DIM, TABLES, Rotation, engine

from rope_xp import RoPE
from rope_xp.testing import conventions


@cache
def _build(**options: int) -> bytes:
    """Return a model of one operator, of opset 23."""
    from onnx import TensorProto, helper

    names = ["x", "cos", "sin", "p"]
    node = helper.make_node("RotaryEmbedding", names, ["y"], **options)
    table = ["n", (options["rotary_embedding_dim"] or HEAD_DIM) // 2]
    whole = ["b", "h", "s", HEAD_DIM]
    shapes = {"x": whole, "cos": table, "sin": table, "p": ["b", "s"], "y": whole}
    kinds = {name: TensorProto.INT64 if name == "p" else TensorProto.FLOAT for name in shapes}
    values = {n: helper.make_tensor_value_info(n, kinds[n], shapes[n]) for n in shapes}
    graph = helper.make_graph([node], "rotation", [values[n] for n in names], [values["y"]])
    opsets = [helper.make_opsetid("", 23)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11).SerializeToString()


def _rotate_by(run: Callable[[bytes], Any], rope: RoPE) -> Rotation:
    def kernel(x: Any, cos: Any, sin: Any, p: Any, **options: Any) -> Any:
        inputs = {"x": np.ascontiguousarray(x), "cos": cos, "sin": sin, "p": p}
        return run(_build(**options)).run(None, inputs)[0]

    return conventions.onnx(kernel, rope, HEAD_DIM)


@engine("onnxruntime", "RotaryEmbedding of opset 23", library="numpy", columns=TABLES)
def onnxruntime(rope: RoPE, dtype: str) -> Rotation:
    from onnxruntime import InferenceSession

    return _rotate_by(InferenceSession, rope)


@engine("onnx", "RotaryEmbedding of opset 23", library="numpy", columns=TABLES)
def onnx(rope: RoPE, dtype: str) -> Rotation:
    from onnx.reference import ReferenceEvaluator

    return _rotate_by(ReferenceEvaluator, rope)
