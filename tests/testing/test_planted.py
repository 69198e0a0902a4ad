"""Each planted fault is named, by assert_rotates and by identify."""

import re

import pytest
from support.cases import slow
from support.planted import FAULTS, HEAD_DIM

from rope_xp import RopeError
from rope_xp.testing import assert_rotates, identify
from rope_xp.testing._compare import list_differences

# A slow one, or like another in what is reported.
LATER = re.compile(
    "inter.* for |half for interleaved_to_half|.*(rounded|computed|learned|twice|swapped|reversed)"
    "|(TF32|a phase|half written|normalised|small|large numbers|position of the first|q cast)"
    "|.*(token before|tokens counts|made of q|block of 16|first batch entry|entry left|at most)"
)


@pytest.mark.parametrize(
    "fault",
    [slow(f) if LATER.match(f.name) else f for f in FAULTS],
    ids=lambda fault: fault.name,
)
def test_planted_fault_is_named(fault):
    with pytest.raises(AssertionError) as raised:
        assert_rotates(fault.function, fault.meant, HEAD_DIM)
    assert fault.message in str(raised.value)
    assert "nothing that is known here" not in str(raised.value)
    components = 3 if fault.outcome == "sections" else None
    if fault.outcome == "error":
        with pytest.raises(RopeError) as refused:
            identify(fault.function, HEAD_DIM)
        assert fault.message in str(refused.value)
        return
    result = identify(fault.function, HEAD_DIM, components=components)
    if fault.outcome == "fault":
        assert fault.message in " ".join(result.faults)
    else:
        differences = list_differences(result.rope, fault.meant, HEAD_DIM)
        assert fault.message in " ".join([*differences, *result.notes])
