"""Forward and backward, as in training, compared with the usual formula."""

import importlib
from collections.abc import Callable
from typing import Any

import rope_xp
from rope_xp._bench import clock, formulas, inputs

from . import common

Call = Callable[[Any, Any, Any], tuple[Any, ...]]


class Training:
    """The gradients of q and k, where both rotated arrays have a gradient of ones."""

    version = "1"
    params = ([*common.TORCH, *common.JAX], common.DTYPES)
    param_names = ("target", "dtype")
    timeout = 300

    def setup(self, target: str, dtype: str) -> None:
        case = common.case(target, dtype=dtype)
        self.target = case.target
        make = _torch if self.target.library == "torch" else _jax
        rope = rope_xp.RoPE(base=inputs.BASE, layout="half")
        self.ours = make(rope.apply, case)
        self.usual = make(formulas.usual_formula(case.target, inputs.BASE), case)
        clock.wait(self.target, self.ours())

    def time_gradients(self, target: str, dtype: str) -> None:
        clock.wait(self.target, self.ours())

    def track_time_over_usual(self, target: str, dtype: str) -> float:
        times = clock.best_seconds(self.target, common.REPEAT, self.ours, self.usual)
        return common.over(*times)


def _torch(call: Call, case: inputs.Case) -> clock.Action:
    torch = importlib.import_module("torch")
    q, k = (x.detach().clone().requires_grad_() for x in case[1:3])
    ones = tuple(torch.ones_like(x) for x in (q, k))
    return lambda: torch.autograd.grad(call(q, k, case.positions), (q, k), ones)


def _jax(call: Call, case: inputs.Case) -> clock.Action:
    jax = importlib.import_module("jax")
    _, q, k, positions = case

    @jax.jit
    def gradients(q: Any, k: Any, positions: Any) -> tuple[Any, ...]:
        results, back = jax.vjp(lambda q, k: tuple(call(q, k, positions)), q, k)
        return *results, *back(tuple(jax.numpy.ones_like(x) for x in results))

    return lambda: gradients(q, k, positions)
