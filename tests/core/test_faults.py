"""The faults that tests/support/plant.py plants can still be planted."""

from __future__ import annotations

import pytest
from support.faults import FAULTS, Fault
from support.programs import ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.file}: {fault.new!r}")
def test_what_a_fault_changes_is_there_once(fault: Fault) -> None:
    assert (ROOT / fault.file).read_text(encoding="utf-8").count(fault.old) == 1
    assert fault.new != fault.old
    for test in fault.tests.split():
        file, _, name = test.partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / file).read_text(encoding="utf-8")
