"""No model is patched by half: what patch() refuses, by name, and where tables may get to."""

import functools
import inspect
from types import MethodType

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.cases import slow
from support.patched import LOGITS, is_ours, logits, modeling, refuse
from support.small_models import make, vision_language
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from rope_xp.integrations.transformers import check, patch, unpatch

DYNAMIC = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}


def replace_forward(module):
    module.forward = functools.partial(module.forward)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (r"model.rotary_emb \(LlamaRotaryEmbedding\).*its buffer holds \[1.00",
         lambda model: model.rotary_emb.inv_freq.mul_(1.001)),
        ("gives attention factor 1.0, it has 1.5",
         lambda model: setattr(model.rotary_emb, "attention_scaling", 1.5)),
        (r"model\.rotary_emb .*something has replaced its forward",
         lambda model: replace_forward(model.rotary_emb)),
        (r"layers\.1\.self_attn .*something has replaced its forward",
         lambda model: replace_forward(model.layers[1].self_attn)),
        ("patched already; unpatch it first", patch),
    ],
)  # fmt: skip
def test_patch_refuses_a_module_that_was_changed(message, change):
    model = make("llama")
    change(model.model)
    refuse(patch, model, message)


def test_patch_refuses_a_function_that_is_no_rotation(monkeypatch):
    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        return q * cos.unsqueeze(1), k * sin.unsqueeze(1)

    monkeypatch.setattr(modeling("llama"), "apply_rotary_pos_emb", apply_rotary_pos_emb)
    message = "apply_rotary_pos_emb: with tables .* not rotate in any known layout"
    refuse(patch, make("llama"), message)


def test_patch_refuses_models_without_rotary_modules_or_weights():
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
    for model_type, message in (
        ("dinov3_vit", "its forward takes no position_ids"),
        ("gpt2", "GPT2Model: none of its modules computes angles .* not rotary"),
        ("bert", "BertModel: none .* positions are not rotary, as in BERT"),
        ("gptj", "GPTJAttention calls apply_rotary_pos_emb, but reads cos and sin from its own"),
        ("codegen", "CodeGenAttention calls apply_rotary_pos_emb, but reads"),
        ("roformer", "RoFormerSelfAttention calls apply_rotary_position_embeddings, but reads"),
    ):
        more = {"rotary_dim": 8} if model_type in ("gptj", "codegen") else {}
        config = transformers.AutoConfig.for_model(model_type, **sizes, **more)
        refuse(patch, transformers.AutoModel.from_config(config), message)
    with torch.device("meta"):
        model = make("llama")
    refuse(patch, model, r"LlamaRotaryEmbedding\): it is on the meta device; load its weights")


@pytest.mark.parametrize("change", [patch, unpatch, check])
def test_name_in_place_of_a_model_is_a_type_error(change):
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, .*; got str$"):
        change("Qwen/Qwen2-7B")


def test_patch_refuses_a_class_that_overrides_what_rotates():
    model = make("llama")
    attention = model.model.layers[1].self_attn

    class Mine(type(attention)):
        def forward(self, *inputs, **named):
            return super().forward(*inputs, **named)

    attention.__class__ = Mine
    advice = r"patch\(model, rotation=False\) replaces only the rotary modules"
    message = "Mine overrides forward, which rotates q and k in its base class; " + advice
    refuse(patch, model, message)
    patch(model, rotation=False)


def test_patch_without_a_length_refuses_a_rule_that_changes_while_it_runs():
    model = make("llama", rope_parameters=DYNAMIC)
    message = r"model.rotary_emb \(LlamaRotaryEmbedding\).*patch\(model, length=n\)"
    refuse(patch, model, message)
    patch(model, length=512)


def as_kernels_does(function):
    """Return what a function is where transformers finds the package kernels: a module.

    transformers 5.23 asks for kernels 0.18.2, which is not to be had here, so its decorator is
    simulated: it gives the module's forward the signature of the function, and no name.
    """

    class Func(nn.Module):
        def forward(self, *arguments, **named):
            return function(*arguments, **named)

    signature = inspect.signature(function)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [me, *signature.parameters.values()]
    Func.forward.__signature__ = signature.replace(parameters=parameters)
    return Func()


def kernel_of_a_gpu(self, *arguments, **named):
    raise RuntimeError("no GPU")


@pytest.mark.parametrize("kind", ["llama", "kernelized llama", "qwen2_vl"])
def test_patch_takes_functions_that_the_package_kernels_makes_modules(kind, monkeypatch):
    """Of Qwen2-VL, the function for the text alone is one that kernels may replace."""
    name = kind.rsplit(maxsplit=1)[-1]
    layer = as_kernels_does(modeling(name).apply_rotary_pos_emb)
    inputs = {"input_ids": torch.arange(24)[None]}
    model, inputs = vision_language() if name == "qwen2_vl" else (make(name), inputs)
    before = model(**inputs).logits
    monkeypatch.setattr(modeling(name), "apply_rotary_pos_emb", layer)
    if kind.startswith("kernelized"):  # as kernelize(model) does
        layer.forward = MethodType(kernel_of_a_gpu, layer)
    patch(model)
    torch.testing.assert_close(model(**inputs).logits, before, rtol=0, atol=LOGITS)
    if name == "qwen2_vl":
        inputs["pixel_values"] = inputs["pixel_values"].bfloat16()
        assert model.bfloat16()(**inputs).logits.dtype == torch.bfloat16


# --- a model whose second part does something with the tables ------------------------------------


class Attention(nn.Module):
    def forward(self, x, tables):
        cos, sin = tables
        q, k = apply_rotary_pos_emb(x, x, cos, sin)
        return q + k


class Model(nn.Module):
    def __init__(self, part):
        super().__init__()
        config = transformers.LlamaConfig(hidden_size=8, num_attention_heads=1)
        self.rotary_emb, self.attention = LlamaRotaryEmbedding(config), Attention()
        self.part = part

    def forward(self, x):
        tables = self.rotary_emb(x, torch.arange(x.shape[-2])[None])
        return self.part(self.attention(x, tables), tables)


def turn(x, cos, sin):
    return cos * x


class Computes(nn.Module):
    def forward(self, x, tables):
        cos, _ = tables
        return x * cos


class CallsAFunction(nn.Module):
    def forward(self, x, tables):
        return turn(x, *tables)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Computes, r"Computes\.forward: it reads cos"),
        (CallsAFunction, r"CallsAFunction\.forward: it calls turn"),
    ],
)
def test_patch_refuses_a_class_that_reads_tables_and_calls_nothing_that_rotates(part, message):
    """The rotary modules alone are patched, and their tables have the dtype that code expects."""
    reason = r", and no function that is replaced rotates there; .*rotation=False"
    model, x = Model(part()), torch.randn(1, 3, 5, 8, dtype=torch.bfloat16)
    refuse(patch, model, message + reason)
    before = model(x)
    assert type(patch(model, rotation=False).part) is part
    # A table may differ by one rounding, and numbers are below 8.
    torch.testing.assert_close(model(x), before, rtol=0, atol=8 * torch.finfo(x.dtype).eps)


class CallsByBoth(nn.Module):
    @torch.no_grad()
    def forward(self, x, position_embeddings):
        return apply_rotary_pos_emb(x, x, *position_embeddings)[0]


class HandsOn(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(), CallsByBoth()])

    def forward(self, x, position_embeddings):
        for layer in self.layers:
            x = layer(x, position_embeddings)
        return x


def test_patch_takes_a_class_that_hands_tables_on_and_does_not_read_them():
    model, x = Model(HandsOn()), torch.randn(1, 3, 5, 8, dtype=torch.bfloat16)
    before = model(x)
    # Eight roundings of numbers below 8, one after another; the dtype is compared too.
    close = 64 * torch.finfo(x.dtype).eps
    torch.testing.assert_close(patch(model)(x), before, rtol=0, atol=close)


# --- functions that are replaced after a model was patched ---------------------------------------


@pytest.mark.parametrize(
    ("dtype", "compiled"), [(torch.bfloat16, False), slow(torch.bfloat16, True)]
)
def test_patched_model_calls_a_rotation_that_is_replaced_later_in_the_dtype_of_q(
    dtype, compiled, monkeypatch
):
    model = patch(make("llama").to(dtype))
    before, dtypes, rotate = logits(model), set(), modeling("llama").apply_rotary_pos_emb

    def turned_twice(q, k, cos, sin, unsqueeze_dim=1):
        dtypes.update({q.dtype, k.dtype, cos.dtype, sin.dtype})
        q, k = rotate(q, k, cos, sin, unsqueeze_dim)
        return rotate(q, k, cos, sin, unsqueeze_dim)

    with monkeypatch.context() as later:
        later.setattr(modeling("llama"), "apply_rotary_pos_emb", turned_twice)
        torch._dynamo.reset()
        run = torch.compile(model, backend="eager") if compiled else model
        assert (logits(run) - before).abs().max() > 0.02
        assert dtypes == {dtype}
        assert not is_ours(logits, model)
    assert torch.equal(logits(model), before)
    assert is_ours(logits, model)


def test_patch_replaces_the_function_that_a_module_holds_at_the_time(monkeypatch):
    first, second = make("llama"), make("llama")
    before = logits(patch(first))
    interleaved = modeling("deepseek_v3").apply_rotary_pos_emb_interleave
    with monkeypatch.context() as later:
        later.setattr(modeling("llama"), "apply_rotary_pos_emb", interleaved)
        theirs = logits(second)
        torch.testing.assert_close(logits(patch(second)), theirs, rtol=0, atol=LOGITS)
        assert (theirs - before).abs().max() > 0.02
    assert torch.equal(logits(first), before)
    # Its function is no longer there: the one that is, rotates.
    torch.testing.assert_close(logits(second), before, rtol=0, atol=LOGITS)
    unpatch(second)
