"""Each planted fault is named, by assert_rotates and by identify."""

import numpy as np
import pytest
from support.planted import FAULTS, HALF, HEAD_DIM

from rope_xp import RopeError
from rope_xp.testing import assert_rotates, identify
from rope_xp.testing._compare import list_differences


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
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


@pytest.mark.parametrize(
    ("library", "name"),
    [
        ("torch", "first 32 tokens only"),
        ("torch", "number of tokens counts"),
        ("jax", "batch entries swapped"),
    ],
)
def test_planted_fault_in_another_library_is_named(library, name):
    module = pytest.importorskip({"jax": "jax.numpy"}.get(library, library))
    fault = next(fault for fault in FAULTS if fault.name == name)

    def function(*arguments):
        host = [np.asarray(x) for x in arguments]
        return tuple(module.asarray(np.array(y)) for y in fault.function(*host))

    with pytest.raises(AssertionError) as raised:
        assert_rotates(function, HALF, HEAD_DIM, like=module.zeros(1))
    assert fault.message in str(raised.value)
