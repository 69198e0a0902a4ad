"""No model is patched by half: what patch() refuses, by name, and where tables may get to."""

import functools
import importlib
import inspect
from types import MethodType

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.exhaustive import exhaustive
from support.patched import LOGITS, ROTATIONS, logits
from support.small_models import make, vision_language
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from rope_xp import RopeError
from rope_xp.integrations.transformers import check, patch, unpatch


def refused(model, message):
    classes = [type(module) for module in model.modules()]
    keys = [set(vars(module)) for module in model.modules()]
    with pytest.raises(RopeError, match=message):
        patch(model)
    assert [type(module) for module in model.modules()] == classes
    assert [set(vars(module)) for module in model.modules()] == keys


def replace_forward(module):
    module.forward = functools.partial(module.forward)


@pytest.mark.parametrize(
    ("message", "change"),
    [
        (
            r"model.rotary_emb \(LlamaRotaryEmbedding\).*its buffer holds \[1.00",
            lambda model: model.rotary_emb.inv_freq.mul_(1.001),
        ),
        (
            "gives attention factor 1.0, it has 1.5",
            lambda model: setattr(model.rotary_emb, "attention_scaling", 1.5),
        ),
        (
            r"model\.rotary_emb .*something has replaced its forward",
            lambda model: replace_forward(model.rotary_emb),
        ),
        (
            r"layers\.1\.self_attn .*something has replaced its forward",
            lambda model: replace_forward(model.layers[1].self_attn),
        ),
    ],
)
def test_a_module_that_was_changed_is_refused(message, change):
    model = make("llama")
    change(model.model)
    refused(model, message)


def test_a_function_that_is_no_rotation_is_refused(monkeypatch):
    module = importlib.import_module("transformers.models.llama.modeling_llama")

    def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
        return q * cos.unsqueeze(1), k * sin.unsqueeze(1)

    monkeypatch.setattr(module, "apply_rotary_pos_emb", apply_rotary_pos_emb)
    refused(make("llama"), "apply_rotary_pos_emb: with tables .* not rotate in any known layout")


def test_models_without_rotary_modules_or_weights_are_refused():
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
        refused(transformers.AutoModel.from_config(config), message)
    with torch.device("meta"):
        model = make("llama")
    refused(model, r"LlamaRotaryEmbedding\): it is on the meta device; load its weights first")


@pytest.mark.parametrize("change", [patch, unpatch, check])
def test_a_name_is_a_type_error(change):
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, .*; got str$"):
        change("Qwen/Qwen2-7B")


def test_a_class_that_overrides_what_rotates_is_refused():
    model = make("llama")
    attention = model.model.layers[1].self_attn

    class Mine(type(attention)):
        def forward(self, *inputs, **named):
            return super().forward(*inputs, **named)

    attention.__class__ = Mine
    advice = r"patch\(model, rotation=False\) replaces only the rotary modules"
    refused(model, "Mine overrides forward, which rotates q and k in its base class; " + advice)
    patch(model, rotation=False)


def test_patching_twice_is_refused():
    refused(patch(make("llama")), "patched already; unpatch it first")


def test_a_rule_that_changes_while_it_runs_is_refused():
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = make("llama", rope_parameters=parameters)
    refused(model, r"model.rotary_emb \(LlamaRotaryEmbedding\).*patch\(model, length=n\)")
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
def test_functions_that_the_package_kernels_makes_modules(kind, monkeypatch):
    """Of Qwen2-VL, the function for the text alone is one that kernels may replace."""
    name = kind.rsplit(maxsplit=1)[-1]
    module = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    layer = as_kernels_does(module.apply_rotary_pos_emb)
    inputs = {"input_ids": torch.arange(24)[None]}
    model, inputs = vision_language() if name == "qwen2_vl" else (make(name), inputs)
    before = model(**inputs).logits
    monkeypatch.setattr(module, "apply_rotary_pos_emb", layer)
    if kind.startswith("kernelized"):  # as kernelize(model) does
        layer.forward = MethodType(kernel_of_a_gpu, layer)
    patch(model)
    torch.testing.assert_close(model(**inputs).logits, before, rtol=0, atol=LOGITS)
    if name == "qwen2_vl":
        inputs["pixel_values"] = inputs["pixel_values"].bfloat16()
        assert model.bfloat16()(**inputs).logits.dtype == torch.bfloat16


# --- a model whose second part does something with the tables ------------------------------------

CONFIG = transformers.LlamaConfig(hidden_size=8, num_attention_heads=1)


class Attention(nn.Module):
    def forward(self, x, tables):
        cos, sin = tables
        q, k = apply_rotary_pos_emb(x, x, cos, sin)
        return q + k


class Model(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.rotary_emb = LlamaRotaryEmbedding(CONFIG)
        self.attention = Attention()
        self.part = part

    def forward(self, x):
        tables = self.rotary_emb(x, torch.arange(x.shape[-2])[None])
        return self.part(self.attention(x, tables), tables)


def turn(x, cos, sin):
    return cos * x


def turn_by_both(x, position_embeddings):
    return position_embeddings[0] * x


class Computes(nn.Module):
    def forward(self, x, tables):
        cos, _ = tables
        return x * cos


class Inherits(Computes):
    pass


class ComputesInside(nn.Module):
    @torch.no_grad()
    def forward(self, x, tables):
        return next(x + sin for sin in tables[1:])


class ComputesByComplexNumbers(nn.Module):
    @staticmethod
    def spin(x, freqs_cis):
        return x + freqs_cis[0]


class CallsAFunction(nn.Module):
    def forward(self, x, tables):
        return turn(x, *tables)


class CallsAFunctionOfBoth(nn.Module):
    def forward(self, x, tables):
        return turn_by_both(x, tables)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Computes, r"Computes\.forward: it reads cos"),
        (Inherits, r"Computes\.forward: it reads cos"),
        (ComputesInside, r"ComputesInside\.forward: it reads sin"),
        (ComputesByComplexNumbers, r"ComputesByComplexNumbers\.spin: it reads freqs_cis"),
        (CallsAFunction, r"CallsAFunction\.forward: it calls turn"),
        (CallsAFunctionOfBoth, r"CallsAFunctionOfBoth\.forward: it calls turn_by_both"),
    ],
)
def test_a_class_that_reads_tables_and_calls_no_function_that_rotates_is_refused(part, message):
    """The rotary modules alone are patched, and their tables have the dtype that code expects."""
    reason = r", and no function that is replaced rotates there; .*rotation=False"
    model, x = Model(part()), torch.randn(1, 3, 5, 8, dtype=torch.bfloat16)
    refused(model, message + reason)
    if part not in (Computes, CallsAFunction):
        return
    before = model(x)
    assert type(patch(model, rotation=False).part) is part
    # A table may differ by one rounding, and numbers are below 8.
    torch.testing.assert_close(model(x), before, rtol=0, atol=8 * torch.finfo(x.dtype).eps)


class HandsOn(nn.Module):
    """Passes tables on and does not read them, as models do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Attention(), CallsByBoth()])

    def forward(self, x, position_embeddings):
        for layer in self.layers:
            x = layer(x, position_embeddings)
        return x


class CallsByBoth(nn.Module):
    @torch.no_grad()
    def forward(self, x, position_embeddings):
        return apply_rotary_pos_emb(x, x, *position_embeddings)[0]


def test_tables_that_are_handed_on_are_no_obstacle():
    model, x = Model(HandsOn()), torch.randn(1, 3, 5, 8, dtype=torch.bfloat16)
    before = model(x)
    # Eight roundings of numbers below 8, one after another; the dtype is compared too.
    close = 64 * torch.finfo(x.dtype).eps
    torch.testing.assert_close(patch(model)(x), before, rtol=0, atol=close)


# --- functions that are replaced after a model was patched ---------------------------------------


@pytest.mark.parametrize(
    ("dtype", "compiled"),
    [(torch.bfloat16, True), exhaustive(torch.float32, False), exhaustive(torch.float32, True)],
)
def test_a_function_that_rotates_and_is_replaced_later_is_called_in_the_dtype_of_q(
    dtype, compiled, rotations, monkeypatch
):
    model = patch(make("llama").to(dtype))
    before = logits(model)
    assert len(rotations) == ROTATIONS
    module = importlib.import_module("transformers.models.llama.modeling_llama")
    rotate = module.apply_rotary_pos_emb
    dtypes = set()

    def turned_twice(q, k, cos, sin, unsqueeze_dim=1):
        dtypes.update({q.dtype, k.dtype, cos.dtype, sin.dtype})
        q, k = rotate(q, k, cos, sin, unsqueeze_dim)
        return rotate(q, k, cos, sin, unsqueeze_dim)

    with monkeypatch.context() as later:
        later.setattr(module, "apply_rotary_pos_emb", turned_twice)
        torch._dynamo.reset()
        run = torch.compile(model, backend="eager") if compiled else model
        assert (logits(run) - before).abs().max() > 0.02
        assert dtypes == {dtype}
        assert len(rotations) == ROTATIONS
    assert torch.equal(logits(model), before)
    assert len(rotations) == 2 * ROTATIONS


def test_a_model_that_is_patched_after_the_function_was_replaced(monkeypatch):
    """Each patch replaces the function that its module holds at the time."""
    first, second = make("llama"), make("llama")
    before = logits(patch(first))
    module = importlib.import_module("transformers.models.llama.modeling_llama")
    other = importlib.import_module("transformers.models.deepseek_v3.modeling_deepseek_v3")
    with monkeypatch.context() as later:
        later.setattr(module, "apply_rotary_pos_emb", other.apply_rotary_pos_emb_interleave)
        interleaved = logits(second)
        torch.testing.assert_close(logits(patch(second)), interleaved, rtol=0, atol=LOGITS)
        assert (interleaved - before).abs().max() > 0.02
    assert torch.equal(logits(first), before)
    # Its function is no longer there: the one that is, rotates.
    torch.testing.assert_close(logits(second), before, rtol=0, atol=LOGITS)
    unpatch(second)
