"""Every model class of transformers with rotary modules is patched, or left for a reason."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import census  # first, as it skips this module where torch or transformers is missing

from rope_xp import RopeError
from rope_xp.integrations import _rotary
from rope_xp.integrations.transformers import patch, unpatch

SHORT = ("llama", "qwen2_vl", "deepseek_v3", "lasr", "neucodec")
LAYERS = 8
LEFT = (
    "has no configuration to read",  # rotary modules that are made of sizes
    "has no rotary embedding that is known here",  # sinusoids, which are added
    "its forward takes no position_ids",  # but images
    "no function that rotates was found",  # of the layers that there are by default
    "it does not rotate as any layout does",  # EdgeTAM, whose keys are in groups
    "its buffer holds",  # ERNIE 4.5 VL, MiniMax-M3, MusicFlamingo
    "must sum to",  # sections of M-RoPE that do not fit the default head
    "cannot be rotated in pairs",
    *("it rotates two slices", "its frequencies are learned", "it rotates by the negative angle"),
)
"""Why a class is not patched."""


def models(directory: str) -> Iterator[torch.nn.Module]:
    """Yield the models of a directory without weights, but with buffers of their rotary modules."""
    for path in sorted((census.MODELS / directory).glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{directory}.{path.stem}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            if hasattr(kind, "config_class") and kind.__module__ == module.__name__:
                # Of few layers, if the configuration fits them.
                model = "PreTr" not in name and (build(kind, LAYERS) or build(kind, None))
                if model and dict(_rotary.rotary_modules(model)):
                    yield model


def build(kind: Any, layers: int | None) -> Any:
    """Return a model with so many layers, or those of its default; None if it cannot be built."""
    try:
        config = kind.config_class(**census.MENDED.get(kind.config_class.__name__, {}))
        if layers is not None:
            for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
                shorten(part, layers)
        with torch.device("meta"):
            model = kind._from_config(config)
        for name, rotary in list(_rotary.rotary_modules(model)):
            if name and hasattr(rotary, "config"):
                model.set_submodule(name, type(rotary)(rotary.config))
    except (AttributeError, ImportError, LookupError, RuntimeError, TypeError, ValueError):
        return None  # made for another configuration, or from parts
    return model


def shorten(config: Any, layers: int) -> None:
    for key in ("num_hidden_layers", "num_layers", "depth", "encoder_layers", "decoder_layers"):
        if isinstance(length := getattr(config, key, None), int):
            setattr(config, key, min(length, layers))
    if isinstance(getattr(config, "layer_types", None), list):
        with contextlib.suppress(AttributeError):  # of some it follows from other keys
            config.layer_types = config.layer_types[:layers]


def patch_all(directory: str) -> list[bool]:
    """Return which models of a directory are patched; the others are left for a reason."""
    patched = []
    for model in models(directory):
        classes = [type(module) for module in model.modules()]
        try:
            patch(model)
            message = ""
        except RopeError as error:
            message = str(error)
        else:
            assert [type(module) for module in model.modules()] != classes
            unpatch(model)
        assert [type(module) for module in model.modules()] == classes
        assert not message or re.search("|".join(LEFT), message), (type(model), message)
        patched.append(not message)
    return patched


@pytest.mark.parametrize("directory", SHORT)
def test_models_are_patched_or_left_for_a_reason(directory: str) -> None:
    assert any(patch_all(directory))


@pytest.mark.exhaustive
def test_nearly_all_are_patched() -> None:
    every = [patch_all(directory) for directory in census.list_directories()]
    assert sum(map(sum, every)) > 520
    assert sum(map(any, every)) > 165
