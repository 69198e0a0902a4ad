"""The kernel for GPUs as a path of numpy."""

import pytest
from support.targets import TARGETS, lent, missing

import rope_xp


@pytest.fixture(autouse=True)
def _cuda_on_numpy():
    (target,) = [t for t in TARGETS if t.name == "numpy-cuda"]
    if reason := missing(target):
        pytest.skip(reason)
    with lent(target.lent), rope_xp.use_path("cuda"):
        yield
