"""Which cases of a test the short suite runs, and which those with the mark ``slow`` run."""

from collections import Counter, defaultdict
from functools import partial
from itertools import combinations
from typing import Any

import pytest

from support.targets import Target

slow = partial(pytest.param, marks=pytest.mark.slow)
"""``pytest.param`` of a case that the short suite leaves out."""
MANY = 24  # cases of a test, of which the short suite runs some


def leave_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Mark cases of large matrices as slow, and return those that no suite runs.

    The short suite runs few cases, in which each value of each parameter occurs, and the slow one
    so many that each pair of values does. Of backends that compile each case anew, the short suite
    runs one case of one library, the tests of a file in turn; the slow one few on each.
    """
    matrices = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if not {"gpu", "slow"} & {mark.name for mark in item.iter_markers()}:
            matrices[item.path, item.parent, item.originalname].append(item)
    dropped, turns = set(), Counter[Any]()
    for (path, *_), cases in matrices.items():
        compiled = defaultdict(list)
        for case in cases:
            compiled[compiling_library(case)].append(case)
        eager = compiled.pop("", [])
        short = {*(choose(eager, 1) if len(eager) > MANY else eager)}
        wanted = {*(choose(eager, 2) if len(eager) > MANY else eager)}
        if compiled:
            own = compiled[sorted(compiled)[turns[path] % len(compiled)]]
            short.add(own[turns[path] % len(own)])
            turns[path] += 1
        wanted |= short.union(*(choose(some, 1) for some in compiled.values()))
        for case in wanted - short:
            case.add_marker(pytest.mark.slow)
        dropped |= {*cases} - wanted
    return dropped


def choose(cases: list[pytest.Function], at_once: int) -> list[pytest.Function]:
    return [cases[i] for i in cover([case.callspec.params for case in cases], at_once)]


def compiling_library(item: pytest.Function) -> str:
    """Return the library of a case whose backend compiles it, else nothing."""
    backend = item.callspec.params.get("backend")
    return backend.module if isinstance(backend, Target) and backend.compiles else ""


def cover(cases: list[dict[Any, Any]], at_once: int) -> set[int]:
    """Return indices of few cases in which all values occur that occur in any, so many at once.

    The case with the most new values comes next; of several the one whose values are the rarest so
    far, and of those the first.
    """
    # Values need have neither an order nor a hash. Those of one parameter are the same objects.
    values = [[(name, id(value)) for name, value in case.items()] for case in cases]
    tuples = [set(combinations(sorted(v), min(at_once, len(v)))) for v in values]
    left, kept, used = set().union(*tuples), set(), Counter[Any]()
    while left:
        new = [len(t & left) for t in tuples]
        most = max(new)
        several = [i for i, n in enumerate(new) if n == most]
        best = min(several, key=lambda i: sum(used[value] for value in values[i]))
        kept.add(best)
        left -= tuples[best]
        used.update(values[best])
    return kept
