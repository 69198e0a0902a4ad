"""Patching beside what else changes modules: the hooks of accelerate, and shards."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import accelerate
import torch
import torch.distributed
from accelerate.hooks import remove_hook_from_module
from support.patched import LOGITS, ROTATIONS, logits
from support.small_models import make
from torch.distributed.fsdp import fully_shard

from rope_xp import RopeError
from rope_xp.integrations.transformers import patch, unpatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


def dispatched(model: Any, folder: Path) -> None:
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.rotary_emb": "cpu"}
    places |= {"model.layers.1": "disk", "model.norm": "cpu", "lm_head": "disk"}
    accelerate.dispatch_model(model, places, offload_dir=folder)


HOOKS: dict[str, Callable[[Any, Path], Any]] = {
    "cpu_offload": lambda model, _: accelerate.cpu_offload(model, "cpu", offload_buffers=True),
    "dispatch_model": dispatched,
    "one device": lambda model, _: accelerate.dispatch_model(model, {"": "cpu"}, force_hooks=True),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("first", [True, False])
def test_hooks(hook: str, first: bool, rotations: list[None], tmp_path: Path) -> None:
    model = make("llama")
    before = logits(model)
    if not first:
        patch(model)
    HOOKS[hook](model, tmp_path)
    after = logits(patch(model) if first else model)
    assert len(rotations) == ROTATIONS
    torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)
    assert torch.equal(logits(unpatch(model)), before)
    assert len(rotations) == ROTATIONS


def test_hooks_that_are_taken_off_again(rotations: list[None], tmp_path: Path) -> None:
    """They leave the method that they called in the module, where it hides the class's."""
    model = make("llama")
    before = logits(model)
    HOOKS["cpu_offload"](patch(model), tmp_path)
    remove_hook_from_module(model, recurse=True)
    assert "forward" in vars(model.model.rotary_emb)
    after = logits(model)
    assert len(rotations) == ROTATIONS
    assert torch.equal(logits(unpatch(model)), before)
    assert torch.equal(logits(patch(model)), after)
    assert len(rotations) == 2 * ROTATIONS


def test_unpatch_refuses_a_forward_that_something_replaced_since() -> None:
    model = patch(make("llama"))
    attention = model.model.layers[1].self_attn
    attention.forward = functools.partial(attention.forward)
    classes = [type(module) for module in model.modules()]
    with pytest.raises(RopeError, match=r"cannot unpatch model\.layers\.1\.self_attn .*forward"):
        unpatch(model)
    assert [type(module) for module in model.modules()] == classes
    del attention.forward
    unpatch(model)


@pytest.fixture
def mesh() -> Iterator[Any]:
    """Return a mesh of this process alone."""
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_shards_of_layers(mesh: Any, rotations: list[None]) -> None:
    model = make("llama")
    before = logits(model)
    fully_shard(model.model.layers[0].self_attn, mesh=mesh)
    fully_shard(model.model.layers[0], mesh=mesh)
    patch(model)
    fully_shard([model.model.layers[1], model.model.norm], mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=LOGITS)
    assert len(rotations) == ROTATIONS
    assert torch.equal(logits(unpatch(model)), before)


def test_shards_of_what_is_patched(mesh: Any) -> None:
    """fully_shard makes a class of the module's own, so that its base cannot be changed back."""
    after = patch(make("llama"))
    fully_shard(after.model.layers[0].self_attn, mesh=mesh)
    classes = [type(module) for module in after.modules()]
    with pytest.raises(RopeError, match=r"model\.layers\.0\.self_attn \(FSDPLlamaAttention\)"):
        unpatch(after)
    assert [type(module) for module in after.modules()] == classes
    with pytest.raises(RopeError, match="patched already"):
        patch(after)
