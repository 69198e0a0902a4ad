"""Copies of patched models, rotary modules patched alone, hooks of accelerate, and shards."""

import copy
import functools
import io
import pickle

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.distributed
import transformers
from support.cases import slow
from support.patched import LOGITS, TOKENS, is_ours, logits, modeling, refuse, replaced
from support.small_models import CACHE, make, multimodal_text, vision_language
from torch.distributed.fsdp import fully_shard
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rope_xp.integrations.transformers import patch, unpatch


def by_torch(model):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES = {
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "an old protocol": lambda model: pickle.loads(pickle.dumps(model, protocol=0)),
    "torch.save": by_torch,
    "deepcopy": copy.deepcopy,
}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("rotation", [True, False])
def test_copy_of_a_patched_model_is_patched(rotation, copied):
    model = make("llama")
    before = logits(model)
    after = logits(patch(model, rotation=rotation))
    again = COPIES[copied](model)
    assert torch.equal(logits(again), after)
    assert is_ours(logits, again) is rotation
    assert [type(m) for m in again.modules()] == [type(m) for m in model.modules()]
    unpatch(model)  # and not the copy
    assert torch.equal(logits(again), after)
    assert torch.equal(logits(unpatch(again)), before)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ("llama", "gemma3_text", "llama4_text")),
        *((name, torch.bfloat16) for name in ("llama", "deepseek_v4", "llama4_text")),
        *((name, torch.float64) for name in ("llama", "llama4_text")),
        slow("cohere", torch.bfloat16),
    ],
)
def test_patch_without_rotation_replaces_the_rotary_modules_alone(name, dtype):
    model = make(name).to(dtype)
    modules, classes = list(model.modules()), [type(module) for module in model.modules()]
    rotary = model.model.rotary_emb
    labelled = name in ("deepseek_v4", "gemma3_text")
    label = {"layer_type": next(iter(rotary.config.rope_parameters))} if labelled else {}
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


def test_patched_tables_of_an_image_keep_their_axis_for_a_batch():
    rotary = modeling("sam3").Sam3ViTRotaryEmbedding(transformers.Sam3ViTConfig())
    positions = torch.stack((torch.arange(6) % 3, torch.arange(6) // 3), dim=-1)
    theirs = rotary(torch.zeros(1), positions)
    ours = patch(rotary, rotation=False)(torch.zeros(1), positions)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)  # float32 angles below 3


@pytest.mark.parametrize("model_type", ["qwen2_vl_text", slow("qwen3_5_text")])
def test_patched_mrope_takes_positions_of_each_shape_that_the_models_expand(model_type):
    original, model = multimodal_text(model_type), patch(multimodal_text(model_type))
    for shape in ((1, 3, 5), (3, 3, 5), (3, 5), (1, 3, 1)):
        positions = 7 + torch.arange(torch.Size(shape).numel()).reshape(shape)
        tokens = TOKENS[:1].expand(3, -1)[:, : shape[-1]]
        with torch.no_grad():
            before = original(tokens, position_ids=positions).last_hidden_state
            after = model(tokens, position_ids=positions).last_hidden_state
        torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)


def test_patched_mrope_goes_on_from_a_cache():
    model, inputs = vision_language()
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "disable_compile": True}

    def generate_twice():
        first = model.generate(**inputs, **options, return_dict_in_generate=True)
        longer = torch.cat([first.sequences, torch.tensor([[9, 10, 11]])], dim=1)
        return model.generate(longer, **{CACHE: first.past_key_values}, **options)

    with torch.no_grad():
        before = generate_twice(), model(**inputs).logits
        classes = {path: type(module) for path, module in model.named_modules()}
        patch(model)
        torch.testing.assert_close(model(**inputs).logits, before[1], rtol=0, atol=LOGITS)
    assert torch.equal(generate_twice(), before[0])
    changed = {p: classes[p] for p, m in model.named_modules() if type(m) is not classes[p]}
    assert {cls.__name__ for cls in changed.values()} == {
        *("Qwen2VLRotaryEmbedding", "Qwen2VLVisionRotaryEmbedding"),
        *("Qwen2VLAttention", "VisionAttention"),
    }


def test_replacement_takes_queries_of_the_last_tokens_alone():
    """As of an assistant that reads the cache of another model: k has more tokens than q."""
    function, ours = replaced("muse_glimmer_assistant", "halves")
    k, tables = torch.randn(2, 3, 7, 8), torch.randn(2, 2, 7, 8)
    q = torch.randn(2, 3, 2, 8)
    for dtype in (torch.float32, torch.bfloat16):
        expected = function(q.to(dtype).float(), k.to(dtype).float(), *tables)
        for _ in range(2):
            with torch.no_grad():
                rotated = ours(q.to(dtype), k.to(dtype), *tables)
            assert [y.dtype for y in rotated] == [dtype, dtype]
            assert all(map(torch.equal, rotated, (y.to(dtype) for y in expected)))


def test_patched_model_traced_by_torch_jit_takes_other_positions():
    model = patch(make("llama")).requires_grad_(False)

    def run(tokens, positions):
        return model(tokens, position_ids=positions, use_cache=False).logits

    positions = torch.arange(24)[None]
    # torch calls this deprecated, and warns of each size that becomes a constant.
    deprecated = (DeprecationWarning, FutureWarning)  # before torch 2.15, and from there on
    with pytest.warns((*deprecated, torch.jit.TracerWarning)):
        traced = torch.jit.trace(run, (TOKENS, positions))
    for other in (positions, 3 * positions, 1_000_000 + positions):
        expected = run(TOKENS, other)
        torch.testing.assert_close(traced(TOKENS, other), expected, rtol=0, atol=LOGITS)


def test_patch_takes_rotary_modules_that_are_made_of_a_size():
    class MadeOfASize(LlamaRotaryEmbedding):
        def __init__(self, dim, config):
            super().__init__(config)
            self.dim = dim

    model = make("llama")
    before, original = logits(model), model.model.rotary_emb
    model.model.rotary_emb = MadeOfASize(16, model.config)
    torch.testing.assert_close(logits(patch(model)), before, rtol=0, atol=LOGITS)
    model.model.rotary_emb = original  # a new module of a patched class computes as its base
    x, positions = torch.zeros(1, dtype=torch.bfloat16), torch.arange(9)[None]
    expected = original(x, positions)
    new = type(patch(make("llama")).model.rotary_emb)(model.config)
    assert all(map(torch.equal, new(x, position_ids=positions), expected))


# --- hooks and shards ----------------------------------------------------------------------------


@pytest.fixture
def accelerate():
    return pytest.importorskip("accelerate")


def dispatch(accelerate, model, folder):
    places = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.rotary_emb": "cpu"}
    places |= {"model.layers.1": "disk", "model.norm": "cpu", "lm_head": "disk"}
    accelerate.dispatch_model(model, places, offload_dir=folder)


HOOKS = {
    "cpu_offload": lambda lib, model, _: lib.cpu_offload(model, "cpu", offload_buffers=True),
    "dispatch_model": dispatch,
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("first", [True, False])
def test_patched_model_with_hooks_rotates(hook, first, accelerate, tmp_path):
    model = make("llama")
    before = logits(model)
    if not first:
        patch(model)
    HOOKS[hook](accelerate, model, tmp_path)
    after = logits(patch(model) if first else model)
    assert is_ours(logits, model)
    torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)
    assert torch.equal(logits(unpatch(model)), before)
    assert not is_ours(logits, model)


def test_patched_model_rotates_when_its_hooks_are_taken_off(accelerate, tmp_path):
    """They leave the method that they called in the module, where it hides the class's."""
    model = make("llama")
    before = logits(model)
    HOOKS["cpu_offload"](accelerate, patch(model), tmp_path)
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert "forward" in vars(model.model.rotary_emb)
    after = logits(model)
    assert is_ours(logits, model)
    assert torch.equal(logits(unpatch(model)), before)
    assert torch.equal(logits(patch(model)), after)
    assert is_ours(logits, model)


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
    fully_shard(model.model.layers[0], mesh=mesh)
    patch(model)
    fully_shard([model.model.layers[1], model.model.norm], mesh=mesh)
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
