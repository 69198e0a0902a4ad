"""What makes calls take torch's operator around kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from rope_xp_backends.cpu import launch
from support.targets import KERNELS

import rope_xp


@pytest.fixture
def _by_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ask for kernels by name. Calls that choose for themselves take them however small."""
    monkeypatch.setattr(launch, "BYTES_TO_COMPILE_FOR", 0)
    with rope_xp.use_backend(KERNELS):
        yield
