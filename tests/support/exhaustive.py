"""Which cases of a matrix the short suite runs. The others carry the mark ``exhaustive``.

A case is left out by name, ``exhaustive("interleaved", 6)`` among the parameters of a test; or by
the mark ``covering`` of a test, whose cases are then chosen here.
"""

from collections import Counter, defaultdict
from functools import partial
from itertools import combinations
from typing import Any

import pytest

from support.targets import Target

exhaustive = partial(pytest.param, marks=pytest.mark.exhaustive)
"""``pytest.param`` of a case that the short suite leaves out."""


def leave_out(items: list[pytest.Item]) -> None:
    """Mark what the short suite leaves out.

    A test with the mark ``covering`` runs few cases. Of backends that compile each case anew, a
    test runs those of one library, and few cases on them: the tests of a file take the libraries
    in turn. What needs a GPU is left as it is.
    """
    files = defaultdict(lambda: defaultdict(list))
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if not item.get_closest_marker("gpu") and not item.get_closest_marker("exhaustive"):
            files[item.path][item.parent, item.originalname].append(item)
    for tests in files.values():
        turn = 0
        for cases in tests.values():
            compiled = [item for item in cases if compiling_library(item)]
            libraries = sorted(set(map(compiling_library, compiled)))
            own = [i for i in compiled if compiling_library(i) == libraries[turn % len(libraries)]]
            turn += bool(libraries)
            mark, eager = cases[0].get_closest_marker("covering"), set(cases) - set(compiled)
            if mark:
                own, eager = [item for item in cases if item in eager or item in own], set()
            params = [item.callspec.params | ({} if mark else {"backend": None}) for item in own]
            chosen = {own[i] for i in covering(params, *(mark.args if mark else ()))}
            for item in set(cases) - eager - chosen:
                item.add_marker(pytest.mark.exhaustive)


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
        use = [-sum(used[value] for value in v) for v in values]
        best = max(range(len(cases)), key=lambda i: (new[i], use[i]))
        kept.add(best)
        left -= tuples[best]
        used.update(values[best])
    return kept
