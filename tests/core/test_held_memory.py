"""What calls hold between them, in bytes of RSS, whatever was called."""

from __future__ import annotations

import importlib.util
import sys

import pytest
from support.exhaustive import exhaustive
from support.programs import printed

MIB = 100
"""64 MiB of tables, and what malloc keeps of memory that was freed."""


@pytest.mark.skipif(sys.platform != "linux", reason="RSS is read from /proc")
@pytest.mark.parametrize(
    ("kind", "library"),
    [
        *(("ropes", "numpy"), ("angles", "torch"), exhaustive("ropes", "jax")),
        *(exhaustive("lengths", "torch"), exhaustive("gradients", "torch")),
        *(exhaustive("mixed", "numpy"), exhaustive("mixed", "torch")),
    ],
)
def test_calls_hold_little(kind: str, library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    held, after_clearing = map(float, printed("held_memory.py", kind, library).split())
    assert held <= MIB
    assert after_clearing <= held + 5
