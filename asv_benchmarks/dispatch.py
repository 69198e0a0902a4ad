"""Decode: one token, where the limit is what a call costs on the host."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
from asv_runner.benchmarks.mark import SkipNotImplemented

import rope_xp
from rope_xp import _angles, _positions, _rotate
from rope_xp._targets import Target

from . import common
from .contenders import usual

ROPE = rope_xp.RoPE(base=common.BASE, layout="half")
POSITION = 5000
KERNELS = ("numpy:cpu", "torch:cpu")


class Decode:
    """From positions to rotated q and k: rope_xp beside the formula in common use."""

    params = (common.TARGETS,)
    param_names = ("target",)

    def setup(self, target: str) -> None:
        self.target, q, k, positions = common.case(target, 1, POSITION)
        formula, llama = usual(self.target), None
        if self.target.library == "torch":
            llama = _llama(self.target)
        self.calls = {
            "apply": lambda: ROPE.apply(q, k, positions),
            "usual": lambda: formula(q, k, positions),
            "llama": llama and (lambda: llama(q, k, positions)),
        }
        if target in KERNELS and importlib.util.find_spec("numba"):
            with rope_xp.use_backend("numba"):  # compiled by now, as a prefill comes before
                ROPE.apply(q, k, positions)

    def best(self, name: str) -> float:
        call = self.calls[name]
        if call is None:
            raise SkipNotImplemented("only where transformers and torch are installed")
        return common.best_microseconds(self.target, call)

    def track_apply(self, target: str) -> float:
        return self.best("apply")

    def track_usual_formula(self, target: str) -> float:
        """Its angles shared by q and k; jitted in jax."""
        return self.best("usual")

    def track_llama(self, target: str) -> float:
        """LlamaRotaryEmbedding and apply_rotary_pos_emb, as transformers runs them."""
        return self.best("llama")

    track_apply.unit = track_usual_formula.unit = track_llama.unit = "us"


def decode(target: str) -> dict[str, float]:
    """Return the microseconds of each contender that a target has."""
    benchmark = Decode()
    benchmark.setup(target)
    return {name: benchmark.best(name) for name, call in benchmark.calls.items() if call}


def _llama(target: Target) -> Callable[..., tuple] | None:
    if importlib.util.find_spec("transformers") is None:
        return None
    modeling = importlib.import_module("transformers.models.llama.modeling_llama")
    config = importlib.import_module("transformers").LlamaConfig(
        hidden_size=4096, num_attention_heads=32, num_key_value_heads=8
    )
    device = target.put(np.ones(1, np.float32)).device
    embedding = modeling.LlamaRotaryEmbedding(config).to(device)

    def rotate(q: Any, k: Any, positions: Any) -> tuple:
        cos, sin = embedding(q, positions[None])
        return modeling.apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=2)

    return rotate


def _constant(value: object) -> Callable[..., object]:
    # A Mock would do the same in 20 us.
    def same(*_: object, **__: object) -> object:
        return value

    return same


def track_overhead() -> float:
    """Microseconds of an apply() in numpy that are neither rotation nor angles: at most 5.

    All that computes is replaced by constants. What is left recognises and checks arguments and
    picks the path.
    """
    target, q, k, positions = common.case("numpy:cpu", 1, POSITION)
    table = np.ones((1, 64), np.float32)
    tables = target.backend.tables(ROPE, 128, False, False, q)
    resolved = (positions, None, _angles.UNKNOWN)

    with (
        mock.patch.object(_angles, "cos_sin", _constant((table, table))),
        mock.patch.object(_rotate, "rotate", _constant(q)),
        mock.patch.object(_positions, "resolve", _constant(resolved)),
        mock.patch.object(target.backend, "tables", _constant(tables)),
        rope_xp.use_backend("portable"),
    ):
        return common.best_microseconds(target, lambda: ROPE.apply(q, k, positions), 5000)


track_overhead.unit = "us"
