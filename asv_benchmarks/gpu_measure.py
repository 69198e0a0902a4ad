"""What gpu_report finds out about a library: who rotates rightly, times, and costs of a call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import rope_xp
from rope_xp._bench import clock, formulas
from rope_xp._bench.clock import Action
from rope_xp._bench.inputs import HEAD_DIM, HEADS, numpy_dtype
from rope_xp._bench.targets import Target

from . import gpu_bars, gpu_clock, gpu_facts, gpu_rivals
from .gpu_attempt import Failed, attempt
from .gpu_clock import Clock
from .gpu_rivals import Arrays, Contender

Contenders = dict[str, Contender]


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
        return gpu_bars.size(self._asdict())


CHECKED = Case(2, 16)
FIRST = 5000
"""The position of the first token."""


def inputs(target: Target, case: Case) -> tuple[Arrays, Any]:
    """Return arrays and positions, (batch, tokens)."""
    random = np.random.default_rng(0)
    shapes = [(case.batch, case.tokens, heads, case.head_dim) for heads in case.heads]
    hosts = [random.standard_normal(s, np.float32).astype(numpy_dtype("bfloat16")) for s in shapes]
    positions = np.arange(FIRST, FIRST + case.tokens, dtype=np.int32)
    arrays = tuple(target.put(x) for x in hosts)
    return arrays, target.put(np.tile(positions, (case.batch, 1)))


def tried(target: Target, made: Contenders) -> tuple[Contenders, dict[str, str]]:
    """Return what rotates a few tokens as float64 does, and why the rest is not timed."""
    arrays, positions = inputs(target, CHECKED)
    host = target.fetch(positions)
    frequencies = gpu_rivals.ROPE.frequencies(CHECKED.head_dim)
    exact = [formulas.rotate_exact(target.fetch(x), host, frequencies, "half") for x in arrays]
    # Rounding x, cos, sin, two products and their sum to 8 bits: 5 times 2**-8 of the largest pair.
    bound = 5 * 2.0**-8 * max(np.abs(x).max() for x in exact)
    found, missing = {}, {}

    def decline_reason(contender: Contender) -> str | None:
        own = tuple(target.copy(x) for x in arrays)  # as some write over their inputs
        turned = contender.make(positions, own)(own, positions)
        with np.errstate(invalid="ignore"):  # NaN is found below
            hosts = [target.fetch(x).astype(np.float64) for x in turned]
        if [x.shape for x in hosts] != [x.shape for x in exact]:
            return f"returns {[x.shape for x in hosts]} for {[x.shape for x in exact]}"
        off = max(np.abs(x - y).max() for x, y in zip(hosts, exact, strict=True))
        if off <= bound:
            return None
        return f"rotates differently: off by {off:.3g}, where {bound:.3g} is rounding"

    gpu_rivals.forget_compiled(target)
    for name, contender in made.items():
        why = attempt(lambda contender=contender: decline_reason(contender))
        if why is None:
            found[name] = contender
        else:
            missing[name] = str(why)
    return found, missing


def actions_of(
    target: Target, made: Contenders, arrays: Arrays, positions: Any
) -> tuple[dict[str, Action], dict[str, Action], dict[str, str]]:
    """Return what is timed forward, and with backward, each called once, and what fails in that."""
    copy = gpu_rivals.copies(target, arrays)
    forward: dict[str, Action] = {gpu_bars.COPY: copy}
    backward: dict[str, Action] = {gpu_bars.COPY: copy}
    if len(arrays) > 1:
        forward[gpu_bars.FLAT_COPY] = gpu_rivals.flat_copy(target, arrays)
    missing = {}
    gpu_rivals.forget_compiled(target)

    def prepare(name: str, contender: Contender) -> None:
        function = contender.make(positions, arrays)
        own = tuple(target.copy(x) for x in arrays)  # as some write over their inputs
        forward[name] = lambda: function(own, positions)
        clock.wait(target, forward[name]())
        if contender.gradient:
            both = gpu_rivals.forward_and_backward(target, function, arrays, positions)
            if both is not None:
                clock.wait(target, both())
                backward[name] = both

    for name, contender in made.items():
        if len(arrays) > 1 or contender.alone:
            failed = attempt(lambda name=name, contender=contender: prepare(name, contender))
            if failed is not None:
                forward.pop(name, None)
                missing[name] = str(failed)
    return forward, backward, missing


def speed(
    target: Target, timed: Clock, made: Contenders, case: Case, repeat: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each contender, forward and forward with backward, and what failed.

    Nothing for a case whose copies fail, because all others are compared with them.
    """
    arrays, positions = inputs(target, case)
    how, seconds = timed
    forward, backward, missing = actions_of(target, made, arrays, positions)
    rows = []
    for actions, direction, copies in ((forward, "forward", 1), (backward, gpu_bars.BOTH, 2)):
        if len(actions) == 1:  # the copy alone
            continue
        timings, failed = gpu_clock.in_turns(target, seconds, actions, repeat)
        missing |= {f"{name}, {direction}": why for name, why in failed.items()}
        if gpu_bars.COPY not in timings:
            continue
        limit = copies * float(np.median([t.seconds for t in timings[gpu_bars.COPY]]))
        for name, taken in timings.items():
            times = [t.seconds for t in taken]
            median = float(np.median(times))
            shares = [limit / max(t, 1e-9) for t in (median, max(times), min(times))]
            rows.append(
                {
                    "target": target.name,
                    "contender": name,
                    "direction": direction,
                    **case._asdict(),
                    "bytes": case.bytes,
                    "median_us": median * 1e6,
                    "min_us": min(times) * 1e6,
                    "max_us": max(times) * 1e6,
                    "share_of_copy": None if name == gpu_bars.COPY else shares,
                    "timed_by": how,
                    "host_hidden": float(np.mean([t.hidden for t in taken])),
                }
            )
    return rows, missing


def path(target: Target, case: Case) -> str:
    """Return which path of rope_xp runs, and why no faster one does."""
    arrays, positions = inputs(target, case)
    return str(rope_xp.explain(arrays[0], arrays[-1], positions, gpu_rivals.ROPE))


def facts(
    target: Target, made: Contenders, loops: int
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return what one token costs the host, launches, peaks of memory and errors at 1M.

    And what could not be found out.
    """
    (one, at), (some, positions) = (inputs(target, Case(1, n)) for n in (1, 1024))
    found: dict[str, dict[str, Any]] = {
        name: {} for name in ("host_us", "launches", "peak", "largest_error_at_1M")
    }
    missing = {}
    frequencies = gpu_rivals.ROPE.frequencies(HEAD_DIM)
    of_their_own = (gpu_rivals.US, gpu_rivals.USUAL, gpu_rivals.USUAL_COMPILED)
    gpu_rivals.forget_compiled(target)
    for name, contender in made.items():
        functions = attempt(lambda c=contender: (c.make(at, one), c.make(positions, some)))
        if isinstance(functions, Failed):
            missing[name] = str(functions)
            continue
        call = lambda f=functions[0]: f(one, at)  # noqa: E731  # for two clocks
        larger = lambda f=functions[1]: f(some, positions)  # noqa: E731  # likewise
        measures: dict[str, Callable[[], Any]] = {
            "host_us": lambda call=call: gpu_facts.host_microseconds(target, call, loops),
            "launches": lambda call=call: gpu_facts.launches(target, call),
            "peak": lambda call=larger: gpu_facts.peak_over_results(target, call),
        }
        if name in of_their_own:
            measures["largest_error_at_1M"] = lambda c=contender: gpu_facts.largest_error(
                target, lambda p: c.make(p, ()), frequencies
            )
        for fact, measure in measures.items():
            value = attempt(measure)
            if isinstance(value, Failed):
                missing[f"{name} {fact}"] = str(value)
            else:
                found[fact][name] = value
    return found, missing
