"""What makes calls take torch's operator around kernels, and graphs forgotten."""

import importlib

import pytest
from support.targets import COMPILER, KERNELS

import rope_xp


@pytest.fixture
def _by_kernels():
    pytest.importorskip(COMPILER)
    with rope_xp.use_path(KERNELS):
        yield


@pytest.fixture(autouse=True)
def _no_graphs():
    """Forget the graphs that other tests had compiled."""
    importlib.import_module("torch._dynamo").reset()
