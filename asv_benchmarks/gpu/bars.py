"""What a report says in words: its tables, and whether it reaches what is wanted.

python -m asv_benchmarks.gpu.bars gpu_report.json [gpu_report.md]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from asv_benchmarks.shared.rival_calls import RIVALS

from .measure import (
    BOTH,
    COPY,
    FLAT_COPY,
    FORWARD,
    GPU_RIVALS,
    IN_JIT,
    IN_PLACE,
    NORMED,
    OURS,
    US,
)

LARGE = 1 << 26
"""Bytes of q and k from which on the ratio to a copy says how well memory is used."""
OTHERS = tuple(name for name in GPU_RIVALS if name not in ("usual", "torch_compile", "liger"))
Found = dict[str, Any]
Row = dict[str, Any]


def rows(
    found: Found, target: str, direction: str = FORWARD, contender: str | None = None
) -> Iterator[Row]:
    """Yield the rows of a target, of one contender or all."""
    for row in found["speed"]:
        of = (row["target"], row["direction"]) == (target, direction)
        if of and contender in (None, row["contender"]):
            yield row


def times_as_fast(
    found: Found, target: str, ours: str, other: str, direction: str = FORWARD
) -> dict[str, float]:
    """Return how many times as fast as another a contender is, by case.

    A rival that overwrites its input is compared with our in-place call, if that was measured.
    Forward and backward is compared with two copies.
    """
    mine = {row["case"]: row["us"][0] for row in rows(found, target, direction, ours)}
    if other in RIVALS and RIVALS[other].in_place:
        mine |= {row["case"]: row["us"][0] for row in rows(found, target, direction, IN_PLACE)}
    times = 2 if direction == BOTH and other in (COPY, FLAT_COPY) else 1
    theirs = rows(found, target, FORWARD if other == FLAT_COPY else direction, other)
    return {
        row["case"]: times * row["us"][0] / max(mine[row["case"]], 1e-3)
        for row in theirs
        if row["case"] in mine
    }


class Bar(NamedTuple):
    """What is wanted: the least of some ratios, over the cases that count."""

    words: str
    wanted: float
    target: str
    ours: str
    others: tuple[str, ...]
    direction: str = FORWARD
    counts: Callable[[Row], bool] = lambda row: row["bytes"] >= LARGE

    def measure(self, found: Found) -> float | None:
        """Return it, None where it was not measured."""
        cases = {row["case"] for row in found["speed"] if self.counts(row)}
        ratios = (
            times_as_fast(found, self.target, self.ours, other, self.direction)
            for other in self.others
        )
        return min((r for of in ratios for case, r in of.items() if case in cases), default=None)


BARS = [
    *(
        Bar(
            f"{library}, {words}, from 64 MiB: times as fast as a copy",
            *(wanted, f"{library}:gpu", contender, (COPY,), direction),
        )
        for library in ("torch", "cupy")
        for words, wanted, contender, direction in (
            ("q and k forward", 0.95, US, FORWARD),
            ("in place", 0.95, IN_PLACE, FORWARD),
            ("with a norm", 0.90, NORMED, FORWARD),
            ("forward and backward", 0.95, US, BOTH),
        )
        if (library, direction) != ("cupy", BOTH)
    ),
    *(
        Bar(
            f"torch, {words}, from 128 MiB: times as fast as a flat copy",
            *(0.92, "torch:gpu", US, (FLAT_COPY,), direction),
            counts=lambda row: row["bytes"] >= 2 * LARGE,
        )
        for words, direction in (("q and k forward", FORWARD), ("forward and backward", BOTH))
    ),
    Bar("jax in jit, from 64 MiB: times as fast as a copy", 0.80, "jax:gpu", IN_JIT, (COPY,)),
    *(
        Bar(
            f"{library}, one head, (1, 65536, 1, 64): times as fast as a copy",
            *(0.6, f"{library}:gpu", US, (COPY,)),
            counts=lambda row: row["arrays"] == 1,
        )
        for library in ("torch", "cupy")
    ),
    *(
        Bar(f"times as fast as {words}", wanted, "torch:gpu", US, others)
        for words, wanted, others in (
            ("torch.compile of the formula", 1.1, ("torch_compile",)),
            ("Liger-Kernel, in place", 1.1, ("liger",)),
            ("the fastest other rival", 1.0, OTHERS),
        )
    ),
    Bar(
        "256 sequences of one token: times as fast as the fastest rival",
        *(1.0, "torch:gpu", US, (*OTHERS, "liger", "torch_compile")),
        counts=lambda row: row["case"] == "256 x 1",
    ),
]


def _facts_wanted(found: Found) -> Iterator[tuple[str, str, float | None, bool]]:
    """Yield words, what is wanted, what was measured, and whether that is enough."""

    def fact(library: str, name: str, contender: str = US) -> float | None:
        value = found["targets"].get(f"{library}:gpu", {}).get(name, {}).get(contender)
        return None if value is None else float(value)

    ours, theirs = fact("torch", "host_us"), fact("torch", "host_us", "hf_apply")
    ratio = theirs / ours if theirs and ours else None
    words = "one token, eager: times as fast as apply_rotary_pos_emb given cos and sin"
    yield words, "at least 1", ratio, (ratio or 0) >= 1
    for name in (US, IN_PLACE):
        us = fact("torch", "host_us", name)
        yield f"one token, {name}: us of the host", "at most 15", us, (us or 16) <= 15
    count = fact("torch", "launches")
    yield "one token, torch: launches", "at most 1", count, (count or 0) <= 1
    for library in ("torch", "cupy"):
        size = fact(library, "peak")
        words = f"{library}, peak of memory: sizes of the results"
        yield words, "at most 1.01", size, (size or 0) <= 1.01


def bars(found: Found) -> str:
    """Return what is wanted, what was measured, and whether that is enough."""
    lines = ["| on a GPU | wanted | measured | |", "|---|---|---|---|"]
    ratios = ((bar, bar.measure(found)) for bar in BARS)
    judged = [(b.words, f"at least {b.wanted:g}", r, (r or 0) >= b.wanted) for b, r in ratios]
    for words, wanted, value, holds in (*judged, *_facts_wanted(found)):
        verdict = "not measured" if value is None else "yes" if holds else "**no**"
        lines.append(f"| {words} | {wanted} | {_cell(value, '.2f')} | {verdict} |")
    return "\n".join(lines)


def markdown(found: Found) -> str:
    """Return the report as people read it."""
    parts = [", ".join(f"{name} {of}" for name, of in found["versions"].items()), bars(found)]
    for target, own in found["targets"].items():
        parts.append("\n".join([f"{target}:\n\n```text", *own["before"], "```"]))
        ran = sorted(set(own["paths"].values()))
        parts.append("\n".join([f"rope_xp on {target} ran by:\n\n```text", *ran, "```"]))
        for direction in (FORWARD, BOTH):
            cases = {row["case"]: row["bytes"] for row in rows(found, target, direction, COPY)}
            if cases:
                columns = sorted(cases, key=cases.__getitem__)
                parts.append(f"### {target}, {direction}")
                parts.append(_shares(found, target, direction, columns))
                parts.append(_ratios(found, target, direction, columns))
        parts.append(_facts(own, target))
    slow = [row for row in found["speed"] if row["hidden"] < 0.5 and is_gpu(row)]
    if slow:
        names = ("target", "contender", "direction", "case")
        words = "; ".join(", ".join(row[name] for name in names) for row in slow)
        parts.append(f"Not only the device was timed, as the host was slower: {words}")
    parts.append("\n".join(f"missing: {name}: {why}" for name, why in found["missing"].items()))
    return "\n\n".join(filter(None, parts))


def is_gpu(row: Row) -> bool:
    """Whether a row is of a GPU, where the host is not to be timed."""
    return str(row["target"]).endswith(":gpu")


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def table(head: str, columns: list[str], lines: dict[str, dict[str, str]]) -> str:
    """Return cells by line and column as Markdown, a dash where there is none."""
    made = [f"| {head} | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for name, cells in lines.items():
        made.append(f"| {name} | {' | '.join(cells.get(column, '-') for column in columns)} |")
    return "\n".join(made)


def _shares(found: Found, target: str, direction: str, columns: list[str]) -> str:
    lines: dict[str, dict[str, str]] = {}
    for row in rows(found, target, direction):
        is_copy = row["contender"] == COPY
        form = "{:.1f} us [{:.1f}, {:.1f}]" if is_copy else "{:.2f} [{:.2f}, {:.2f}]"
        text = form.format(*row["us" if is_copy else "of_copy"])
        lines.setdefault(row["contender"], {})[row["case"]] = text
    return table("times as fast as a copy, batch x tokens", columns, lines)


def _ratios(found: Found, target: str, direction: str, columns: list[str]) -> str:
    names = dict.fromkeys(row["contender"] for row in rows(found, target, direction))
    lines = {
        name: {
            case: f"{ratio:.2f}"
            for case, ratio in times_as_fast(found, target, US, name, direction).items()
        }
        for name in names
        if name not in (COPY, FLAT_COPY, *OURS)
    }
    return table("rope_xp is times as fast as", columns, lines)


def _facts(own: Found, target: str) -> str:
    forms = {"host_us": ".1f", "launches": "d", "peak": ".2f", "error": ".1e"}
    heads = ["one token, us of the host", "launches", "peak, in results", "error at 1M"]
    lines = {
        name: {
            head: _cell(own[fact].get(name), form)
            for head, (fact, form) in zip(heads, forms.items(), strict=True)
        }
        for name in own.get("host_us", ())
    }
    return table(target, heads, lines) if lines else ""


if __name__ == "__main__":
    said = markdown(json.loads(Path(sys.argv[1]).read_text()))
    for written in sys.argv[2:]:
        Path(written).write_text(said + "\n")
    print(said)
