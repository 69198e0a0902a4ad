"""Every model class of transformers with rotary modules is patched, or left for a reason."""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import census  # first, as it skips this module where torch or transformers is missing
from support.census_lists import MENDED
from support.exhaustive import exhaustive

from rope_xp import RopeError
from rope_xp.integrations import _rotary
from rope_xp.integrations.transformers import patch, unpatch

SHORT = ("llama", "qwen2_vl", "deepseek_v3", "lasr", "neucodec")
LEFT = (
    "has no configuration to read",  # rotary modules that are made of sizes
    "has no rotary embedding that is known here",  # sinusoids, which are added
    "its forward takes no position_ids",  # but images
    "no function that rotates was found",  # of the layers that there are by default
    "it does not rotate as any layout does",  # EdgeTAM, whose keys are in groups
    "its buffer holds",  # ERNIE 4.5 VL, MiniMax-M3, MusicFlamingo
    "must sum to",  # sections of M-RoPE that do not fit the default head
    "cannot be rotated in pairs",
    *("it rotates two slices", "its frequencies are learned", "it turns by the negative angle"),
)
"""Why a class is not patched."""


def models(directory: str) -> Iterator[torch.nn.Module]:
    """Yield the models of a directory without weights, but with buffers of their rotary modules."""
    for path in sorted((census.MODELS / directory).glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{directory}.{path.stem}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            config_class = getattr(kind, "config_class", None)
            if config_class is None or kind.__module__ != module.__name__ or "PreTr" in name:
                continue
            model = built(kind, config_class)
            if model is not None and dict(_rotary.rotary_modules(model)):
                yield model


def built(kind: Any, config_class: type) -> Any:
    config = config_class(**MENDED.get(config_class.__name__, {}))
    try:
        with torch.device("meta"):
            model = kind._from_config(config)
        for name, rotary in list(_rotary.rotary_modules(model)):
            if name and hasattr(rotary, "config"):
                model.set_submodule(name, type(rotary)(rotary.config))
    except (AttributeError, ImportError, KeyError, RuntimeError, TypeError, ValueError):
        return None  # made for another configuration, or from parts
    return model


@functools.cache
def refusals(directory: str) -> dict[str, str]:
    """Return why patch refuses each model of a directory, nothing where it does not."""
    messages = {}
    for model in models(directory):
        name, kinds = type(model).__name__, [type(module) for module in model.modules()]
        try:
            patch(model)
        except RopeError as error:
            messages[name] = str(error)
        else:
            messages[name] = ""
            assert [type(module) for module in model.modules()] != kinds
            unpatch(model)
        assert [type(module) for module in model.modules()] == kinds
    return messages


@pytest.mark.parametrize(
    "directory", [d if d in SHORT else exhaustive(d) for d in census.directories()]
)
def test_models_are_patched_or_left_for_a_reason(directory: str) -> None:
    for name, message in refusals(directory).items():
        assert not message or re.search("|".join(LEFT), message), (name, message)


@pytest.mark.exhaustive
def test_nearly_all_are_patched() -> None:
    every = {d: refusals(d).values() for d in census.directories()}
    assert sum(list(messages).count("") for messages in every.values()) > 500
    assert sum("" in messages for messages in every.values()) > 160
