"""Each planted fault is named by its kind, and correct code has none."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from support.exhaustive import exhaustive
from support.planted import FAULTS, HEAD_DIM, Fault

from rope_xp import RopeError
from rope_xp.testing import assert_rotates, identify

LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax.numpy"}


def namespace(library: str) -> Any:
    """Return the array API of a library; jax has it itself."""
    pytest.importorskip(library)
    if library == "jax":
        return importlib.import_module("jax.numpy")
    return importlib.import_module(f"array_api_compat.{library}")


def like(library: str) -> Any:
    module = importlib.import_module(LIBRARIES[library])
    return module.zeros(1, dtype=module.float32)


# How many faults of each library there are for one that the short suite plants: calls of one shape
# after another are slow in torch, and slower in jax.
EVERY = {"numpy": 1, "torch": 4, "jax": 14}
CASES = [
    (exhaustive if i % EVERY[library] else pytest.param)(library, f, id=f"{library}-{f.kind}")
    for i, f in enumerate(FAULTS)
    for library in LIBRARIES
]


@pytest.mark.parametrize(("library", "fault"), CASES)
def test_every_fault_is_named(library: str, fault: Fault) -> None:
    function = fault.make(namespace(library))
    with pytest.raises(AssertionError) as raised:
        assert_rotates(function, fault.meant, HEAD_DIM, like=like(library))
    assert fault.said in str(raised.value)
    if not fault.alone:
        return
    try:
        found = identify(function, HEAD_DIM, like=like(library)).faults
    except RopeError as error:
        found = (str(error),)
    assert any(fault.said in each for each in found)
