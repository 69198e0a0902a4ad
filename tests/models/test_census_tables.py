"""RoPE.table beside the tables of transformers' own code in float64; see census_tables.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import transformers
from support import census  # first, as it skips this module where torch or transformers is missing
from support import census_tables as tables
from support.exhaustive import exhaustive

from rope_xp import RopeError

REFUSALS = (RopeError, IndexError, TypeError)
# One for each layout and slice, for several components, for a factor, and one that is left.
SHORT = (
    *("llama", "cohere", "glm", "deepseek_v3", "qwen2_vl", "gpt_oss"),
    *("wav2vec2_conformer", "mistral_large4"),
)


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Have transformers keep to itself that some default configurations are odd."""
    before = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    yield
    transformers.logging.set_verbosity(before)


@pytest.mark.parametrize(
    "directory", [d if d in SHORT else exhaustive(d) for d in census.directories()]
)
def test_every_unit_has_the_bits_of_float64_rounded_once(directory: str) -> None:
    """In all forms and dtypes, but where float64 itself does not tell which way to round."""
    for unit in census.units(directory):
        if unit.name not in tables.LEFT:
            assert tables.differences(unit) == "", unit.name
            continue
        try:
            said = tables.differences(unit)
        except REFUSALS as error:
            said = repr(error)
        assert said, f"{unit.name} is equal by now, and not left any more"


@pytest.mark.exhaustive
def test_what_is_left_is_there_and_little() -> None:
    names = [unit.name for name in census.directories() for unit in census.units(name)]
    assert set(tables.LEFT) <= set(names)
    assert len(set(names) - set(tables.LEFT)) > 200


def test_code_that_asks_for_float32_computes_in_float64() -> None:
    """Or what is compared would be float32 with itself."""
    import torch

    with tables.in_float64():
        made = torch.arange(0, 8, 2, dtype=torch.int64).to(dtype=torch.float) / 8
        third = torch.tensor(1.0, dtype=torch.float32).float() / 3
    assert made.dtype == third.dtype == torch.float64
    assert third.item() == 1 / 3
    assert torch.ones(1).dtype == torch.float32
