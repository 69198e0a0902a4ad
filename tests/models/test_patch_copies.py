"""Copies of patched models, rotary modules patched alone, hooks of accelerate, and shards."""

import copy
import functools
import io

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.distributed
import transformers
from support.cases import slow
from support.patched import LOGITS, TOKENS, is_ours, logits, modeling, refuse
from support.small_models import make, multimodal_text, vision_language
from torch.distributed.fsdp import fully_shard

from rope_xp.integrations.transformers import patch, unpatch


def by_torch(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    ("copied", "rotation"),
    [(by_torch, True), (copy.deepcopy, True), (copy.deepcopy, False)],
)
def test_copy_of_a_patched_model_is_patched(copied, rotation):
    model = make("llama")
    before = logits(model)
    after = logits(patch(model, rotation=rotation))
    again = copied(model)
    assert torch.equal(logits(again), after)
    assert is_ours(logits, again) is rotation
    assert [type(m) for m in again.modules()] == [type(m) for m in model.modules()]
    unpatch(model)  # and not the copy
    assert torch.equal(logits(again), after)
    assert torch.equal(logits(unpatch(again)), before)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        *(("llama", {}), ("gemma3_text", {"layer_type": "full_attention"}), ("llama4_text", {})),
        slow("deepseek_v4", {"layer_type": "main"}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_patch_without_rotation_replaces_the_rotary_modules_alone(name, label, dtype):
    model = make(name, _experts_implementation="eager").to(dtype)
    modules, classes = list(model.modules()), [type(module) for module in model.modules()]
    rotary = model.model.rotary_emb
    x, positions = torch.zeros(1, 9, 4, dtype=dtype), torch.arange(9)[None]
    theirs = rotary(x, positions, **label)
    patch(model, rotation=False)
    for module, kind in zip(modules, classes, strict=True):
        assert (type(module) is not kind) == ("Rotary" in kind.__name__)
    # Angles below 9, of float32 frequencies, or rounded ones where the model was cast.
    close = {"rtol": 0, "atol": max(1e-5, 9 * torch.finfo(dtype).eps)}
    torch.testing.assert_close(rotary(x, positions, **label), theirs, **close)
    assert logits(model).dtype == dtype
    assert not is_ours(logits, model)


def test_patch_keeps_the_axis_of_tables_of_an_image_for_a_batch():
    rotary = modeling("sam3").Sam3ViTRotaryEmbedding(transformers.Sam3ViTConfig())
    positions = torch.stack((torch.arange(6) % 3, torch.arange(6) // 3), dim=-1)
    theirs = rotary(torch.zeros(1), positions)
    ours = patch(rotary, rotation=False)(torch.zeros(1), positions)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)  # float32 angles below 3


@pytest.mark.parametrize("model_type", ["qwen2_vl_text", slow("qwen3_5_text")])
@pytest.mark.parametrize("shape", [(1, 3, 5), (3, 3, 5), (3, 5), (1, 3, 1)])
def test_patched_mrope_takes_positions_of_each_shape_that_the_models_expand(model_type, shape):
    model = multimodal_text(model_type)
    positions = 7 + torch.arange(torch.Size(shape).numel()).reshape(shape)
    tokens = TOKENS[:1].expand(3, -1)[:, : shape[-1]]
    with torch.no_grad():
        before = model(tokens, position_ids=positions).last_hidden_state
        after = patch(model)(tokens, position_ids=positions).last_hidden_state
    torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)


def test_patch_of_a_vision_language_model_replaces_both_of_its_rotations():
    model, inputs = vision_language()
    before, classes = model(**inputs).logits, {*map(type, model.modules())}
    patch(model)
    torch.testing.assert_close(model(**inputs).logits, before, rtol=0, atol=LOGITS)
    assert {kind.__name__ for kind in classes - {*map(type, model.modules())}} == {
        *("Qwen2VLRotaryEmbedding", "Qwen2VLVisionRotaryEmbedding"),
        *("Qwen2VLAttention", "VisionAttention"),
    }


def test_patched_model_traced_by_torch_jit_takes_other_positions():
    model = patch(make("llama")).requires_grad_(False)

    def run(tokens, positions):
        return model(tokens, position_ids=positions, use_cache=False).logits

    positions = torch.arange(24)[None]
    # torch calls this deprecated, and warns of each size that becomes a constant.
    deprecated = (DeprecationWarning, FutureWarning)  # before torch 2.15, and from there on
    with pytest.warns((*deprecated, torch.jit.TracerWarning)):
        traced = torch.jit.trace(run, (TOKENS, positions))
    for other in (3 * positions, 1_000_000 + positions):
        expected = run(TOKENS, other)
        torch.testing.assert_close(traced(TOKENS, other), expected, rtol=0, atol=LOGITS)


def test_new_module_of_a_patched_class_computes_as_its_base():
    original, patched = make("llama").model.rotary_emb, patch(make("llama")).model.rotary_emb
    x, positions = torch.zeros(1, dtype=torch.bfloat16), torch.arange(9)[None]
    new = type(patched)(original.config)
    assert all(map(torch.equal, new(x, positions), original(x, positions)))


# --- hooks and shards ----------------------------------------------------------------------------


@pytest.mark.parametrize("first", [True, False])
def test_patched_model_with_hooks_rotates_and_when_they_are_taken_off(first):
    accelerate = pytest.importorskip("accelerate")
    model = make("llama")
    before = logits(model)
    if not first:
        patch(model)
    accelerate.cpu_offload(model, "cpu", offload_buffers=True)
    after = logits(patch(model) if first else model)
    assert is_ours(logits, model)
    torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)
    assert torch.equal(logits(unpatch(model)), before)
    accelerate.hooks.remove_hook_from_module(patch(model), recurse=True)
    # They leave the method that they called in the module, where it hides the class's.
    assert "forward" in vars(model.model.rotary_emb)
    assert is_ours(logits, model)
    assert torch.equal(logits(unpatch(model)), before)
    assert is_ours(logits, patch(model))


def test_unpatch_refuses_a_forward_that_something_replaced_since():
    model = patch(make("llama"))
    attention = model.model.layers[1].self_attn
    attention.forward = functools.partial(attention.forward)
    refuse(unpatch, model, r"cannot unpatch model\.layers\.1\.self_attn .*forward")
    del attention.forward
    unpatch(model)


@pytest.fixture
def mesh():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_patched_model_sharded_before_and_after_rotates(mesh):
    model = make("llama")
    before = logits(model)
    fully_shard(model.model.layers[0].self_attn, mesh=mesh)
    patch(model)
    fully_shard(model.model.layers[1], mesh=mesh)
    fully_shard(model, mesh=mesh)
    torch.testing.assert_close(logits(model), before, rtol=0, atol=LOGITS)
    assert is_ours(logits, model)
    assert torch.equal(logits(unpatch(model)), before)


def test_patch_and_unpatch_refuse_patched_layers_that_were_sharded(mesh):
    """fully_shard makes a class of the module's own, so that its base cannot be changed back."""
    after = patch(make("llama"))
    fully_shard(after.model.layers[0].self_attn, mesh=mesh)
    refuse(unpatch, after, r"model\.layers\.0\.self_attn \(FSDPLlamaAttention\)")
    refuse(patch, after, "patched already")
