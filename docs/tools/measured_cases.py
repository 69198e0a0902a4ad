"""Time what differs in one thing: angles made once, layers, graphs, arrangements, thresholds."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import time_dense_form
import time_thresholds
from measured_calls import LIBRARIES
from measured_group import Group, Rows, shortest

import rope_xp
from asv_benchmarks import in_graph
from asv_benchmarks.report import cliffs, noise
from asv_benchmarks.shared import common
from rope_xp._bench import inputs
from rope_xp._bench.inputs import BASE, HEAD_DIM, CannotMeasure

NOISY = (
    "apply.(Prefill.track_time_over_copy|Memory.track_time_over_limit)"
    "|rivals.Usual.track_time_over|dispatch.track_overhead"
)
IN_GRAPH = "the shortest of 27 turns of nine rotations, less that of one, by eight"


def angles() -> Rows:
    """Return microseconds of 32 layers, by positions and by angles that are made once."""
    rope, rows = rope_xp.RoPE(base=BASE, layout="half"), {}

    def by_positions(q: Any, k: Any, positions: Any) -> tuple[Any, ...]:
        for _ in range(31):
            rope.apply(q, k, positions)
        return rope.apply(q, k, positions)

    def by_angles(q: Any, k: Any, positions: Any) -> tuple[Any, ...]:
        made = rope.at(positions, like=q)
        for _ in range(31):
            made.apply(q, k)
        return made.apply(q, k)

    for library in LIBRARIES[:2]:
        for tokens in (1, 512):
            target, *arrays = common.case(f"{library}:cpu", tokens)
            calls = {"apply": partial(by_positions, *arrays), "at": partial(by_angles, *arrays)}
            rows[f"{library}, {tokens}"] = shortest(target, calls, "us")
    return rows


def positions() -> Rows:
    """Return microseconds of 512 tokens at position 0 and at ten million."""
    rope, rows = rope_xp.RoPE(base=BASE, layout="half"), {}
    for library in LIBRARIES[:2]:
        target, q, k, near = common.case(f"{library}:cpu", 512)
        far = target.put(np.arange(10**7, 10**7 + 512))
        calls = {"near": partial(rope.apply, q, k, near), "far": partial(rope.apply, q, k, far)}
        rows[library] = shortest(target, calls, "us")
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


def mlx() -> Rows:
    """Return microseconds of one array of 32 heads in mlx."""
    import mlx.core as mx

    target, rows = inputs.find("numpy:cpu"), {}
    rope = rope_xp.RoPE(base=BASE, layout="half")
    for tokens in (1, 512):
        x, at = mx.array(np.ones((1, 32, tokens, HEAD_DIM), np.float32)), mx.arange(tokens)
        eager = partial(rope.rotate, axes="bhsd")
        functions = {
            "fast": lambda x, _: mx.fast.rope(
                x, HEAD_DIM, traditional=False, base=BASE, scale=1.0, offset=0
            ),
            "compiled": mx.compile(eager),
            "eager": eager,
        }

        def run(function: Callable[..., Any], x: Any = x, at: Any = at) -> tuple[Any, ...]:
            y = function(x, at)
            mx.eval(y)
            return (y,)

        rows[str(tokens)] = shortest(
            target, {k: partial(run, f) for k, f in functions.items()}, "us"
        )
    return rows


def in_graphs() -> Rows:
    """Return microseconds of one rotation more in a graph of torch.compile."""
    calls = {"rope_xp": "apply", "rope_xp, angles made once": "angles", "formula": "usual"}
    times = in_graph.microseconds([in_graph.Cell(call, None) for call in calls.values()])
    return {name: {"time": time} for name, time in zip(calls, times, strict=True)}


def cliff() -> Rows:
    """Return how many times as fast a case is, byte for byte, as its neighbour or the formula."""
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:1]))  # threads would hide a cliff
    rows: Rows = {}
    formula = {name: (ours, None) for name, ours in cliffs.FORMULA.items()}
    for name, (ours, other) in {**cliffs.CASES, **formula}.items():
        for library in LIBRARIES[:2]:
            with suppress(CannotMeasure):
                ratio = cliffs.times_as_fast(f"{library}:cpu", ours, other).median
                rows.setdefault(name, {})[library] = ratio
    return rows


def noises() -> Rows:
    """Return the least, median and most of asv's figures in ten runs of one commit."""
    runs = [noise.run_once(NOISY) for _ in range(10)]
    return {
        name: {
            "min": min(run[name] for run in runs),
            "median": statistics.median(run[name] for run in runs),
            "max": max(run[name] for run in runs),
        }
        for name in runs[0]
        if "bfloat16" not in name
    }


GROUPS: dict[str, Group] = {
    "angles": Group("us", angles),
    "positions": Group("us", positions),
    "layers": Group("us", layers),
    "mlx": Group("us", mlx),
    "in_graphs": Group("us", in_graphs, IN_GRAPH),
    "cliffs": Group("", cliff, "the median of nine turns, on one core"),
    "noise": Group("", noises, "ten runs of asv, a process each", by_default=False),
    "dense_form": Group("ms", time_dense_form.rows),
    "thresholds": Group("us", time_thresholds.rows, "the shortest of nine turns"),
}
