"""Which cases of a matrix the short suite runs. The others carry the mark ``exhaustive``.

A case is left out by name, ``exhaustive("interleaved", 6)`` among the parameters of a test; or by
the mark ``covering`` of a test, whose cases are then chosen here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from functools import partial
from itertools import combinations
from typing import Any

import pytest

from support.targets import Target

exhaustive = partial(pytest.param, marks=pytest.mark.exhaustive)
"""``pytest.param`` of a case that the short suite leaves out."""


def leave_out(items: list[pytest.Item]) -> None:
    """Mark what the short suite leaves out.

    Of a test with the mark ``covering`` it runs few cases. Of every other test on every backend it
    runs few cases on those backends that compile each case anew, and on one library of them: the
    tests of a file take the libraries in turn. What needs a GPU is left as it is.
    """
    marked: dict[tuple[str, int], dict[pytest.Item, dict[str, Any]]] = defaultdict(dict)
    compiled: dict[str, dict[str, dict[pytest.Item, dict[str, Any]]]] = defaultdict(dict)
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if item.get_closest_marker("gpu") or item.get_closest_marker("exhaustive"):
            continue
        test, values = item.nodeid.partition("[")[0], dict(item.callspec.params)
        backend = values.get("backend")
        if mark := item.get_closest_marker("covering"):
            marked[test, mark.args[0] if mark.args else 1][item] = values
        elif isinstance(backend, Target) and backend.compiles:
            compiled[test.partition("::")[0]].setdefault(test, {})[item] = values
    for (_, at_once), cases in marked.items():
        _mark_rest(cases, cases, at_once)
    for tests in compiled.values():
        for turn, cases in enumerate(tests.values()):
            libraries = sorted({values["backend"].module for values in cases.values()})
            library = libraries[turn % len(libraries)]
            of_one = {
                item: {**values, "backend": None}
                for item, values in cases.items()
                if values["backend"].module == library
            }
            _mark_rest(cases, of_one, 1)


def _mark_rest(
    cases: Iterable[pytest.Item], chosen: dict[pytest.Item, dict[str, Any]], at_once: int
) -> None:
    """Mark all cases but those that cover the values of the chosen ones."""
    kept = covering({item.nodeid: values for item, values in chosen.items()}, at_once)
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
