"""What no noise hides: the graphs that torch.compile makes."""

from collections.abc import Callable
from typing import Any

from asv_runner.benchmarks.mark import SkipNotImplemented

import rope_xp

from .shared import common

LENGTHS = range(7, 17)
ROPE = rope_xp.RoPE(layout="half")


class Graphs:
    """Of one function that is compiled, over ten lengths of a sequence."""

    version = "1"
    params = (["apply", "angles"],)
    param_names = ("call",)
    timeout = 300

    def setup(self, call: str) -> None:
        case = common.case("torch:cpu", 1)
        if call == "angles" and not hasattr(rope_xp, "Angles"):
            raise SkipNotImplemented("this rope_xp has no Angles")
        self.q = case.q

    def _counted(self, call: str) -> tuple[int, int]:
        """Return how many graphs were made, and how often one had to be left."""
        import torch
        from torch._dynamo.utils import counters

        def apply(q: Any, positions: Any) -> Any:
            if call == "apply":
                return ROPE.apply(q, q, positions)
            return ROPE.at(positions, like=q).apply(q, q)

        torch.compiler.reset()
        counters.clear()
        compiled: Callable[..., Any] = torch.compile(apply, backend="aot_eager")
        for n in LENGTHS:
            compiled(self.q.expand(-1, n, -1, -1), torch.arange(n))
        return counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())

    def track_graphs(self, call: str) -> int:
        return self._counted(call)[0]

    def track_breaks(self, call: str) -> int:
        return self._counted(call)[1]

    track_graphs.unit = "graphs"
    track_breaks.unit = "breaks"
