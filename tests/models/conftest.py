"""What the tests of models share."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Keep transformers' advice on odd default configurations out of the output."""
    transformers = sys.modules.get("transformers")
    if transformers is None:
        yield
        return
    level = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(level)
