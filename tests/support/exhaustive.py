"""Which cases of a matrix the short suite runs, and which the one with the mark ``exhaustive``.

A case is left to the latter by name, ``exhaustive("interleaved", 6)`` among the parameters of a
test; or by the mark ``covering`` of a test, whose cases are then chosen here.
"""

from collections import Counter, defaultdict
from functools import partial
from itertools import combinations
from typing import Any

import pytest

from support.targets import Target

exhaustive = partial(pytest.param, marks=pytest.mark.exhaustive)
weekly = partial(pytest.param, marks=pytest.mark.weekly)
"""``pytest.param`` of a case that the short suite leaves out, or that the gate does too."""


def leave_out(items: list[pytest.Item]) -> set[pytest.Item]:
    """Mark what the short suite leaves out, and return the cases that no suite runs.

    Of a test with the mark ``covering`` the short suite runs few cases, and the exhaustive one all
    pairs of values. Of backends that compile each case anew, the short suite runs one case of one
    library: the tests of a file take the libraries in turn. The exhaustive one runs few on each
    library. What needs a GPU is left.
    """
    files = defaultdict(lambda: defaultdict(list))
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if not item.get_closest_marker("gpu") and not item.get_closest_marker("exhaustive"):
            files[item.path][item.parent, item.originalname].append(item)
    dropped: set[pytest.Item] = set()
    for tests in files.values():
        turn = 0
        for cases in tests.values():
            compiled = [item for item in cases if compiling_library(item)]
            eager = [item for item in cases if not compiling_library(item)]
            libraries = sorted(set(map(compiling_library, compiled)))
            each = [[i for i in compiled if compiling_library(i) == name] for name in libraries]
            own = each[turn % len(each)] if each else []
            turn += bool(each)
            mark = cases[0].get_closest_marker("covering")
            at_once = mark.args[0] if mark and mark.args else 1
            short = choose(eager, at_once) if mark else {*eager}
            wanted = choose(eager, max(2, at_once)) if mark else {*eager}
            if own:
                short.add(own[turn % len(own)])
            wanted |= short.union(*(choose(items, at_once) for items in each))
            for item in wanted - short:
                item.add_marker(pytest.mark.exhaustive)
            dropped |= {*cases} - wanted
    return dropped


def choose(items: list[pytest.Function], at_once: int) -> set[pytest.Function]:
    return {items[i] for i in covering([item.callspec.params for item in items], at_once)}


def compiling_library(item: pytest.Function) -> str:
    """Return the library of a case whose backend compiles it, else nothing."""
    backend = item.callspec.params.get("backend")
    return backend.module if isinstance(backend, Target) and backend.compiles else ""


def covering(cases: list[dict[Any, Any]], at_once: int = 1) -> set[int]:
    """Return indices of few cases in which all values occur that occur in any, so many at once.

    The case with the most new values comes next; of several the one whose values are the rarest so
    far, and of those the first.
    """
    # Values need have neither an order nor a hash. Those of one parameter are the same objects.
    values = [[(name, id(value)) for name, value in case.items()] for case in cases]
    tuples = [set(combinations(sorted(v), min(at_once, len(v)))) for v in values]
    left, kept, used = set().union(*tuples), set(), Counter()
    while left:
        new = [len(t & left) for t in tuples]
        most = max(new)
        several = [i for i, n in enumerate(new) if n == most]
        best = min(several, key=lambda i: sum(used[value] for value in values[i]))
        kept.add(best)
        left -= tuples[best]
        used.update(values[best])
    return kept
