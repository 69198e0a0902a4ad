"""Copies of patched models, rotary modules patched alone, hooks of accelerate, and shards."""

import copy
import functools
import importlib
import io
import pickle

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import torch.distributed
import transformers
from support.exhaustive import exhaustive
from support.patched import LOGITS, ROTATIONS, TOKENS, logits, replaced
from support.small_models import make, multimodal_text, vision_language
from torch.distributed.fsdp import fully_shard
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from rope_xp import RopeError
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
def test_copies(rotation, copied, rotations):
    model = make("llama")
    before = logits(model)
    after = logits(patch(model, rotation=rotation))
    before_copy = len(rotations)
    again = COPIES[copied](model)
    assert torch.equal(logits(again), after)
    assert len(rotations) == 2 * before_copy == 2 * ROTATIONS * rotation
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
        *(exhaustive(name, torch.bfloat16) for name in ("olmo2", "cohere", "gemma3_text")),
    ],
)
def test_the_rotary_modules_alone(name, dtype, rotations):
    model = make(name).to(dtype)
    rotary_ids = {
        id(m) for m in model.modules() if hasattr(m, "inv_freq") or "Rotary" in str(type(m))
    }
    classes = {id(module): type(module) for module in model.modules()}
    rotary = model.model.rotary_emb
    label = {"layer_type": next(iter(rotary.config.rope_parameters))} if name in LABELLED else {}
    x, positions = torch.zeros(1, 9, 4, dtype=dtype), torch.arange(9)[None]
    theirs = rotary(x, positions, **label)
    patch(model, rotation=False)
    changed = {id(module) for module in model.modules() if type(module) is not classes[id(module)]}
    assert changed == rotary_ids
    ours = rotary(x, positions, **label)
    for our_table, their_table in zip(tables(ours), tables(theirs), strict=True):
        assert (our_table.dtype, our_table.shape) == (their_table.dtype, their_table.shape)
        # Angles below 9, of float32 frequencies, or rounded ones where the model was cast.
        close = max(1e-5, 9 * torch.finfo(dtype).eps)
        torch.testing.assert_close(our_table, their_table, rtol=0, atol=close)
    assert logits(model).dtype == dtype
    assert not rotations


LABELLED = ("deepseek_v4", "gemma3_text")


def tables(inputs):
    return inputs if isinstance(inputs, tuple) else (inputs,)


def test_tables_of_an_image_keep_their_axis_for_a_batch():
    module = importlib.import_module("transformers.models.sam3.modeling_sam3")
    rotary = module.Sam3ViTRotaryEmbedding(transformers.Sam3ViTConfig())
    positions = torch.stack((torch.arange(6) % 3, torch.arange(6) // 3), dim=-1)
    theirs = rotary(torch.zeros(1), positions)
    ours = patch(rotary, rotation=False)(torch.zeros(1), positions)
    for our_table, their_table in zip(ours, theirs, strict=True):
        # float32 angles below 3
        torch.testing.assert_close(our_table, their_table, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "model_type",
    ["qwen2_vl_text", *map(exhaustive, ("qwen2_5_vl_text", "qwen3_vl_text", "qwen3_5_text"))],
)
def test_positions_of_mrope_in_each_shape_that_the_models_expand(model_type):
    original, model = multimodal_text(model_type), patch(multimodal_text(model_type))
    for shape in ((1, 3, 5), (3, 3, 5), (3, 5), (1, 3, 1)):
        positions = 7 + torch.arange(torch.Size(shape).numel()).reshape(shape)
        tokens = TOKENS[:1].expand(3, -1)[:, : shape[-1]]
        with torch.no_grad():
            before = original(tokens, position_ids=positions).last_hidden_state
            after = model(tokens, position_ids=positions).last_hidden_state
        torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)


def test_generation_that_goes_on_from_a_cache_of_mrope():
    model, inputs = vision_language()
    options = {
        "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "disable_compile": True,
    }  # fmt: skip

    def generate():
        first = model.generate(**inputs, **options, return_dict_in_generate=True)
        longer = torch.cat([first.sequences, torch.tensor([[9, 10, 11]])], dim=1)
        return model.generate(longer, past_key_values=first.past_key_values, **options)

    with torch.no_grad():
        before = generate(), model(**inputs).logits
        patch(model)
        torch.testing.assert_close(model(**inputs).logits, before[1], rtol=0, atol=LOGITS)
    assert torch.equal(generate(), before[0])
    classes = [type(module) for module in model.modules()]
    assert {cls.__name__ for cls in classes if "_patched_by_rope_xp" in vars(cls)} == {
        *("Qwen2VLRotaryEmbedding", "Qwen2VLVisionRotaryEmbedding"),
        *("Qwen2VLAttention", "VisionAttention"),
    }


def test_queries_of_the_last_tokens_alone():
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


@pytest.mark.parametrize(
    "name", ["llama", *map(exhaustive, ("phi3", "gemma3_text", "llama4_text"))]
)
def test_a_trace_of_torch_jit(name):
    model = patch(make(name)).requires_grad_(False)

    def run(tokens, positions):
        return model(tokens, position_ids=positions, use_cache=False).logits

    positions = torch.arange(24)[None]
    # torch calls this deprecated, and warns of each size that becomes a constant.
    with pytest.warns((DeprecationWarning, torch.jit.TracerWarning)):
        traced = torch.jit.trace(run, (TOKENS, positions))
    for other in (positions, 3 * positions, 1_000_000 + positions):
        expected = run(TOKENS, other)
        torch.testing.assert_close(traced(TOKENS, other), expected, rtol=0, atol=LOGITS)


def test_rotary_modules_that_are_not_made_from_a_configuration():
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


def test_rotary_modules_in_which_a_call_fails(monkeypatch):
    model = make("llama")
    kind = type(model.model.rotary_emb)
    original = kind.forward

    def forward(self, x, position_ids):
        return original(self, x, position_ids[:, self.first :])

    monkeypatch.setattr(kind, "forward", forward)
    with pytest.raises(RopeError, match=r"its forward fails for 8 positions on CPU: .*'first'"):
        patch(model)


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
    "one device": lambda lib, model, _: lib.dispatch_model(model, {"": "cpu"}, force_hooks=True),
}


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize("first", [True, False])
def test_hooks(hook, first, accelerate, rotations, tmp_path):
    model = make("llama")
    before = logits(model)
    if not first:
        patch(model)
    HOOKS[hook](accelerate, model, tmp_path)
    after = logits(patch(model) if first else model)
    assert len(rotations) == ROTATIONS
    torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)
    assert torch.equal(logits(unpatch(model)), before)
    assert len(rotations) == ROTATIONS


def test_hooks_that_are_taken_off_again(accelerate, rotations, tmp_path):
    """They leave the method that they called in the module, where it hides the class's."""
    model = make("llama")
    before = logits(model)
    HOOKS["cpu_offload"](accelerate, patch(model), tmp_path)
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert "forward" in vars(model.model.rotary_emb)
    after = logits(model)
    assert len(rotations) == ROTATIONS
    assert torch.equal(logits(unpatch(model)), before)
    assert torch.equal(logits(patch(model)), after)
    assert len(rotations) == 2 * ROTATIONS


def refuse_to_unpatch(model, message):
    classes = [type(module) for module in model.modules()]
    with pytest.raises(RopeError, match=message):
        unpatch(model)
    assert [type(module) for module in model.modules()] == classes


def test_unpatch_refuses_a_forward_that_something_replaced_since():
    model = patch(make("llama"))
    attention = model.model.layers[1].self_attn
    attention.forward = functools.partial(attention.forward)
    refuse_to_unpatch(model, r"cannot unpatch model\.layers\.1\.self_attn .*forward")
    del attention.forward
    unpatch(model)


@pytest.fixture
def mesh():
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield torch.distributed.init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


def test_shards_of_layers(mesh, rotations):
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


def test_shards_of_what_is_patched(mesh):
    """fully_shard makes a class of the module's own, so that its base cannot be changed back."""
    after = patch(make("llama"))
    fully_shard(after.model.layers[0].self_attn, mesh=mesh)
    refuse_to_unpatch(after, r"model\.layers\.0\.self_attn \(FSDPLlamaAttention\)")
    with pytest.raises(RopeError, match="patched already"):
        patch(after)
