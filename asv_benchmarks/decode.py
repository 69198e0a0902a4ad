"""One token: counts of what a warm call runs, and its time compared with rivals.

Counts do not vary with the machine. The time of one token is that of the call itself.
"""

import sys
from collections.abc import Callable
from typing import Any

import rope_xp

from .shared import common, contenders

LIBRARIES = ["numpy:cpu", "torch:cpu", "jax:cpu", "cupy:gpu", "torch:gpu"]
RIVALS = ["usual", "transformers"]
ROPE, EQUAL = (rope_xp.RoPE(layout="half") for _ in range(2))


def functions_run(target: str) -> list[str]:
    """Return the file of each Python function that a warm call runs."""
    case = common.case(target, 1, common.POSITION)
    for _ in range(2):
        ROPE.apply(case.q, case.k, case.positions)
    files: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            files.append(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        ROPE.apply(case.q, case.k, case.positions)
    finally:
        sys.setprofile(None)
    return files


class Counts:
    version = "1"
    params = (LIBRARIES,)
    param_names = ("library",)

    def setup(self, library: str) -> None:
        common.case(library, 1, common.POSITION)

    def track_python_calls(self, library: str) -> int:
        return len(functions_run(library))

    def track_files(self, library: str) -> int:
        return len({name for name in functions_run(library) if "rope_xp" in name})

    track_python_calls.unit = "calls"
    track_files.unit = "files"


def _under_inference_mode(q: Any, k: Any, positions: Any) -> Any:
    import torch

    with torch.inference_mode():
        return ROPE.apply(q, k, positions, out=(q, k))


def _after_prompts(q: Any, k: Any, positions: Any) -> Any:
    ROPE.apply(q[:, :, 1:], k, positions)
    return ROPE.apply(q, k, positions)


WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "in place": lambda q, k, positions: ROPE.apply(q, k, positions, out=(q, k)),
    "in place, inference_mode": _under_inference_mode,
    "equal rope": EQUAL.apply,
    "k_positions": lambda q, k, positions: ROPE.apply(q, k, positions, k_positions=positions),
    "two shapes in turns": _after_prompts,
}


class Ways:
    """Calls that miss a cache take many times as long as a plain one."""

    version = "1"
    params = (LIBRARIES[:2], list(WAYS))
    param_names = ("library", "way")

    def setup(self, library: str, way: str) -> None:
        case = common.case(library, 1, common.POSITION)
        inputs = case.q, case.k, case.positions
        self.target = case.target
        self.calls = (lambda: WAYS[way](*inputs)), (lambda: ROPE.apply(*inputs))

    def track_time_over_plain_call(self, library: str, way: str) -> float:
        way_time, plain = (
            common.best_microseconds(self.target, call, *common.LOOPS) for call in self.calls
        )
        return common.over(way_time, plain)

    track_time_over_plain_call.unit = "times"


class Times:
    version = "1"
    params = (LIBRARIES[:3], RIVALS)
    param_names = ("library", "rival")

    def setup(self, library: str, rival: str) -> None:
        with common.skipping():
            self.target, *self.calls = contenders.pair(
                library, "half", "float32", "new", rival, 1, common.POSITION
            )

    def track_time_over_rival(self, library: str, rival: str) -> float:
        ours, theirs = (
            common.best_microseconds(self.target, call, *common.LOOPS) for call in self.calls
        )
        return common.over(ours, theirs)

    track_time_over_rival.unit = "times"
