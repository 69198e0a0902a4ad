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
    """Mark what the short suite leaves out.

    Of a test with the mark ``covering`` it runs few cases. Of every other test on every backend it
    runs few cases on those backends that compile each case anew, and on one library of them: the
    tests of a file take the libraries in turn. What needs a GPU is left as it is.
    """
    chosen, compiled = defaultdict(list), defaultdict(lambda: defaultdict(list))
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        if item.get_closest_marker("gpu") or item.get_closest_marker("exhaustive"):
            continue
        test, backend = (item.parent, item.originalname), item.callspec.params.get("backend")
        if mark := item.get_closest_marker("covering"):
            chosen[test, *mark.args].append(item)
        elif isinstance(backend, Target) and backend.compiles:
            compiled[item.path][test].append(item)
    for (_, *at_once), cases in chosen.items():
        _mark_rest(cases, cases, covering([item.callspec.params for item in cases], *at_once))
    for tests in compiled.values():
        for turn, cases in enumerate(tests.values()):
            modules = [item.callspec.params["backend"].module for item in cases]
            library = sorted(set(modules))[turn % len(set(modules))]
            own = [item for item, module in zip(cases, modules, strict=True) if module == library]
            kept = covering([item.callspec.params | {"backend": None} for item in own])
            _mark_rest(cases, own, kept)


def _mark_rest(cases: list[pytest.Item], choice: list[pytest.Item], kept: set[int]) -> None:
    """Mark all cases but those of a choice that are kept."""
    for item in set(cases) - {choice[i] for i in kept}:
        item.add_marker(pytest.mark.exhaustive)


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
        best = max(
            range(len(cases)),
            key=lambda i: (len(tuples[i] & left), -sum(used[value] for value in values[i])),
        )
        kept.add(best)
        left -= tuples[best]
        used.update(values[best])
    return kept
