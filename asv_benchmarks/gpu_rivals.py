"""What gpu_report times beside each other in a library: functions of q, k and positions.

Those called "usual" compute their angles by the float32 formula in each call, as rope_xp computes
its own. Liger-Kernel is handed the usual tables, made beforehand, and writes over its inputs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import rope_xp
from rope_xp._bench import formulas, rivals
from rope_xp._bench.inputs import BASE, HEAD_DIM, Case
from rope_xp._bench.targets import Target
from rope_xp._contract.typing import Array

Function = Callable[[Array, Array, Array], tuple[Array, ...]]
Maker = Callable[[Array], Function]
"""Makes a function for some positions: what may be computed from them beforehand is not timed."""
ROPE = rope_xp.RoPE(base=BASE, layout="half")


def functions(target: Target, compile_too: bool) -> tuple[dict[str, Maker], dict[str, str]]:
    """Return what a target has, and why it lacks the rest."""
    found: dict[str, Maker] = {
        "rope_xp": lambda _: ROPE.apply,
        "usual": lambda _: _usual(target),
    }
    missing: dict[str, str] = {}
    if target.library == "jax":
        return found, missing
    found["rope_xp in place"] = lambda _: lambda q, k, p: ROPE.apply(q, k, p, out=(q, k))
    if target.library != "torch":
        return found, missing
    if compile_too:
        found["usual compiled"] = lambda _: _compiled(_usual(target))
    else:
        missing["usual compiled"] = "left out by --no-compile"
    try:
        liger = importlib.import_module("liger_kernel.transformers.rope").liger_rotary_pos_emb
    except (ImportError, OSError, RuntimeError) as error:
        missing["liger"] = " ".join(str(error).split()) or type(error).__name__
    else:
        found["liger"] = lambda positions: _liger(liger, target, positions)
    return found, missing


def _usual(target: Target) -> Function:
    return rivals.formula(Case(target, None, None, None))


def _compiled(function: Function) -> Function:
    """Compile for the shapes to come, and forget earlier ones, of which torch keeps eight."""
    torch = importlib.import_module("torch")
    torch.compiler.reset()
    return torch.compile(function, dynamic=False)


def _liger(rotate: Callable[..., Any], target: Target, positions: Array) -> Function:
    xp = target.backend.xp
    cos, sin = formulas.usual_cos_sin(xp, positions, HEAD_DIM, BASE)
    if len(cos.shape) == 2:
        cos, sin = cos[None], sin[None]

    def function(q: Array, k: Array, _: Array) -> tuple[Array, ...]:
        # Heads first by name and last in memory, which is what it takes without a copy.
        turned = rotate(q.transpose(1, 2), k.transpose(1, 2), cos, sin)
        return tuple(x.transpose(1, 2) for x in turned)

    return function


def copies(target: Target, q: Array, k: Array) -> Callable[[], tuple[Array, ...]]:
    """Return a copy of q and k into given memory, in jax into new memory."""
    if target.library == "jax":
        return lambda: (target.copy(q), target.copy(k))
    out = target.copy(q), target.copy(k)

    def copy() -> tuple[Array, ...]:
        for to, x in zip(out, (q, k), strict=True):
            target.backend.write(to, x)
        return out

    return copy


def forward_and_backward(
    target: Target, function: Function, q: Array, k: Array, positions: Array
) -> Callable[[], tuple[Array, ...]] | None:
    """Return a call forward and the gradient of it in q and k, None where a library has none."""
    if target.library == "torch":
        torch = importlib.import_module("torch")
        own = [x.detach().clone().requires_grad_() for x in (q, k)]

        def call() -> tuple[Array, ...]:
            results = function(*own, positions)
            return torch.autograd.grad(results, own, (q, k))

        return call
    if target.library != "jax":
        return None
    jax = importlib.import_module("jax")

    @jax.jit
    def both(q: Array, k: Array, positions: Array) -> tuple[Array, ...]:
        results, pull = jax.vjp(lambda q, k: function(q, k, positions), q, k)
        return (*results, *pull((q, k)))

    return lambda: both(q, k, positions)
