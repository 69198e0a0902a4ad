"""What makes calls take torch's operator around kernels."""

import pytest
from support.targets import COMPILER, KERNELS

import rope_xp


@pytest.fixture
def _by_kernels():
    pytest.importorskip(COMPILER)
    with rope_xp.use_path(KERNELS):
        yield
