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


# All on numpy, and few where calls are compiled; test_calls has one of jax in the short suite.
EVERY = {"numpy": 1, "torch": 4, "jax": 20}
CASES = [
    pytest.param(library, fault, id=f"{library}-{fault.kind}")
    if library == "numpy" or (library == "torch" and i % 12 == 0)
    else exhaustive(library, fault, id=f"{library}-{fault.kind}")
    for library, every in EVERY.items()
    for i, fault in enumerate(FAULTS)
    if i % every == 0
]


@pytest.mark.parametrize(("library", "fault"), CASES)
def test_every_fault_is_named(library: str, fault: Fault) -> None:
    function = fault.make(namespace(library))
    with pytest.raises(AssertionError) as raised:
        assert_rotates(function, fault.meant, HEAD_DIM, like=like(library))
    assert fault.words in str(raised.value)
    if not fault.alone:
        return
    try:
        faults = identify(function, HEAD_DIM, like=like(library)).faults
    except RopeError as error:
        faults = (str(error),)
    assert any(fault.words in text for text in faults)
