"""Compare ``rope_xp.plan`` with what models of the installed transformers do to q and k.

A model runs on the meta device with few layers: an attention function of ours records heads and
scales, hooks record norms, and the model's functions that rotate record what they are called with.
"""

import contextlib
import copy
import functools
import importlib
import inspect
import math
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from torch import _C

import rope_xp
from rope_xp import RopeError
from rope_xp.integrations import _methods
from support import census

torch, transformers = census.torch, census.transformers
masking = importlib.import_module("transformers.masking_utils")
modeling = importlib.import_module("transformers.modeling_utils")
STRICT = importlib.import_module("huggingface_hub.errors").StrictDataclassError

LAYERS, TOKENS = 8, 6
# transformers computes powers, quotients and products in float32: a few units of 6e-8.
FREQUENCIES = 1e-6
NORM = re.compile(r"(q|k|qk|query|key)_(layer)?norm|q_b_norm|kv_norm|k_rope_only_layernorm")
EXPERTS = re.compile("mlp|block_sparse_moe|feed_forward|moe|experts")
ERRORS = (
    *(ArithmeticError, AttributeError, ImportError, LookupError),
    *(RuntimeError, TypeError, ValueError, STRICT),
)

VARIANTS = {
    "cohere": [{"use_qk_norm": True}],
    "glm4_moe": [{"use_qk_norm": True, "head_dim": 64}],
    "molmo2_text": [{"qk_norm_type": "olmo"}],
    "phi": [{"qk_layernorm": True}],
    "gemma3_text": [{"query_pre_attn_scalar": 100}],
    "granite": [{"attention_multiplier": 0.25}],
    "llama4_text": [{"no_rope_layers": [1, 0] * 4, "num_hidden_layers": 8, "use_qk_norm": False}],
    "smollm3": [{"no_rope_layers": [0, 1] * 4, "num_hidden_layers": 8}],
    "granitemoehybrid": [
        {"layer_types": ["linear_attention", "full_attention"] * 4, "num_hidden_layers": 8}
    ],
    "bamba": [{"attn_layer_indices": [2, 5]}],
    "mimo_v2_flash": [{"num_key_value_heads": 8}],
    "llama": [{"num_key_value_heads": 2, "head_dim": 64}],
    "glm_moe_dsa": [{"indexer_types": ["full", "shared"] * 4, "num_hidden_layers": 8}],
}
"""Further configurations, whose keys change the plan."""


_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1}
MENDED = {
    "dots1": _EXPERTS,
    "esm": {"vocab_size": 64, "pad_token_id": 0},
    **{name: {"head_dim": 64} for name in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral")},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * 12},
    "glm4v_text": {"head_dim": 64, "hidden_size": 2048},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "nemotron": {"num_key_value_heads": 8},
    "qwen4_exp_text": {
        **dict.fromkeys(("indexer_compress_ratio", "indexer_n_heads"), 2),
        **dict.fromkeys(("indexer_head_dim", "head_dim"), 64),
        "indexer_budget": 8,
        "indexer_kv_heads": 1,
    },
    "step3p5": {"sliding_window": 512},
}
"""Default configurations of which no model can be built, and what makes one."""


PRESCALED = ("esm", "openai_privacy_filter")
"""Model types that scale q, or q and k, before they call attention with a scale of 1."""
LEFT = ("minimax_m3_vl_text", "codegen", "gptj")
"""Model types whose frequencies are not compared, see support/census.py."""


def start_layer():
    """Return what one layer did, which is nothing yet.

    Tables are those of a module and a layer type; norms have a module, a shape and whether they
    stand after the rotation. Of what is rotated, in an indexer too, the shapes are listed.
    """
    return SimpleNamespace(tables=[], rotated=[], norms=[], indexed=[])


def list_classes(directory):
    """Yield the models in a directory, none with a head."""
    for path in sorted((census.MODELS / directory).glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{directory}.{path.stem}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            is_own = hasattr(kind, "config_class") and kind.__module__ == module.__name__
            if is_own and not re.search("PreTr|For[A-Z]", name):
                yield kind


def build_model(kind, **more):
    """Return a model of few layers on the meta device; None if it cannot be built so."""
    for layers in (LAYERS, None):
        with contextlib.suppress(*ERRORS):
            config = kind.config_class(
                **census.MENDED.get(kind.config_class.__name__, {})
                | MENDED.get(kind.config_class.model_type, {})
                | more
            )
            for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
                if layers is not None:
                    shorten(part)
            with torch.device("meta"):
                model = kind._from_config(config, attn_implementation="record").eval()
            for name, _ in list(model.named_modules()):
                if EXPERTS.fullmatch(name.split(".")[-1]):
                    with contextlib.suppress(*ERRORS):
                        model.set_submodule(name, Identity())
            return model
    return None


def shorten(config):
    for key in ("num_hidden_layers", "num_layers", "depth", "encoder_layers", "decoder_layers"):
        if isinstance(length := getattr(config, key, None), int):
            setattr(config, key, min(length, LAYERS))
    for key in ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type"):
        if isinstance(getattr(config, key, None), list):
            with contextlib.suppress(AttributeError):  # of some it follows from other keys
                setattr(config, key, getattr(config, key)[:LAYERS])


class Pair(torch.Tensor):
    """A tensor that may be unpacked, as some experts return their scores too."""

    __torch_function__ = _C._disabled_torch_function_impl

    def __iter__(self):
        return iter((self, None))


class Identity(torch.nn.Module):
    """In place of experts, which choose by values."""

    def forward(self, x, *_, **__):
        return x.as_subclass(Pair)


def record(model):
    """Return what each layer with attention does in a forward pass."""
    layers, pending, current = {}, start_layer(), 0
    labels, inside = {}, []  # with the tensors, so that none has the id of another

    def attend(module, q, k, v, *_, **options):
        pending.heads, pending.kv_heads, pending.head_dim = q.shape[1], k.shape[1], q.shape[-1]
        pending.scale = options.get("scaling") or getattr(module, "scaling", None) or 0.0
        number = getattr(module, "layer_idx", None)
        layers.setdefault(number if number is not None and number >= 0 else current, pending)
        enter_layer()
        return v.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[-1])), None

    def see_norm(module, arguments, _):
        if not inside:
            pending.norms.append((module, tuple(arguments[0].shape), bool(pending.rotated)))

    def see_tables(module, arguments, named, output):
        bound = inspect.signature(module.forward).bind(*arguments, **named).arguments
        for table in output if isinstance(output, tuple) else (output,):
            labels[id(table)] = (module, bound.get("layer_type")), table

    def enter_layer(number=None):
        nonlocal pending, current
        pending, current = start_layer(), current if number is None else number

    def wrap(function):
        def rotate(*arguments, **named):
            tensors = [x for x in (*arguments, *named.values()) if isinstance(x, torch.Tensor)]
            shapes = [tuple(x.shape) for x in tensors if id(x) not in labels and x.ndim == 4]
            (pending.indexed if inside else pending.rotated).extend(shapes)
            if not inside:
                pending.tables += [labels[id(x)][0] for x in tensors if id(x) in labels]
            return function(*arguments, **named)

        return rotate

    modeling.ALL_ATTENTION_FUNCTIONS.register("record", attend)
    for name, module in model.named_modules():
        if NORM.fullmatch(name.split(".")[-1]):
            module.register_forward_hook(see_norm)
        elif match := re.search(r"(^|\.)layers?\.(\d+)$", name):
            enter = functools.partial(enter_layer, int(match[2]))
            module.register_forward_pre_hook(lambda *_, enter=enter: enter())
        elif "Indexer" in type(module).__name__ or "Compressor" in type(module).__name__:
            module.register_forward_pre_hook(lambda *_: inside.append(None))
            module.register_forward_hook(lambda *_: inside.clear())
        elif any(key.endswith("inv_freq") for key, _ in module.named_buffers(recurse=False)):
            module.register_forward_hook(see_tables, with_kwargs=True)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad(), torch.device("meta"):
        patch.setattr(masking, "find_packed_sequence_indices", lambda _: None)  # it reads values
        scope = vars(sys.modules[type(model).__module__])
        for name, value in list(scope.items()):
            if _methods._NAME.fullmatch(name) and callable(value) and not name.startswith("_"):
                patch.setitem(scope, name, wrap(value))
        model(input_ids=torch.zeros((1, TOKENS), dtype=torch.long))
    return layers


def _mask(*_, **__):
    return torch.ones((1, 1, TOKENS, TOKENS), dtype=torch.bool, device="meta")


masking.ALL_MASK_ATTENTION_FUNCTIONS.register("record", _mask)
modeling.ALL_ATTENTION_FUNCTIONS.register("record", _mask)  # models are built for it


def assert_plan(layers, recorded, config):
    """Assert that a plan is what a model of the configuration did."""
    assert getattr(config, "num_hidden_layers", None) in (None, len(layers))
    attending = [i for i, layer in enumerate(layers) if layer.heads is not None]
    assert attending == sorted(recorded), (attending, sorted(recorded))
    for i in attending:
        _assert_layer(layers[i], recorded[i], config.model_type)


def _assert_layer(plan, seen, model_type):
    is_latent = any(shape[1] == 1 for shape in seen.rotated)  # whose k is expanded afterwards
    sizes = seen.heads, 1 if is_latent else seen.kv_heads, seen.head_dim
    assert (plan.heads, plan.kv_heads, plan.head_dim) == sizes, (plan, sizes)
    if seen.scale and model_type not in PRESCALED:
        assert math.isclose(plan.softmax_scale, seen.scale, rel_tol=1e-6), (plan, seen.scale)
    assert (plan.rope is not None) == bool(seen.rotated), (plan, seen.rotated)
    if plan.rope is not None and model_type not in LEFT:
        _assert_rope(plan, seen)
    _assert_norms(plan, seen)
    assert plan.indexer is not None or not seen.indexed, seen.indexed
    if plan.indexer is not None:
        widths = {plan.indexer.head_dim, plan.indexer.rope.rotary_dim}
        assert widths & {shape[-1] for shape in seen.indexed}, (plan, seen.indexed)


def _assert_rope(plan, seen):
    """Compare the rope with the buffers of the module whose tables the layer used."""
    (module, label), *others = seen.tables
    assert all(other == (module, label) for other in others), seen.tables
    buffers = census.list_buffers(type(module)(module.config))
    theirs = buffers.get(label or "", buffers.get("")).double().numpy()
    ours = plan.rope.for_length(1).frequencies(plan.rope.rotary_dim or plan.head_dim)
    if plan.rope.position_axes is not None:  # some modules have each component's pairs together
        theirs, ours = np.sort(theirs), np.sort(ours)
    np.testing.assert_allclose(ours, theirs, rtol=FREQUENCIES, atol=0)


def _assert_norms(plan, seen):
    norm = plan.norm
    assert (norm is not None) == bool(seen.norms), (norm, seen.norms)
    if norm is None:
        return
    if len(seen.rotated) > 1:  # else k is of another layer
        assert len(seen.norms) == len(norm.arrays), (norm, seen.norms)
    widths = {
        "head": [plan.head_dim],
        "all heads": [n * plan.head_dim for n in (plan.heads, plan.kv_heads)],
        "slice": [plan.rope and plan.rope.rotary_dim],
    }[norm.over]
    for name, (module, shape, after) in zip(norm.arrays, seen.norms, strict=False):
        assert shape[-1] in widths, (norm, shape)
        assert after == norm.after_rotation or name != "q", norm
        if not hasattr(module, "norms"):  # of StableLM, a module for each head
            _assert_norm(norm, name, module, shape)


def _assert_norm(norm, name, module, shape):
    """Compare a norm with the formula of its plan, with random weights and values."""
    module = copy.deepcopy(module).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    parameters = dict(module.named_parameters())
    for parameter in parameters.values():
        parameter.data = torch.rand(parameter.shape, generator=generator) + 0.5
    x = torch.randn(shape, generator=generator) * 3e-3  # small enough for eps to matter
    with torch.no_grad():
        theirs = module(x).double()
    y = x.double()
    y = y - y.mean(-1, keepdim=True) if norm.kind == "layer" else y
    y = y / (y.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    weight, bias = parameters.get("weight"), parameters.get("bias")
    assert (name in norm.weighted) == (weight is not None), (norm, name)
    if weight is not None:
        if weight.ndim == 2 and y.ndim == 4 and y.shape[1] == weight.shape[0] != y.shape[2]:
            weight = weight[:, None]
        y = y * (weight.double() + norm.offset)
    y = y if bias is None else y + bias.double()
    torch.testing.assert_close(y, theirs, rtol=0, atol=1e-5 * theirs.abs().max().item())


PARTS = re.compile("text|thinker|talker|decoder")
NO_PLAN = re.compile(
    "no rotary embedding|plans are of language models|it rotates v|by the negative angle"
    "|is not known|frequencies are learned|no plan of model_type '(dory|zaya)'|rotates two slices"
    "|angles are products|model_type is missing|different components|must sum to"
    # Of encoders of sound, whose layers have other keys, and of configurations that were cut short.
    "|num_hidden_layers is missing|head_dim is missing|num_attention_heads is missing"
    "|transformers cannot read"
)


def list_equal(directory):
    """Return the models of text whose plan is what they do; all others have a reason."""
    equal = []
    for kind in list_classes(directory):
        parts = " ".join(kind.config_class.sub_configs)
        if not kind.__name__.endswith(("Model", "Decoder", "Encoder")) or PARTS.search(parts):
            continue
        for more in ({}, *VARIANTS.get(kind.config_class.model_type, [])):
            if (model := build_model(kind, **more)) is None:
                continue
            try:
                layers, recorded = rope_xp.plan(model.config), record(model)
            except RopeError as error:
                if not NO_PLAN.search(str(error)):
                    raise
            except (*ERRORS, NotImplementedError):
                continue  # it does not run on the meta device, or without images
            else:
                if recorded:  # else its attention calls none of transformers' functions
                    assert_plan(layers, recorded, model.config)
                    equal.append(kind.__name__)
    return equal
