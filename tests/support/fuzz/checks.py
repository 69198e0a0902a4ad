"""A call without out= and with it: its results, and that nothing else is written."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume

from rope_xp import RopeError
from support.fuzz import bounds
from support.fuzz.cases import Out
from support.fuzz.libraries import Library
from support.fuzz.memory import lay, moved, same_elements, share, shares_with_itself, touched


def check(library, call, laid, outs, expected):
    arrays = [x for _, x in laid]
    before = [memory.copy() for memory, _ in laid]
    with library.chosen():
        results = call([library.make(x) for x in arrays])
        for result, x, right in zip(results, arrays, expected, strict=True):
            bounds.close(library, library.back(result), x, *right)
        for (memory, _), old in zip(laid, before, strict=True):
            np.testing.assert_array_equal(memory, old)
        kinds = {out.kind for out in outs}
        if not library.writes or "none" in kinds:
            return
        write(library, call, laid, outs, expected)


def apart(targets: list[np.ndarray], arrays: list[np.ndarray]) -> bool:
    """Return whether results can be written: to memory that is not read but in its own place."""
    if any(map(shares_with_itself, targets)):
        return False
    for i, target in enumerate(targets):
        for j, x in enumerate(arrays):
            if share(target, x) and not (i == j and same_elements(target, x)):
                return False
        if any(share(target, other) for other in targets[:i]):
            return False
    return True


def write(library: Library, call: Any, laid: Any, places: list[Out], expected: Any) -> None:
    arrays = [x for _, x in laid]
    targets, memories = [], [memory for memory, _ in laid]
    for i, (out, (own, x)) in enumerate(zip(places, laid, strict=True)):
        if not library.shared and out.kind != "new":
            assume(out.kind == "same")
        if out.kind == "new":
            memory, target = lay(x.shape, library.view(out.view, x.dtype.name))
            memories.append(memory)
        elif out.kind == "swapped":
            target = arrays[-1 - i]
            assume(len(arrays) == 2 and target.shape == x.shape and target.dtype == x.dtype)
        elif out.kind == "moved":
            backwards = out.backwards if library.any_memory else None
            target = moved(own, x, out.by, backwards)
        else:
            target = x
        targets.append(target)
    fits = not library.shared or apart(targets, arrays)
    own = [library.make(x) for x in arrays]
    outs = [
        own[i] if target is arrays[i] else library.make(target) for i, target in enumerate(targets)
    ]
    before = [memory.copy() for memory in memories]
    given_out = outs[0] if len(outs) == 1 else tuple(outs)
    if not fits:
        with pytest.raises(RopeError):
            call(own, out=given_out)
        for memory, old in zip(memories, before, strict=True):
            np.testing.assert_array_equal(memory, old)
        return
    try:
        results = call(own, out=given_out)
    except RopeError as error:
        # An axis of length 1 may have any stride, which keeps views of the same apart.
        twins = [same_elements(*each) for each in zip(targets, arrays, strict=True)]
        if not any(twins) or "without being" not in str(error):
            raise
        return
    for result, target, out, x, right in zip(results, targets, outs, arrays, expected, strict=True):
        assert result is out
        bounds.close(library, library.back(result), x, *right)
        if library.shared:
            bounds.close(library, target, x, *right)
    if library.shared:
        written = np.concatenate([touched(target) for target in targets])
        for memory, old in zip(memories, before, strict=True):
            start = memory.__array_interface__["data"][0]
            kept = np.ones(memory.size, bool)
            inside = written[(written >= start) & (written < start + memory.size)]
            kept[inside - start] = False
            np.testing.assert_array_equal(memory[kept], old[kept])
