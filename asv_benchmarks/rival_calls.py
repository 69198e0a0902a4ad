"""What users run today instead of rope_xp, each as its own documentation has it called.

tests/benchmarks/test_benchmarks.py sees to it that each of them rotates as rope_xp does.
"""

import functools
import importlib
import importlib.util
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rope_xp._bench import formulas
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import BASE, HEAD_DIM, Absent, Case
from rope_xp._core.typing import Array, Layout

LAYOUTS = {"rotary_embedding_torch": "interleaved"}
"""Of those that do not rotate halves."""


def usual(case: Case) -> Action:
    """Return the formula of Hugging Face's Llama: eager, in jax jitted."""
    target, q, k, positions = case
    rotate = formulas.usual_formula(target, BASE)
    return lambda: rotate(q, k, positions)


def torch_compile(case: Case) -> Action:
    """Return the same formula under ``torch.compile``."""
    torch, (target, q, k, positions) = _torch(case), case
    rotate = torch.compile(formulas.usual_formula(target, BASE))
    return lambda: tuple(rotate(q, k, positions))


def transformers(case: Case) -> Action:
    """Return LlamaRotaryEmbedding and apply_rotary_pos_emb, as transformers calls them."""
    _torch(case)
    modeling = _module("transformers.models.llama.modeling_llama")
    config = _module("transformers").LlamaConfig(
        head_dim=HEAD_DIM, rope_parameters={"rope_type": "default", "rope_theta": BASE}
    )
    _, q, k, positions = case
    embedding = modeling.LlamaRotaryEmbedding(config).to(q.device)

    def rotate() -> tuple[Array, ...]:
        cos, sin = embedding(q, positions[None])
        return tuple(modeling.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2))

    return rotate


def rotary_embedding_torch(case: Case) -> Action:
    """Return the package of that name. It counts positions itself, and keeps their angles."""
    _torch(case)
    package, (_, q, k, positions) = _module("rotary_embedding_torch"), case
    rotary = package.RotaryEmbedding(HEAD_DIM, theta=BASE).to(q.device)
    turned, start = tuple(x.transpose(1, 2) for x in (q, k)), int(positions[0])
    return lambda: tuple(rotary.rotate_queries_or_keys(x, offset=start) for x in turned)


def torch_onnx(case: Case) -> Action:
    """Return the operator of ONNX in torch, given cos and sin."""
    torch = _torch(case)
    q, k = (x.transpose(1, 2) for x in (case.q, case.k))
    cos, sin = (torch.as_tensor(x, device=q.device, dtype=q.dtype)[None] for x in _tables(case))
    rotate = torch.onnx.ops.rotary_embedding
    return lambda: (rotate(q, cos, sin), rotate(k, cos, sin))


def onnxruntime(case: Case, layout: Layout = "half") -> Action:
    """Return the operator of ONNX in onnxruntime, on numpy's arrays, given cos and sin."""
    if case.target.name != "numpy:cpu" or case.q.dtype != np.float32:
        msg = "onnxruntime takes arrays of numpy here, and its operator no bfloat16"
        raise Absent(msg)
    runtime, onnx = _module("onnxruntime"), _module("onnx.helper")
    names = ["x", "cos", "sin"]
    number = importlib.import_module("onnx").TensorProto.FLOAT
    values = [onnx.make_tensor_value_info(n, number, None) for n in (*names, "y")]
    interleaved = int(layout == "interleaved")
    node = onnx.make_node("RotaryEmbedding", names, ["y"], interleaved=interleaved)
    graph = onnx.make_graph([node], "rotate", values[:3], values[3:])
    opsets = [onnx.make_opsetid("", 23)]
    model = onnx.make_model(graph, opset_imports=opsets, ir_version=10)
    session = runtime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    arrays = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (case.q, case.k)]
    shape = (len(case.q), -1, HEAD_DIM // 2)
    tables = dict(zip(names[1:], (x.reshape(shape) for x in _tables(case)), strict=True))
    return lambda: tuple(session.run(None, {"x": x, **tables})[0] for x in arrays)


def mlx(case: Case, layout: Layout = "half") -> Action:
    """Return ``mlx.core.fast.rope``, which counts positions from the first of each sequence."""
    if case.target.name != "numpy:cpu":
        msg = f"{case.target.name}: mlx takes arrays of its own, which are made of numpy's here"
        raise Absent(msg)
    mx, first = _module("mlx.core"), case.positions[..., 0]
    bits = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (case.q, case.k)]
    arrays = [mx.array(x.astype(np.float32)) for x in bits]
    if case.q.dtype.name == "bfloat16":
        arrays = [x.astype(mx.bfloat16) for x in arrays]
    offset = mx.array(first) if first.ndim else int(first)
    options = {"traditional": layout == "interleaved", "base": BASE, "scale": 1.0}
    mx.eval(arrays)

    def call() -> tuple[Array, ...]:
        results = [mx.fast.rope(x, HEAD_DIM, offset=offset, **options) for x in arrays]
        mx.eval(results)
        return tuple(results)

    return call


def engine(case: Case, layout: Layout = "half") -> Action:
    """Return an operator in C++ as engines write them: in place, cos and sin from a cache."""
    torch, (target, q, k, positions) = _torch(case), case
    if target.name != "torch:cpu":
        msg = f"{target.name}: the operator is for CPUs"
        raise Absent(msg)
    rotate, own = _build_engine(), (target.copy(q), target.copy(k))
    rows = positions.long().flatten()
    cache = torch.zeros(int(rows.max()) + 1, HEAD_DIM)
    cache[rows] = torch.cat([torch.from_numpy(x) for x in _tables(case)], -1).flatten(0, -2)

    def call() -> tuple[Array, ...]:
        rotate(*own, rows, cache, layout == "interleaved")
        return own

    return call


@functools.cache
def _build_engine() -> Any:
    """Return the operator, compiled for this processor."""
    _module("ninja")
    if shutil.which("c++") is None:
        msg = "there is no compiler for C++"
        raise Absent(msg)
    torch = importlib.import_module("torch")
    importlib.import_module("torch.utils.cpp_extension").load(
        "rope_xp_engine",
        [str(Path(__file__).with_name("engine.cpp"))],
        extra_cflags=["-O3", "-march=native"],
        is_python_module=False,
    )
    return torch.ops.rope_xp_engine.rope.default


RIVALS: dict[str, Callable[..., Action]] = {
    "usual": usual,
    "torch_compile": torch_compile,
    "transformers": transformers,
    "rotary_embedding_torch": rotary_embedding_torch,
    "torch_onnx": torch_onnx,
    "onnxruntime": onnxruntime,
    "mlx": mlx,
    "engine": engine,
}
"""By name. Each makes ready what rotates q and k of a case, or raises Absent.

What torch_onnx, onnxruntime and mlx return has heads before tokens, as they want it.
"""


def _tables(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return cos and sin, (*positions.shape, head_dim / 2), float32."""
    frequencies = BASE ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    unit = formulas.turns(case.target.fetch(case.positions), frequencies)
    return unit.real.astype(np.float32), unit.imag.astype(np.float32)


def _torch(case: Case) -> Any:
    if case.target.library != "torch":
        msg = f"{case.target.name}: only torch has this"
        raise Absent(msg)
    return importlib.import_module("torch")


def _module(name: str) -> Any:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        msg = f"{name.partition('.')[0]} is not installed"
        raise Absent(msg)
    return importlib.import_module(name)
