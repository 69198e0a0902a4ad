"""Draw the folders of the library, and the way of one call through their files.

Nothing of it is typed in: a process of its own makes its first call under sys.setprofile, and the
order of the core's folders is that of the contract in pyproject.toml which import-linter holds.
What is entered only because a module is imported does not count.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pictures

import rope_xp
from rope_xp._cli import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROOTS = ("rope_xp", "rope_xp_backends")
PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
TOKENS, HEADS, HEAD_DIM = 2048, 8, 64
"""As large as a call must be for kernels to be compiled for it: 4 MiB of q."""


# --- the call ------------------------------------------------------------------------------------


class Entry(NamedTuple):
    """The first time that a call enters a file."""

    room: str
    """The folder, from the package on."""
    file: str
    function: str
    caller: int
    """Which entry the call came from; of the first, itself."""


def traced() -> list[Entry]:
    """Make a call and return the files that it enters, in their order."""
    rope = rope_xp.RoPE(layout="half")
    q, k = np.ones((2, 1, TOKENS, HEADS, HEAD_DIM), np.float32)
    found: dict[str, Entry] = {}
    numbers: dict[str, int] = {}
    importing = 0

    def profile(frame: Any, event: str, _: object) -> None:
        nonlocal importing
        code = frame.f_code
        if code.co_name == "<module>":
            importing += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing and code.co_filename not in found:
            where = _where(code.co_filename)
            if where is not None:
                numbers[code.co_filename] = len(found)
                caller = _caller(frame, numbers)
                found[code.co_filename] = Entry(*where, code.co_name, caller)

    sys.setprofile(profile)
    try:
        rope.apply(q, k, 1_000_000 + np.arange(TOKENS))
    finally:
        sys.setprofile(None)
    return list(found.values())


@cache
def _where(file: str) -> tuple[str, str] | None:
    """Return the room and the name of a file of ours, None for any other."""
    path = Path(file)
    for i in range(len(path.parts) - 1, 0, -1):
        if path.parts[i - 1] in ROOTS and str(Path(*path.parts[:i])) in _folders():
            return "/".join(path.parts[i - 1 : -1]), path.name
    return None


def _folders() -> list[str]:
    return [str(Path(sys.modules[root].__file__).parent) for root in ROOTS if root in sys.modules]


def _caller(frame: Any, numbers: dict[str, int]) -> int:
    """Return the number of the nearest file of ours that a frame was called from."""
    own, before = frame.f_code.co_filename, frame.f_back
    while before is not None and before.f_code.co_filename not in numbers:
        before = before.f_back
    return numbers[own if before is None else before.f_code.co_filename]


def first_call() -> list[Entry]:
    """Return what the first call of a new process enters: nothing is cached or compiled there."""
    environment = {name: v for name, v in os.environ.items() if not name.startswith("ROPE_XP_")}
    # As on a machine that never made a call, whatever this one has kept and how many cores it has.
    environment |= {"ROPE_XP_KERNEL_CACHE": "0", "ROPE_XP_NUM_THREADS": "2"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, __file__]
    ran = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)  # noqa: S603  # this file
    return [Entry(*each) for each in json.loads(ran.stdout)]


# --- the picture ---------------------------------------------------------------------------------

LEFT, RIGHT, BETWEEN = 1.52, 0.06, 0.1
"""Where the first room starts; what is free beside the last one; between the two packages."""
PITCH, GAP = 0.265, 0.1
"""From a line to the next; between two rooms, where arrows run."""
HEAD, FOOT = 0.8, 0.12
CHIP, MARGIN = 0.19, 0.02
"""The height of a file, and what is free beside it in its room."""
LARGEST = 8.0
"""Points of the names of files and functions, where these are short enough."""
ROOM, LINE = "#80808026", "#80808066"  # so clear that they go with a page of any colour
CHIPS = dict(zip(ROOTS, (pictures.COLOURS[1], pictures.COLOURS[0]), strict=True))


def in_layers(rooms: list[str]) -> list[str]:
    """Return rooms with the core's in the order of its contract, the highest first."""
    contracts = tomllib.loads(PYPROJECT.read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    layers = next(c["layers"] for c in contracts if c["type"] == "layers" and "containers" not in c)

    def height(room: str) -> tuple[int, int]:
        module = room.replace("/", ".")
        named = (i for i, layer in enumerate(layers) if module in layer.split(" | "))
        above = -1 if module == ROOTS[0] else len(layers)  # what holds the layers is what is public
        return ROOTS.index(room.partition("/")[0]), next(named, above)

    return sorted(rooms, key=height)  # those of a backend stay in the order of the call


def draw(path: Path) -> None:
    """Draw the way of a call: a room a column, a file a line, from top to bottom."""
    entries = first_call()
    rooms = in_layers(list(dict.fromkeys(entry.room for entry in entries)))
    bottom = FOOT + len(entries) * PITCH
    drawing, axes = pictures.figure(bottom + HEAD)
    packages = [list(group) for _, group in groupby(rooms, lambda room: room.partition("/")[0])]
    free = pictures.WIDTH - LEFT - RIGHT - BETWEEN * (len(packages) - 1) + GAP
    step = free / len(rooms)
    width = step - GAP
    lefts: dict[str, float] = {}
    at = LEFT
    for package in packages:
        _head(axes, package[0].partition("/")[0], at, at + len(package) * step - GAP, bottom)
        for room in package:
            lefts[room] = at
            _room(axes, room, at, width, bottom)
            at += step
        at += BETWEEN
    heights = [bottom - (i + 0.5) * PITCH for i in range(len(entries))]
    size = _fitting([entry.file for entry in entries], width - 2 * MARGIN - 0.06)
    words = _fitting([entry.function for entry in entries], LEFT - 0.5)
    for i, (entry, y) in enumerate(zip(entries, heights, strict=True)):
        pictures.note(axes, 0.3, y, str(i + 1), size=words, ha="right")
        pictures.note(axes, 0.38, y, entry.function, size=words)
        axes.plot([LEFT - 0.05, lefts[entry.room]], [y, y], color=LINE, lw=0.5, zorder=1.5)
    for room in rooms:
        first = next(i for i, entry in enumerate(entries) if entry.room == room)
        caller = entries[first].caller
        if first != caller:
            start = (lefts[entries[caller].room], heights[caller])
            _arrow(axes, start, (lefts[room], heights[first]), width)
    for entry, y in zip(entries, heights, strict=True):
        _chip(axes, entry, lefts[entry.room], y, width, size)
    plots.save(drawing, path)


def _fitting(words: list[str], width: float) -> float:
    """Return the largest size at which no word is wider than ``width`` inches."""
    from matplotlib.textpath import TextPath

    widest = max(TextPath((0, 0), word, size=LARGEST).get_extents().width for word in words)
    return min(LARGEST, LARGEST * width * 72 / widest)


def _head(axes: Axes, package: str, left: float, right: float, bottom: float) -> None:
    """Write the name of a package over a line as long as its rooms."""
    y = bottom + HEAD - 0.36
    axes.plot([left, right], [y, y], color=CHIPS[package], lw=2.5, solid_capstyle="butt")
    pictures.note(axes, (left + right) / 2, y + 0.17, package, ha="center", weight="bold")


def _room(axes: Axes, room: str, left: float, width: float, bottom: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    name = room.partition("/")[2] or "(top)"
    pictures.note(axes, left + width / 2, bottom + 0.2, name, ha="center", size=9.5)
    style = "round,pad=0,rounding_size=0.05"
    height = bottom - FOOT + 0.02
    axes.add_patch(
        FancyBboxPatch((left, FOOT - 0.02), width, height, style, facecolor=ROOM, edgecolor="none")
    )


def _chip(axes: Axes, entry: Entry, left: float, y: float, width: float, size: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    colour = CHIPS[entry.room.partition("/")[0]]
    corner, style = (left + MARGIN, y - CHIP / 2), "round,pad=0,rounding_size=0.04"
    look = {"facecolor": colour, "edgecolor": pictures.INK, "lw": 0.6}
    axes.add_patch(FancyBboxPatch(corner, width - 2 * MARGIN, CHIP, style, **look))
    look = {"ha": "center", "size": size, "color": pictures.INK}
    pictures.note(axes, left + width / 2, y - 0.005, entry.file, **look)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], width: float) -> None:
    """Draw a line from a file down the gap beside its room, and along to the file it enters."""
    onward = end[0] > start[0]
    turn = start[0] + width + GAP / 2 if onward else start[0] - GAP / 2
    leave = start[0] + width - MARGIN if onward else start[0] + MARGIN
    reach = end[0] + MARGIN if onward else end[0] + width - MARGIN
    style = {"color": plots.INK, "lw": 1.1, "zorder": 2.5}
    axes.plot([leave, turn, turn], [start[1], start[1], end[1]], **style)
    arrow = {"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8}
    arrow |= {"color": plots.INK, "lw": 1.1, "zorder": 2.5}
    axes.annotate("", (reach, end[1]), (turn, end[1]), arrowprops=arrow)


def write(folder: Path) -> None:
    """Write the picture to a folder."""
    draw(folder / "rooms.svg")


if __name__ == "__main__":
    print(json.dumps(traced()))
