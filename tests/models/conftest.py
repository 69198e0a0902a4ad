"""What the tests of models share."""

import importlib
import sys

import pytest


@pytest.fixture
def rotations(monkeypatch):
    """Return a list that grows by one with each rotation of q or k by rope_xp."""
    return importlib.import_module("support.patched").count_rotations(monkeypatch)


@pytest.fixture(autouse=True)
def _silent():
    """Keep transformers' advice on odd default configurations out of the output."""
    transformers = sys.modules.get("transformers")
    if transformers is None:
        yield
        return
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)
