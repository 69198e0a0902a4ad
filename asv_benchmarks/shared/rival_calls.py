"""What users run today instead of rope_xp, each as its own documentation has it called.

Those called "usual", "transformers" and "mlx" compute their angles in each call, as rope_xp does.
All others are handed cos and sin, made beforehand, as their models make them. Packages are
optional. tests/benchmarks sees to it that each of them rotates as rope_xp does.
"""

import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rope_xp._bench import formulas
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import BASE, CannotMeasure, Case
from rope_xp._bench.targets import NAMES, Target
from rope_xp._core.typing import Array, Layout

from . import engine_build

Arrays = tuple[Array, ...]
Function = Callable[[Arrays, Array], Arrays]
"""From q and k, or one array alone, and their positions."""


class Setting(NamedTuple):
    """What a function is made for. What it computes of it beforehand is not timed."""

    target: Target
    positions: Array
    """(batch, tokens), or (tokens,) of a single sequence."""
    arrays: Arrays
    layout: Layout = "half"


class Contender(NamedTuple):
    """How a function that rotates is made, and what it can do."""

    make: Callable[[Setting], Function]
    targets: tuple[str, ...] = ("torch:cpu", "torch:gpu")
    layouts: tuple[Layout, ...] = ("half",)
    in_place: bool = False
    gradient: bool = True
    alone: bool = False
    """Whether it takes one array as well as two."""
    normalizes: bool = False
    """Whether it applies RMSNorm without weights before it rotates."""


def action(name: str, case: Case, layout: Layout) -> Action:
    """Return what rotates q and k of a case by a rival, or raise CannotMeasure."""
    rival, at = RIVALS[name], setting(case, layout)
    if case.target.name not in rival.targets or layout not in rival.layouts:
        raise CannotMeasure(f"{name} does not rotate {layout} on {case.target.name}")
    arrays = tuple(map(case.target.copy, at.arrays)) if rival.in_place else at.arrays
    function = rival.make(at)
    return lambda: function(arrays, at.positions)


def setting(case: Case, layout: Layout = "half") -> Setting:
    """Return q and k of a case as a function is made for them."""
    return Setting(case.target, case.positions, (case.q, case.k), layout)


def load(module: str, name: str) -> Any:
    """Return what a module defines, or raise CannotMeasure with why it cannot be imported."""
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise CannotMeasure(str(error)) from error


def tables(at: Setting) -> tuple[Array, Array]:
    """Return cos and sin, (batch, tokens, head_dim / 2), in the dtype of q."""
    batch, tokens, _, dim = at.arrays[0].shape
    frequencies = BASE ** (-np.arange(0, dim, 2) / dim)
    unit = formulas.turns(at.target.fetch(at.positions), frequencies)
    shape, xp = (batch, tokens, dim // 2), at.target.backend.xp
    cos, sin = (
        xp.astype(
            at.target.put(np.array(np.broadcast_to(x, shape), np.float32)), at.arrays[0].dtype
        )
        for x in (unit.real, unit.imag)
    )
    return cos, sin


def float32_tables(at: Setting) -> tuple[Array, Array]:
    """Return the same in float32."""
    return tables(at._replace(arrays=(at.arrays[0].float(),)))


# --- formulas ------------------------------------------------------------------------------------


def usual(at: Setting) -> Function:
    """Return the formula of Hugging Face's Llama, or of GPT-J; in jax jitted."""
    xp = at.target.backend.xp

    def every_two(x: Array, cos: Array, sin: Array) -> Array:
        half = x.shape[-1] // 2
        cos, sin = (
            xp.repeat(xp.astype(y[..., None, :half], x.dtype), 2, axis=-1) for y in (cos, sin)
        )
        partner = xp.reshape(xp.stack([-x[..., 1::2], x[..., ::2]], axis=-1), x.shape)
        return x * cos + partner * sin

    def halves(x: Array, cos: Array, sin: Array) -> Array:
        return formulas.usual_apply_tables(xp, x, cos, sin)

    rotate_one = halves if at.layout == "half" else every_two

    def rotate(arrays: Arrays, positions: Array) -> Arrays:
        cos, sin = formulas.usual_cos_sin(xp, positions, arrays[0].shape[-1], BASE)
        return tuple(rotate_one(x, cos, sin) for x in arrays)

    return load("jax", "jit")(rotate) if at.target.library == "jax" else rotate


def compiled(make: Callable[[Setting], Function]) -> Callable[[Setting], Function]:
    """Have what is made compiled by torch.compile."""
    return lambda at: load("torch", "compile")(make(at), dynamic=False)


def transformers(at: Setting) -> Function:
    """Return LlamaRotaryEmbedding and apply_rotary_pos_emb, as transformers calls them."""
    modeling, q = "transformers.models.llama.modeling_llama", at.arrays[0]
    config = load("transformers", "LlamaConfig")(
        head_dim=q.shape[-1], rope_parameters={"rope_type": "default", "rope_theta": BASE}
    )
    embedding = load(modeling, "LlamaRotaryEmbedding")(config).to(q.device)
    rotate = load(modeling, "apply_rotary_pos_emb")

    def function(arrays: Arrays, positions: Array) -> Arrays:
        cos, sin = embedding(arrays[0], positions.reshape(-1, arrays[0].shape[1]))
        return tuple(rotate(*arrays, cos, sin, unsqueeze_dim=2))

    return function


def hf_apply(at: Setting) -> Function:
    """Return apply_rotary_pos_emb alone."""
    rotate = load("transformers.models.llama.modeling_llama", "apply_rotary_pos_emb")
    cos, sin = (x.repeat(1, 1, 2) for x in tables(at))
    return lambda arrays, _: tuple(rotate(*arrays, cos, sin, unsqueeze_dim=2))


def rotary_embedding_torch(at: Setting) -> Function:
    """Return the package of that name. It counts positions itself, and keeps their angles."""
    rotary = load("rotary_embedding_torch", "RotaryEmbedding")(at.arrays[0].shape[-1], theta=BASE)
    rotate, start = rotary.to(at.arrays[0].device).rotate_queries_or_keys, int(at.positions[..., 0])
    return lambda arrays, _: tuple(
        rotate(x.transpose(1, 2), offset=start).transpose(1, 2) for x in arrays
    )


# --- operators for CPUs --------------------------------------------------------------------------


def torch_onnx(at: Setting) -> Function:
    """Return the operator of ONNX in torch."""
    rotate, (cos, sin) = load("torch.onnx.ops", "rotary_embedding"), tables(at)
    options = {"interleaved": at.layout == "interleaved"}
    return lambda arrays, _: tuple(
        rotate(x.transpose(1, 2), cos, sin, **options).transpose(1, 2) for x in arrays
    )


def onnxruntime(at: Setting) -> Function:
    """Return the operator of ONNX in onnxruntime, on arrays of numpy with heads first."""
    if at.arrays[0].dtype != np.float32:
        raise CannotMeasure("onnxruntime takes arrays of numpy here, and its operator no bfloat16")
    runtime, names = load("onnxruntime", "InferenceSession"), ["x", "cos", "sin"]
    onnx, float32 = load("onnx", "helper"), load("onnx", "TensorProto").FLOAT
    values = [onnx.make_tensor_value_info(n, float32, None) for n in (*names, "y")]
    interleaved = int(at.layout == "interleaved")
    node = onnx.make_node("RotaryEmbedding", names, ["y"], interleaved=interleaved)
    graph = onnx.make_graph([node], "rotate", values[:3], values[3:])
    model = onnx.make_model(graph, opset_imports=[onnx.make_opsetid("", 23)], ir_version=10)
    options = load("onnxruntime", "SessionOptions")()
    if hasattr(os, "sched_getaffinity"):  # as many as this process may use, on Linux
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
    session = runtime(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    given = dict(zip(names[1:], tables(at), strict=True))
    first = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in at.arrays]
    return lambda *_: tuple(session.run(None, {"x": x, **given})[0].swapaxes(1, 2) for x in first)


def mlx(at: Setting) -> Function:
    """Return mlx.core.fast.rope, on arrays of its own with heads first."""
    rotate, mx = load("mlx.core", "fast").rope, importlib.import_module("mlx.core")
    dtype = getattr(mx, str(at.arrays[0].dtype))
    first = [mx.array(x.astype(np.float32)).astype(dtype).swapaxes(1, 2) for x in at.arrays]
    first = [mx.contiguous(x) for x in first]
    starts = mx.array(at.positions.reshape(-1, at.arrays[0].shape[1])[:, 0])
    traditional, dim = at.layout == "interleaved", at.arrays[0].shape[-1]
    mx.eval(first, starts)

    def function(*_: Any) -> Arrays:
        rotated = tuple(
            rotate(x, dim, traditional=traditional, base=BASE, scale=1.0, offset=starts)
            for x in first
        )
        mx.eval(rotated)
        return tuple(x.swapaxes(1, 2) for x in rotated)

    return function


def engine(at: Setting) -> Function:
    """Return an operator in C++ as engines write them: in place, cos and sin from a cache."""
    rotate, torch = engine_build.operator(), importlib.import_module("torch")
    rows = at.positions.long().flatten()
    cos, sin = (x.flatten(0, 1) for x in float32_tables(at))
    cache = torch.zeros(int(rows.max()) + 1, 2 * cos.shape[-1])
    cache[rows] = torch.cat([cos, sin], -1)
    interleaved = at.layout == "interleaved"

    def function(arrays: Arrays, _: Array) -> Arrays:
        rotate(*arrays, rows, cache, interleaved)
        return arrays

    return function


# --- kernels for GPUs ----------------------------------------------------------------------------


def liger(at: Setting) -> Function:
    """Return Liger-Kernel's, which takes heads first by name and last in memory."""
    rotate = load("liger_kernel.transformers.rope", "liger_rotary_pos_emb")
    cos, sin = (x.repeat(1, 1, 2) for x in tables(at))

    def function(arrays: Arrays, _: Array) -> Arrays:
        turned = rotate(*(x.transpose(1, 2) for x in arrays), cos, sin)
        return tuple(x.transpose(1, 2) for x in turned)

    return function


def each(module: str) -> Callable[[Setting], Function]:
    """Hand over q, then k: flash-attn and quack take one array a launch."""

    def make(at: Setting) -> Function:
        rotate, (cos, sin) = load(module, "apply_rotary_emb"), (x[0] for x in tables(at))
        return lambda arrays, _: tuple(rotate(x, cos, sin) for x in arrays)

    return make


def rotary_emb(at: Setting) -> Function:
    """Hand over halves of x and of its result, which it fills."""
    rotate, empty_like = load("rotary_emb", "apply_rotary"), load("torch", "empty_like")
    cos, sin = (x[0, :, None] for x in tables(at))

    def one(x: Array) -> Array:
        out = empty_like(x)
        rotate(*x.chunk(2, -1), cos, sin, *out.chunk(2, -1), False)  # no conjugate
        return out

    return lambda arrays, _: tuple(map(one, arrays))


def flashinfer(at: Setting) -> Function:
    """Hand over packed tokens, rows of a cache in float32, and which row each token reads."""
    rotate = load("flashinfer.rope", "apply_rope_with_cos_sin_cache")
    batch, tokens, _, dim = at.arrays[0].shape
    cache = load("torch", "cat")([x[0] for x in float32_tables(at)], dim=-1)
    rows = (at.positions - at.positions[..., :1]).expand(batch, tokens).flatten().int()

    def function(arrays: Arrays, _: Array) -> Arrays:
        packed = (x.flatten(0, 1).flatten(1) for x in arrays)
        turned = rotate(rows, *packed, dim, cache)  # of halves, unless told otherwise
        return tuple(y.view(x.shape) for x, y in zip(arrays, turned, strict=True))

    return function


BOTH: tuple[Layout, ...] = ("half", "interleaved")
RIVALS = {
    "usual": Contender(usual, NAMES, BOTH, alone=True),
    "torch_compile": Contender(compiled(usual), layouts=BOTH, alone=True),
    "transformers": Contender(transformers),
    "hf_apply": Contender(hf_apply),
    "hf_apply_compiled": Contender(compiled(hf_apply)),
    "rotary_embedding_torch": Contender(rotary_embedding_torch, layouts=("interleaved",)),
    "torch_onnx": Contender(torch_onnx, layouts=BOTH),
    "onnxruntime": Contender(onnxruntime, ("numpy:cpu",), BOTH),
    "mlx": Contender(mlx, ("numpy:cpu",), BOTH),
    "engine": Contender(engine, ("torch:cpu",), BOTH, in_place=True),
    "liger": Contender(liger, in_place=True),
    "flash_attn": Contender(each("flash_attn.layers.rotary")),
    "quack": Contender(each("quack.rotary")),
    "flashinfer": Contender(flashinfer, gradient=False),
    "rotary_emb": Contender(rotary_emb, gradient=False),
}
"""By name, in the layouts and on the targets where each is measured."""
