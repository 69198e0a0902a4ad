"""What makes calls take torch's operator around kernels."""

from collections.abc import Iterator

import pytest
from support.targets import KERNELS

import rope_xp


@pytest.fixture
def _by_kernels() -> Iterator[None]:
    """Ask for kernels by name."""
    with rope_xp.use_path(KERNELS):
        yield
