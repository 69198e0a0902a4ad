"""What makes calls take torch's operator around kernels."""

from collections.abc import Iterator

import pytest
from support.targets import COMPILER, KERNELS

import rope_xp


@pytest.fixture
def _by_kernels() -> Iterator[None]:
    pytest.importorskip(COMPILER)
    with rope_xp.use_path(KERNELS):
        yield
