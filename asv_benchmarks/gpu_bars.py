"""What a report of gpu_report says in words: its tables, and whether it reaches what is wanted.

python -m asv_benchmarks.gpu_bars gpu_report.json [gpu_report.md]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from . import gpu_rivals
from .gpu_rivals import APPLY, IN_JIT, IN_PLACE, LIGER, US, USUAL_COMPILED

COPY, FLAT_COPY, BOTH = "copy", "flat copy", "forward and backward"
LARGE = 1 << 26
"""Bytes of q and k from which on the ratio to a copy says how well memory is used."""
Found = dict[str, Any]
Row = dict[str, Any]


class Bar(NamedTuple):
    """What is wanted of a measured figure, which is None where it was not measured."""

    words: str
    wanted: float
    measure: Callable[[Found], float | None]
    at_most: bool = False

    def holds(self, value: float) -> bool:
        """Whether a figure is as wanted."""
        return value <= self.wanted if self.at_most else value >= self.wanted


def rows(
    found: Found, target: str, contender: str | None = None, direction: str = "forward"
) -> Iterator[Row]:
    """Yield the rows of a target, of one contender or all."""
    for row in found["speed"]:
        of = (row["target"], row["direction"]) == (target, direction)
        if of and contender in (None, row["contender"]):
            yield row


def key(row: Row) -> tuple[Any, ...]:
    """Return what was rotated."""
    return (row["batch"], row["tokens"], *row["heads"], row["head_dim"])


def _share(target: str, contender: str, direction: str) -> Callable[[Found], float | None]:
    def measure(found: Found) -> float | None:
        of = rows(found, target, contender, direction)
        return min((row["share_of_copy"][0] for row in of if row["bytes"] >= LARGE), default=None)

    return measure


def _of_flat_copy(direction: str) -> Callable[[Found], float | None]:
    """Compare rope_xp of torch with one flat copy, or two for forward and backward."""

    def measure(found: Found) -> float | None:
        flat = {key(row): row["median_us"] for row in rows(found, "torch:gpu", FLAT_COPY)}
        copies = 2 if direction == BOTH else 1
        ratios = (
            copies * flat[key(row)] / max(row["median_us"], 1e-9)
            for row in rows(found, "torch:gpu", US, direction)
            if key(row) in flat and row["bytes"] >= 2 * LARGE
        )
        return min(ratios, default=None)

    return measure


def _one_head(target: str) -> Callable[[Found], float | None]:
    def measure(found: Found) -> float | None:
        of = rows(found, target, US)
        return next((row["share_of_copy"][0] for row in of if len(row["heads"]) == 1), None)

    return measure


def times_as_fast(found: Found, target: str, direction: str, rival: str) -> dict[Any, float]:
    """Return the time of a rival over ours, by what was rotated.

    A rival that overwrites its input is compared with our in-place call, if that was measured.
    """
    in_place = rival in gpu_rivals.RIVALS and gpu_rivals.RIVALS[rival].in_place
    ours = {key(row): row for row in rows(found, target, US, direction)}
    if in_place:
        ours |= {key(row): row for row in rows(found, target, IN_PLACE, direction)}
    theirs = {key(row): row for row in rows(found, target, rival, direction)}
    return {
        at: row["median_us"] / max(ours[at]["median_us"], 1e-9)
        for at, row in theirs.items()
        if at in ours
    }


def _against(
    *rivals: str, counts: Callable[[Row], bool] = lambda row: row["bytes"] >= LARGE
) -> Callable[[Found], float | None]:
    def measure(found: Found) -> float | None:
        cases = {key(row) for row in found["speed"] if counts(row)}
        ratios = (times_as_fast(found, "torch:gpu", "forward", name) for name in rivals)
        return min((r for one in ratios for at, r in one.items() if at in cases), default=None)

    return measure


def _decode(found: Found) -> float | None:
    host = found["targets"].get("torch:gpu", {}).get("host_us", {})
    return host[APPLY] / host[US] if APPLY in host and US in host else None


def _fact(name: str, target: str, contender: str = US) -> Callable[[Found], float | None]:
    return lambda found: found["targets"].get(target, {}).get(name, {}).get(contender)


def _is_decode(row: Row) -> bool:
    return (row["batch"], row["tokens"]) == (256, 1)


OTHERS = [name for name in (*gpu_rivals.RIVALS, gpu_rivals.APPLY_COMPILED) if name != LIGER]
BARS = [
    *(
        Bar(
            f"{library}, {words}, from 64 MiB: times as fast as a copy",
            0.90,
            _share(f"{library}:gpu", *of),
        )
        for library in ("torch", "cupy")
        for words, *of in (
            ("q and k forward", US, "forward"),
            ("in place", IN_PLACE, "forward"),
            ("forward and backward", US, BOTH),
        )
        if (library, of[1]) != ("cupy", BOTH)
    ),
    *(
        Bar(
            f"torch, {words}, from 128 MiB: times as fast as a flat copy",
            0.92,
            _of_flat_copy(direction),
        )
        for words, direction in (("q and k forward", "forward"), ("forward and backward", BOTH))
    ),
    Bar(
        "jax in jit, from 64 MiB: times as fast as a copy",
        0.85,
        _share("jax:gpu", IN_JIT, "forward"),
    ),
    *(
        Bar(
            f"{library}, one head, (1, 65536, 1, 64): times as fast as a copy",
            0.6,
            _one_head(f"{library}:gpu"),
        )
        for library in ("torch", "cupy")
    ),
    Bar("times as fast as torch.compile of the formula", 1.1, _against(USUAL_COMPILED)),
    Bar("times as fast as Liger-Kernel, in place", 1.1, _against(LIGER)),
    Bar("times as fast as the fastest other rival", 1.0, _against(*OTHERS)),
    Bar(
        "256 sequences of one token: times as fast as the fastest rival",
        1.0,
        _against(LIGER, USUAL_COMPILED, *OTHERS, counts=_is_decode),
    ),
    Bar("one token, eager: times as fast as apply_rotary_pos_emb given cos and sin", 1.0, _decode),
    Bar("one token, torch: launches", 1, _fact("launches", "torch:gpu"), at_most=True),
    *(
        Bar(
            f"{library}, peak of memory: sizes of the results",
            1.01,
            _fact("peak", f"{library}:gpu"),
            True,
        )
        for library in ("torch", "cupy")
    ),
]


def bars(found: Found) -> str:
    """Return what is wanted, what was measured, and whether that is enough."""
    lines = ["| on a GPU | wanted | measured | |", "|---|---|---|---|"]
    for bar in BARS:
        value = bar.measure(found)
        wanted = f"{'at most' if bar.at_most else 'at least'} {bar.wanted:g}"
        if value is None:
            lines.append(f"| {bar.words} | {wanted} | - | not measured |")
        else:
            verdict = "yes" if bar.holds(value) else "**no**"
            lines.append(f"| {bar.words} | {wanted} | {value:.2f} | {verdict} |")
    return "\n".join(lines)


def markdown(found: Found) -> str:
    """Return the report as people read it."""
    parts = [_head(found), bars(found)]
    for target, own in found["targets"].items():
        ran = sorted(set(own.get("paths", {}).values()))
        parts.append(f"rope_xp on {target} ran by:\n\n```text\n" + "\n".join(ran) + "\n```")
        for direction in ("forward", BOTH):
            if any(rows(found, target, COPY, direction)):
                what = f"### {target}, {direction}"
                parts += [what, _shares(found, target, direction)]
                parts += [_ratios(found, target, direction)]
        parts.append(_facts(own, target))
    slow = [row for row in found["speed"] if row["host_hidden"] < 0.5 and is_gpu(row)]
    if slow:
        words = (
            f"{row['target']} {row['contender']}, {row['direction']}, {size(row)}" for row in slow
        )
        parts.append(f"Not only the device was timed, as the host was slower: {'; '.join(words)}")
    parts.append("\n".join(f"missing: {name}: {why}" for name, why in found["missing"].items()))
    return "\n\n".join(filter(None, parts))


def is_gpu(row: Row) -> bool:
    """Whether a row is of a GPU, where the host is not to be timed."""
    return str(row["target"]).endswith(":gpu")


def _head(found: Found) -> str:
    devices = {one["device"].get("name") for one in found["targets"].values()} - {None}
    versions = ", ".join(f"{k} {v}" for k, v in found["machine"]["versions"].items())
    return f"{', '.join(sorted(devices)) or found['machine']['platform']}; {versions}"


def size(row: Row) -> str:
    """Return what was rotated, in words."""
    heads = "" if len(row["heads"]) > 1 else f", one head of {row['head_dim']}"
    return f"{row['batch']} x {row['tokens']}{heads}"


def _table(first: str, cells: dict[str, dict[Any, str]], columns: dict[Any, str]) -> str:
    lines = [f"| {first} | {' | '.join(columns.values())} |", "|---" * (len(columns) + 1) + "|"]
    for name, of in cells.items():
        lines.append(f"| {name} | {' | '.join(of.get(at, '-') for at in columns)} |")
    return "\n".join(lines)


def _columns(found: Found, target: str, direction: str) -> dict[Any, str]:
    smallest_first = sorted(rows(found, target, COPY, direction), key=lambda row: row["bytes"])
    return {key(row): size(row) for row in smallest_first}


def _shares(found: Found, target: str, direction: str) -> str:
    cells: dict[str, dict[Any, str]] = {}
    for row in rows(found, target, None, direction):
        if row["contender"] == COPY:
            text = "{:.1f} us [{:.1f}, {:.1f}]".format(
                *(row[name] for name in ("median_us", "min_us", "max_us"))
            )
        else:
            text = "{:.2f} [{:.2f}, {:.2f}]".format(*row["share_of_copy"])
        cells.setdefault(row["contender"], {})[key(row)] = text
    return _table(
        "times as fast as a copy, batch x tokens", cells, _columns(found, target, direction)
    )


def _ratios(found: Found, target: str, direction: str) -> str:
    names = dict.fromkeys(row["contender"] for row in rows(found, target, None, direction))
    cells = {
        name: {at: f"{r:.2f}" for at, r in times_as_fast(found, target, direction, name).items()}
        for name in names
        if name not in (COPY, FLAT_COPY, *gpu_rivals.OURS)
    }
    return _table("rope_xp is times as fast as", cells, _columns(found, target, direction))


def _facts(own: Found, target: str) -> str:
    lines = [
        f"| {target} | one token, us of the host | launches | peak, in results | error at 1M |",
        "|---|---|---|---|---|",
    ]
    if "host_us" not in own:
        return ""
    for name in own["host_us"]:
        found = [
            own[fact].get(name) for fact in ("host_us", "launches", "peak", "largest_error_at_1M")
        ]
        forms = (".1f", "d", ".2f", ".1e")
        cells = ("-" if v is None else f"{v:{f}}" for v, f in zip(found, forms, strict=True))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    said = markdown(json.loads(Path(sys.argv[1]).read_text()))
    for written in sys.argv[2:]:
        Path(written).write_text(said + "\n")
    print(said)
