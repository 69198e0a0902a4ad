"""What is found out about a library on a GPU: who rotates rightly, times, and costs of a call."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import rope_xp
from asv_benchmarks.shared import contenders, peak
from asv_benchmarks.shared.device_clock import Clock, Failed, attempt, in_turns
from asv_benchmarks.shared.rival_calls import RIVALS, Arrays, Contender, Function, Setting, compiled
from rope_xp._bench import clock, formulas
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import BASE, HEAD_DIM, HEADS, numpy_dtype
from rope_xp._bench.targets import Target

COPY, FLAT_COPY = "copy", "flat copy"
FORWARD, BOTH = "forward", "forward and backward"
US, IN_PLACE, ANGLES, NORMED, IN_JIT, COMPILED = OURS = (
    *("rope_xp", "rope_xp in place", "rope_xp given angles", "rope_xp with a norm"),
    *("rope_xp in jit", "rope_xp compiled"),
)
GPU_RIVALS = (
    *("usual", "torch_compile", "hf_apply", "hf_apply_compiled", "liger", "flash_attn"),
    *("flashinfer", "quack", "rotary_emb"),
)
ROPE = rope_xp.RoPE(base=BASE, layout="half")
FIRST, FAR = 5000, 1_000_000
"""Positions of a first token."""
EPS = 1e-6
"""Of a norm."""


class Case(NamedTuple):
    """The arrays of a timing."""

    batch: int
    tokens: int
    heads: tuple[int, ...] = HEADS
    head_dim: int = HEAD_DIM

    @property
    def bytes(self) -> int:
        """Of all arrays, in bfloat16."""
        return 2 * self.batch * self.tokens * sum(self.heads) * self.head_dim

    def __str__(self) -> str:
        heads = "" if len(self.heads) > 1 else f", one head of {self.head_dim}"
        return f"{self.batch} x {self.tokens}{heads}"

    def put(self, target: Target, dtype: str = "bfloat16", first: int = FIRST) -> Setting:
        """Return arrays and positions, (batch, tokens)."""
        random = np.random.default_rng(0)
        shapes = [(self.batch, self.tokens, heads, self.head_dim) for heads in self.heads]
        hosts = [random.standard_normal(s, np.float32).astype(numpy_dtype(dtype)) for s in shapes]
        positions = np.arange(first, first + self.tokens, dtype=np.int32)
        positions = target.put(np.tile(positions, (self.batch, 1)))
        return Setting(target, positions, tuple(map(target.put, hosts)))


Contenders = dict[str, Contender]
Missing = dict[str, str]


def contenders_of(target: Target, compile_too: bool = True) -> Contenders:
    """Return the ways to call rope_xp, and the rivals that there are on GPUs."""
    ours = Contender(lambda _: _ours, alone=True)
    if target.library == "jax":
        in_jit = Contender(lambda _: importlib.import_module("jax").jit(_ours), alone=True)
        found = {US: ours, IN_JIT: in_jit}
    else:
        in_place = Contender(lambda _: _in_place, in_place=True, gradient=False, alone=True)
        found = {US: ours, IN_PLACE: in_place, ANGLES: Contender(_given_angles, alone=True)}
        found[NORMED] = Contender(_normed, gradient=False, normalizes=True)
    rivals = {name: RIVALS[name] for name in GPU_RIVALS}
    if target.library == "torch":
        found |= {COMPILED: ours._replace(make=compiled(ours.make))} | rivals
    else:
        found["usual"] = rivals["usual"]
    return {name: of for name, of in found.items() if compile_too or "compile" not in name}


def _ours(arrays: Arrays, positions: Any) -> Arrays:
    if len(arrays) == 1:
        return (ROPE.rotate(arrays[0], positions),)
    return ROPE.apply(*arrays, positions)


def _in_place(arrays: Arrays, positions: Any) -> Arrays:
    if len(arrays) == 1:
        return (ROPE.rotate(arrays[0], positions, out=arrays[0]),)
    return ROPE.apply(*arrays, positions, out=arrays)


def _given_angles(at: Setting) -> Function:
    angles = ROPE.at(at.positions, like=at.arrays[0])
    return lambda arrays, _: angles.apply(*arrays) if arrays[1:] else (angles.rotate(*arrays),)


def _normed(at: Setting) -> Function:
    ones = at.target.backend.xp.ones_like(at.arrays[0][0, 0, 0])
    norm = rope_xp.QKNorm(ones, ones, eps=EPS)
    return lambda arrays, positions: ROPE.apply(*arrays, positions, norm=norm)


def copies(target: Target, arrays: Arrays) -> Action:
    """Return a copy of arrays into given memory, in jax into new memory."""
    if target.library != "jax":
        return contenders.copy_into(target, arrays)
    copy_all = importlib.import_module("jax").jit(lambda xs: tuple(target.copy(x) for x in xs))
    return lambda: copy_all(arrays)


def forget_compiled(target: Target) -> None:
    """Forget what was compiled for other shapes, as torch keeps eight of a function."""
    if target.library == "torch":
        importlib.import_module("torch").compiler.reset()


def tried(target: Target, made: Contenders) -> tuple[Contenders, Missing]:
    """Return what rotates a few tokens as float64 does, and why the rest is not timed."""
    at = Case(2, 16).put(target)
    host, frequencies = target.fetch(at.positions), ROPE.frequencies(HEAD_DIM)
    wide = [target.fetch(x).astype(np.float64) for x in at.arrays]
    turned = [formulas.rotate_exact(x, host, frequencies, "half") for x in wide]
    factors = [1 / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) for x in wide]
    # Rounding x, cos, sin, two products and their sum to 8 bits: 5 times 2**-8 of the largest pair.
    bound = 5 * 2.0**-8 * max(np.abs(x).max() for x in turned)

    def decline_reason(contender: Contender) -> str | None:
        pairs = zip(turned, factors, strict=True)
        exact = [x * factor if contender.normalizes else x for x, factor in pairs]
        own = tuple(map(target.copy, at.arrays))  # as some write over their inputs
        found = contender.make(at._replace(arrays=own))(own, at.positions)
        with np.errstate(invalid="ignore"):  # NaN is found below
            hosts = [target.fetch(x).astype(np.float64) for x in found]
        if [x.shape for x in hosts] != [x.shape for x in exact]:
            return f"returns {[x.shape for x in hosts]} for {[x.shape for x in exact]}"
        off = max(np.abs(x - y).max() for x, y in zip(hosts, exact, strict=True))
        if off <= bound:
            return None
        return f"rotates differently: off by {off:.3g}, where {bound:.3g} is rounding"

    forget_compiled(target)
    why = {name: attempt(decline_reason, contender) for name, contender in made.items()}
    missing = {name: str(reason) for name, reason in why.items() if reason is not None}
    return {name: of for name, of in made.items() if name not in missing}, missing


def speed(
    target: Target, timed: Clock, made: Contenders, case: Case, repeat: int
) -> tuple[list[dict[str, Any]], Missing]:
    """Return a row for each contender, forward and forward with backward, and what failed.

    Nothing for a case whose copies fail, because all others are compared with them.
    """
    at, missing = case.put(target), Missing()
    copy = copies(target, at.arrays)
    forward, both = {COPY: copy}, {COPY: copy}
    if len(at.arrays) > 1:  # side by side in memory: the most that a device can do
        xp = target.backend.xp
        forward[FLAT_COPY] = copies(target, (xp.concat([xp.reshape(x, (-1,)) for x in at.arrays]),))

    def prepare(name: str, contender: Contender) -> None:
        function = contender.make(at)
        own = tuple(map(target.copy, at.arrays))  # as some write over their inputs
        call = partial(function, own, at.positions)
        clock.wait(target, call())
        forward[name] = call
        arguments = (target, function, at.arrays, at.positions)
        if contender.gradient and (call := contenders.forward_and_backward(*arguments)):
            clock.wait(target, call())
            both[name] = call

    # Once for all: none may throw away what another has compiled for the same shapes.
    forget_compiled(target)
    for name, contender in made.items():
        if len(at.arrays) > 1 or contender.alone:
            failed = attempt(prepare, name, contender)
            if failed is not None:
                forward.pop(name, None)
                missing[name] = str(failed)
    rows = []
    for actions, direction in ((forward, FORWARD), (both, BOTH)):
        if len(actions) == 1:  # the copy alone
            continue
        timings, broken = in_turns(target, timed[1], actions, repeat)
        missing |= {f"{name}, {direction}": why for name, why in broken.items()}
        if COPY not in timings:
            continue
        limit = np.median([t.seconds for t in timings[COPY]]) * (2 if direction == BOTH else 1)
        for name, taken in timings.items():
            times = [t.seconds for t in taken]
            of_median_min_max = [float(f(times)) * 1e6 for f in (np.median, min, max)]
            median, most, least = (limit * 1e6 / max(us, 1e-3) for us in of_median_min_max)
            rows.append(
                {"target": target.name, "contender": name, "direction": direction}
                | {"case": str(case), "bytes": case.bytes, "arrays": len(case.heads)}
                | {"us": of_median_min_max, "of_copy": [median, least, most]}
                | {"timed_by": timed[0], "hidden": float(np.mean([t.hidden for t in taken]))}
            )
    return rows, missing


def facts(target: Target, made: Contenders, loops: int) -> tuple[dict[str, Any], Missing]:
    """Return what one token costs the host, launches, peaks of memory and errors at 1M.

    And what could not be found out.
    """
    found: dict[str, dict[str, Any]] = {"host_us": {}, "launches": {}, "peak": {}, "error": {}}
    missing = Missing()
    one, some = (Case(1, n).put(target) for n in (1, 1024))

    def measures_of(name: str, contender: Contender) -> dict[str, Callable[[], Any]]:
        call, larger = (partial(contender.make(at), at.arrays, at.positions) for at in (one, some))
        measures: dict[str, Callable[[], Any]] = {
            "host_us": lambda: min(clock.rounds_of_microseconds(target, call, loops, 5))
        }
        if target.name in ("torch:gpu", "cupy:gpu"):
            measures["peak"] = lambda: peak.over_results(target, larger)
        if target.name == "torch:gpu":
            measures["launches"] = lambda: launches(target, call)
        if name in (US, "usual", "torch_compile"):  # the others have their angles from elsewhere
            measures["error"] = lambda: largest_error(target, contender)
        return measures

    forget_compiled(target)
    for name, contender in made.items():
        measures = attempt(measures_of, name, contender)
        if isinstance(measures, Failed):
            missing[name] = str(measures)
            continue
        for fact, measure in measures.items():
            value = attempt(measure)
            if isinstance(value, Failed):
                missing[f"{name} {fact}"] = str(value)
            else:
                found[fact][name] = value
    return found, missing


def launches(target: Target, action: Action) -> int | None:
    """Return how many kernels a call launches, by torch's profiler; None where it sees none."""
    torch = importlib.import_module("torch")
    clock.wait(target, action())
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, acc_events=True) as seen:
        clock.wait(target, action())
    kind = torch.autograd.DeviceType.CUDA
    return sum(event.device_type == kind for event in seen.events()) or None


def largest_error(target: Target, contender: Contender) -> float:
    """Return the largest error of cos and sin from a million on: what (1, 0) is turned to."""
    case, half = Case(1, 256, (1, 1)), HEAD_DIM // 2
    at = case.put(target, "float32", FAR)
    x = np.zeros((1, 256, 1, HEAD_DIM), np.float32)
    x[..., :half] = 1
    arrays = (target.put(x), target.put(x))
    exact = formulas.turns(target.fetch(at.positions)[0], ROPE.frequencies(HEAD_DIM))
    turned = target.fetch(contender.make(at)(arrays, at.positions)[0])[0, :, 0]
    turned = turned[:, :half] + 1j * turned[:, half:].astype(np.float64)
    return float(max(np.abs((turned - exact).real).max(), np.abs((turned - exact).imag).max()))
