"""Time calls of rope_xp, and of what users run instead of it.

q and k are those of one layer of Llama-3-8B unless a row says otherwise: 32 and 8 heads of 128
components.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from measured_group import SHORT_TURNS, Group, Rows, shortest

import rope_xp
from asv_benchmarks import entries, gradients
from asv_benchmarks import norm as norms
from asv_benchmarks.shared import common, contenders, rival_calls
from rope_xp._bench import formulas, inputs
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import BASE, HEAD_DIM, Case
from rope_xp._core.typing import Layout

EPS = 1e-6
TOUCHED = 1 << 27
"""Numbers of float64: more than the calls of a group hold at once."""
LIBRARIES = ("numpy", "torch", "jax")
ROOT = Path(__file__).resolve().parents[2]
PATHS = (ROOT, ROOT / "backends", ROOT / "tests")
PEAK = """
from asv_benchmarks import memory
measured = memory.Peak()
measured.setup("{library}:cpu", "float32")
print(measured.track_peak_over_results("", ""), measured.track_peak_of_usual("", ""))
"""


def norm_and_formula(case: Case, *, compiled: bool = False) -> Action:
    """Return RMSNorm, then the usual formula; in jax jitted."""
    target, q, k, positions = case
    rotate = formulas.usual_formula(target, BASE)
    weights = tuple(x[0, 0, 0] * 0 + 1 for x in (q, k))

    def both(q: Any, k: Any, q_weight: Any, k_weight: Any, positions: Any) -> tuple[Any, ...]:
        return tuple(rotate(normalize(q, q_weight), normalize(k, k_weight), positions))

    if target.library == "jax":
        import jax

        def normalize(x: Any, weight: Any) -> Any:
            y = x.astype(jax.numpy.float32)
            scale = jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + EPS)
            return (y * scale).astype(x.dtype) * weight

        call: Callable[..., Any] = jax.jit(both)
    else:
        import torch

        def normalize(x: Any, weight: Any) -> Any:
            return torch.rms_norm(x, (HEAD_DIM,), weight, EPS)

        call = torch.compile(both) if compiled else both
    return partial(call, q, k, *weights, positions)


def with_norm(case: Case) -> Action:
    """Return a rotation into new arrays with RMSNorm in the same pass."""
    _, q, k, positions = case
    norm = rope_xp.QKNorm(*(x[0, 0, 0] * 0 + 1 for x in (q, k)))
    return partial(rope_xp.RoPE(base=BASE, layout="half").apply, q, k, positions, norm=norm)


def jitted(dtype: str, tokens: int) -> dict[str, Action]:
    """Return jitted rotations in jax, with a norm and without."""
    _, normalized, alone = norms.calls("jax:cpu", dtype, tokens)
    return {"jitted norm": normalized, "jitted": alone}


def prefill(library: str, *dtypes: str) -> Rows:
    """Return milliseconds of 4096 tokens."""
    # A virtual machine gets memory from its host when it first touches it, ten times as slowly as
    # ever after. Whoever allocates next would pay for that.
    np.ones(TOUCHED)
    name, rows = f"{library}:cpu", {}
    for dtype in dtypes:
        target, calls = contenders.contenders(name, "half", dtype)
        case = common.case(name, dtype=dtype)
        calls = {
            **calls,
            "formula": rival_calls.action("usual", case, "half"),
            "norm": with_norm(case),
        }
        if library != "numpy":
            calls["norm, formula"] = norm_and_formula(case)
        if library == "jax":
            calls |= jitted(dtype, common.TOKENS)
        if library == "torch":
            calls["compiled formula"] = rival_calls.action("torch_compile", case, "half")
            calls["norm, formula, compiled"] = norm_and_formula(case, compiled=True)
        rows[dtype] = shortest(target, calls, "ms")
    return rows


def rivals() -> Rows:
    """Return milliseconds of 4096 tokens of packages, in the layout that each rotates."""
    np.ones(TOUCHED)
    rows = {}
    layout: Layout
    for library, package, layout, dtypes in (
        ("torch", "rotary_embedding_torch", "interleaved", inputs.DTYPES),
        ("torch", "torch_onnx", "half", inputs.DTYPES),
        ("numpy", "onnxruntime", "half", inputs.DTYPES[:1]),
    ):
        for dtype in dtypes:
            name = f"{library}:cpu"
            target, ours = contenders.contenders(name, layout, dtype)
            theirs = rival_calls.action(package, common.case(name, dtype=dtype), layout)
            calls = {"rope_xp": ours["new"], "rope_xp out": ours["out"], "rival": theirs}
            rows[f"{package} {dtype}"] = shortest(target, calls, "ms")
    return rows


def training() -> Rows:
    """Return milliseconds of the gradients of q and k, with a norm also of its weights."""
    import torch

    np.ones(TOUCHED)
    rows = {}
    for name in ("torch:cpu", "jax:cpu"):
        for dtype in inputs.DTYPES:
            made = gradients.Training()
            made.setup(name, dtype)
            calls = {"rope_xp": made.ours, "formula": made.usual}
            if name == "torch:cpu":
                calls |= _train_norm(torch, common.case(name, dtype=dtype))
            rows[f"{made.target.library} {dtype}"] = shortest(made.target, calls, "ms")
    return rows


def _train_norm(torch: Any, case: Case) -> dict[str, Action]:
    target, q, k, positions = case
    leaves = [x.detach().clone().requires_grad_() for x in (q, k)]
    leaves += [torch.ones(HEAD_DIM, dtype=q.dtype, requires_grad=True) for _ in "qk"]
    ones = [torch.ones_like(x) for x in (q, k)]
    rope, rotate = rope_xp.RoPE(base=BASE, layout="half"), formulas.usual_formula(target, BASE)

    def fused(q: Any, k: Any, *weights: Any) -> Any:
        return rope.apply(q, k, positions, norm=rope_xp.QKNorm(*weights))

    def apart(q: Any, k: Any, *weights: Any) -> Any:
        normed = (
            torch.rms_norm(x, (HEAD_DIM,), w, EPS) for x, w in zip((q, k), weights, strict=True)
        )
        return rotate(*normed, positions)

    return {
        "norm": lambda: torch.autograd.grad(fused(*leaves), leaves, ones),
        "norm, formula": lambda: torch.autograd.grad(apart(*leaves), leaves, ones),
    }


def one_token() -> Rows:
    """Return microseconds of one token at position 5000, float32."""
    rows = {}
    for library in LIBRARIES:
        name = f"{library}:cpu"
        target, made = contenders.contenders(name, "half", "float32", 1, common.POSITION)
        case = common.case(name, 1, common.POSITION)
        calls = {key: made[key] for key in ("new", "out", "in place") if key in made}
        calls |= {"norm": with_norm(case), "formula": rival_calls.action("usual", case, "half")}
        if library != "numpy":
            calls["norm, formula"] = norm_and_formula(case)
        if library == "jax":
            calls |= jitted("float32", 1)
        if library == "torch":
            calls["transformers"] = rival_calls.action("transformers", case, "half")
            calls["norm, formula, compiled"] = norm_and_formula(case, compiled=True)
        rows[library] = shortest(target, calls, "us")
    return rows


def engines() -> Rows:
    """Return microseconds of q and k in place, and of what engines and other libraries run."""
    np.ones(TOUCHED)
    rows = {}
    for tokens in ("1", "32 of 1", "512", "4096"):
        for dtype in inputs.DTYPES:
            for layout in ("half", "interleaved"):
                rows[f"{tokens}, {dtype}, {layout}"] = _engines(tokens, dtype, layout)
    return rows


def _engines(tokens: str, dtype: str, layout: Any) -> dict[str, float]:
    """Return microseconds of all that rotates such q and k, the calls of a library in turns."""
    figures: dict[str, float] = {}
    for name in ("torch:cpu", "numpy:cpu"):
        case = _case(name, tokens, dtype)
        target, q, k, positions = case
        own = (target.copy(q), target.copy(k))
        rope = rope_xp.RoPE(base=BASE, layout=layout)
        calls: dict[str, Action] = {
            f"rope_xp {target.library}": partial(rope.apply, *own, positions, out=own)
        }
        if name == "torch:cpu":
            calls["engine"] = rival_calls.action("engine", case, layout)
            calls["formula"] = rival_calls.action("usual", case, layout)
        else:
            calls["mlx"] = rival_calls.action("mlx", case, layout)
            if dtype == "float32":
                calls["onnxruntime"] = rival_calls.action("onnxruntime", case, layout)
        figures |= shortest(target, calls, "us")
    return figures


def _case(name: str, tokens: str, dtype: str) -> Case:
    """Return a case of one sequence, or of 32 sequences of one token each."""
    if tokens != "32 of 1":
        return common.case(name, int(tokens), dtype=dtype)
    target, q, k, positions = common.case(name, 32, common.POSITION, dtype)
    return Case(target, *(x.reshape(32, 1, -1, HEAD_DIM) for x in (q, k)), positions[:, None])


def ways() -> Rows:
    """Return times of one token over those of the formula, by way to call."""
    import torch

    rows: Rows = {}
    torch.set_num_threads(1)
    for library, mode in (("numpy", "plain"), ("torch", "plain"), ("torch", "gradients")):
        column = library if mode == "plain" else f"{library}, gradients"
        with torch.set_grad_enabled(mode == "gradients"):
            for name, way in entries.build(library, "float32", 1, mode).items():
                call, formula = entries.measure(way.call, way.formula, SHORT_TURNS)
                rows.setdefault(name, {})[column] = call / formula
    return rows


def layers() -> Rows:
    """Return microseconds of one token by a layer of each framework, and by rope.apply."""
    rope, rows = rope_xp.RoPE(base=BASE, layout="half"), {}
    for framework, library in (
        ("torch", "torch"),
        ("flax", "jax"),
        ("equinox", "jax"),
        ("keras", "torch"),
    ):
        case = common.case(f"{library}:cpu", 1, common.POSITION)
        target, q, k, at = case
        if framework == "keras":
            os.environ.setdefault("KERAS_BACKEND", "torch")
        layer = import_module(f"rope_xp.layers.{framework}").Rotary(rope)
        calls = {"layer": partial(layer, q, k, at), "apply": partial(rope.apply, q, k, at)}
        if framework == "keras":
            empty = import_module("keras").layers.Identity()
            calls["empty layer"] = lambda empty=empty, q=q: (empty(q),)
        rows[framework] = shortest(target, calls, "us")
    return rows


def peak() -> Rows:
    """Return the peak of a call of 4096 tokens over the size of its results, each in a process."""
    found: Rows = {}
    for library in ("numpy", "torch", "jax"):
        command = [sys.executable, "-c", PEAK.format(library=library)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PATHS))}
        printed = subprocess.check_output(command, cwd=PATHS[0], env=environment, text=True)  # noqa: S603  # this Python
        found[library] = dict(zip(("rope_xp", "formula"), map(float, printed.split()), strict=True))
    return found


GROUPS: dict[str, Group] = {
    "prefill_numpy": Group("ms", partial(prefill, "numpy", "float32", "float16", "bfloat16")),
    "prefill_torch": Group("ms", partial(prefill, "torch", "float32", "bfloat16")),
    "prefill_jax": Group("ms", partial(prefill, "jax", "float32", "bfloat16")),
    "rivals": Group("ms", rivals),
    "training": Group("ms", training),
    "one_token": Group("us", one_token),
    "engines": Group("us", engines),
    "layers": Group("us", layers),
    "peak": Group("results", peak, "one call after one that warms up"),
    "ways": Group("times", ways, f"the shortest of {SHORT_TURNS} turns"),
}
