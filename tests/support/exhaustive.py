"""Which cases of a matrix the short suite runs. The others carry the mark ``exhaustive``.

A case is left out by name, ``exhaustive("interleaved", 6)`` among the parameters of a test; or by
the mark ``covering`` of a test, whose cases are then chosen here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from itertools import combinations
from typing import Any

import pytest

from support.targets import Target

exhaustive = partial(pytest.param, marks=pytest.mark.exhaustive)
"""``pytest.param`` of a case that the short suite leaves out."""


def leave_out(items: list[pytest.Item]) -> None:
    """Mark what the short suite leaves out of tests with the mark ``covering``.

    Tests on every backend have it as well, for the backends that compile each case anew, of which
    one of each library is enough. What needs a GPU is left as it is.
    """
    tests: dict[tuple[str, int], dict[pytest.Item, dict[str, Any]]] = defaultdict(dict)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if item.get_closest_marker("gpu") or item.get_closest_marker("exhaustive"):
            continue
        mark, values = item.get_closest_marker("covering"), dict(item.callspec.params)
        backend = values.get("backend")
        slow = isinstance(backend, Target) and backend.compiles
        if slow and not mark:
            values["backend"] = backend.module
        if slow or mark:
            at_once = mark.args[0] if mark and mark.args else 1
            tests[item.nodeid.partition("[")[0], at_once][item] = values
    for (_, at_once), cases in tests.items():
        kept = covering({item.nodeid: values for item, values in cases.items()}, at_once)
        for item in cases:
            if item.nodeid not in kept:
                item.add_marker(pytest.mark.exhaustive)


def covering(cases: dict[str, dict[str, Any]], at_once: int = 1) -> set[str]:
    """Return names of few cases in which all values occur that occur in any, so many at once.

    The case with the most new values comes next; of several the one whose values are the rarest so
    far, and of those the first. So the choice depends on the order of the parameters alone.
    """
    # Values need have neither an order nor a hash. Those of one parameter are the same objects.
    marked = {case: {n: id(v) for n, v in values.items()} for case, values in cases.items()}
    tuples = {
        case: set(combinations(sorted(values.items()), min(at_once, len(values))))
        for case, values in marked.items()
    }
    left, kept, used = set().union(*tuples.values()), set(), Counter()

    def gain(case: str) -> tuple[int, int]:
        return len(tuples[case] & left), -sum(used[value] for value in marked[case].items())

    while left:
        best = max(cases, key=gain)
        kept.add(best)
        left -= tuples[best]
        used.update(marked[best].items())
    return kept
