"""Compare ``rope_xp.plan`` with what models of the installed transformers do to q and k.

A model runs on the meta device with few layers: an attention function of ours records heads and
scales, hooks record norms, and the model's functions that rotate record what they are called with.
"""

import contextlib
import copy
import functools
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import rope_xp
from rope_xp import LayerPlan, RopeError
from rope_xp.hf import NormPlan
from rope_xp.integrations import _methods
from support import census

torch, transformers = census.torch, census.transformers
masking: Any = importlib.import_module("transformers.masking_utils")
modeling: Any = importlib.import_module("transformers.modeling_utils")

LAYERS, TOKENS = 8, 6
# transformers computes powers, quotients and products in float32: a few units of 6e-8.
FREQUENCIES = 1e-6
NORM = re.compile(r"(q|k|qk|query|key)_(layer)?norm|q_b_norm|kv_norm|k_rope_only_layernorm")
STRICT: Any = importlib.import_module("huggingface_hub.errors").StrictDataclassError
EXPERTS = re.compile("mlp|block_sparse_moe|feed_forward|moe|experts")
ERRORS: Any = (
    *(ArithmeticError, AttributeError, ImportError, LookupError),
    *(RuntimeError, TypeError, ValueError, STRICT),
)

VARIANTS: dict[str, list[dict[str, Any]]] = {
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
MENDED: dict[str, dict[str, Any]] = {
    "dots1": _EXPERTS,
    "esm": {"vocab_size": 64, "pad_token_id": 0},
    **{name: {"head_dim": 64} for name in ("hunyuan_v1_dense", "hunyuan_v1_moe", "ministral")},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense"] * 12},
    "glm4v_text": {"head_dim": 64, "hidden_size": 2048},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "nemotron": {"num_key_value_heads": 8},
    "qwen4_exp_text": {
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 64,
        "head_dim": 64,
    },
    "step3p5": {"sliding_window": 512},
}
"""Default configurations of which no model can be built, and what makes one."""


PRESCALED = ("esm", "openai_privacy_filter")
"""Model types that scale q, or q and k, before they call attention with a scale of 1."""
LEFT = ("minimax_m3_vl_text",)
"""Model types whose code does not read their rotary_dim, see support/census.py."""


@dataclass
class Recorded:
    """What one layer did."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    tables: list[tuple[Any, str | None]] = field(default_factory=list)  # by module and layer type
    rotated: list[tuple[int, ...]] = field(default_factory=list)  # shapes
    norms: list[tuple[Any, tuple[int, ...], bool]] = field(default_factory=list)  # after rotation?
    indexed: list[tuple[int, ...]] = field(default_factory=list)  # shapes that an indexer rotates


def list_classes(directory: str) -> Iterator[type]:
    """Yield the models of text in a directory, none with a head."""
    for path in sorted((census.MODELS / directory).glob("modeling_*.py")):
        module = importlib.import_module(f"transformers.models.{directory}.{path.stem}")
        for name, kind in inspect.getmembers(module, inspect.isclass):
            config = getattr(kind, "config_class", None)
            is_own = config is not None and kind.__module__ == module.__name__
            if is_own and name.endswith(("Model", "Decoder", "Encoder")) and "PreTr" not in name:
                parts = " ".join(config.sub_configs)
                if not re.search("text|thinker|talker|decoder", parts):
                    yield kind


def build_model(kind: Any, **more: Any) -> Any:
    """Return a model of few layers on the meta device; None if it cannot be built so."""
    for layers in (LAYERS, None):
        with contextlib.suppress(*ERRORS):
            config = kind.config_class(
                **census.MENDED.get(kind.config_class.__name__, {})
                | MENDED.get(kind.config_class.model_type, {})
                | more
            )
            if layers is not None:
                shorten(config)
            with torch.device("meta"):
                model = kind._from_config(config, attn_implementation="record").eval()
            for name, _ in list(model.named_modules()):
                if EXPERTS.fullmatch(name.split(".")[-1]):
                    with contextlib.suppress(*ERRORS):
                        model.set_submodule(name, Identity())
            return model
    return None


def shorten(config: Any) -> None:
    for key in ("num_hidden_layers", "num_layers", "depth", "encoder_layers", "decoder_layers"):
        if isinstance(length := getattr(config, key, None), int):
            setattr(config, key, min(length, LAYERS))
    for key in ("layer_types", "mlp_layer_types", "no_rope_layers", "layers_block_type"):
        if isinstance(getattr(config, key, None), list):
            with contextlib.suppress(AttributeError):  # of some it follows from other keys
                setattr(config, key, getattr(config, key)[:LAYERS])


class Identity(torch.nn.Module):  # type: ignore[misc]  # torch may be absent
    """In place of experts, which choose by values."""

    as_pair = False

    def forward(self, x: Any, *_: Any, **__: Any) -> Any:
        return (x, None) if self.as_pair else x


def record(model: Any) -> dict[int, Recorded]:
    """Return what each layer with attention does in a forward pass."""
    try:
        return _record(model)
    except ValueError as error:
        if "unpack" not in str(error):
            raise
    for module in model.modules():
        if isinstance(module, Identity):
            module.as_pair = True
    return _record(model)


def _record(model: Any) -> dict[int, Recorded]:
    layers: dict[int, Recorded] = {}
    pending = Recorded(0, 0, 0, 0.0)
    labels: dict[int, tuple[Any, str | None]] = {}
    current = 0
    kept, inside = [], []  # tensors, so that none has the id of another; indexers that run

    def attend(module: Any, q: Any, k: Any, v: Any, *_: Any, **options: Any) -> Any:
        pending.heads, pending.kv_heads, pending.head_dim = q.shape[1], k.shape[1], q.shape[-1]
        pending.scale = options.get("scaling") or getattr(module, "scaling", None) or 0.0
        number = getattr(module, "layer_idx", None)
        layers.setdefault(number if number is not None and number >= 0 else current, pending)
        enter_layer()
        return v.new_empty((q.shape[0], q.shape[2], q.shape[1], v.shape[-1])), None

    def see_norm(module: Any, arguments: Any, _: Any) -> None:
        if not inside:
            shape = tuple(arguments[0].shape)
            pending.norms.append((module, shape, bool(pending.rotated)))

    def see_tables(module: Any, arguments: Any, named: Any, output: Any) -> None:
        bound = inspect.signature(module.forward).bind(*arguments, **named).arguments
        for table in output if isinstance(output, tuple) else (output,):
            labels[id(table)] = module, bound.get("layer_type")
            kept.append(table)

    def enter_layer(number: int | None = None) -> None:
        nonlocal pending, current
        pending, current = Recorded(0, 0, 0, 0.0), current if number is None else number

    def wrap(function: Any) -> Any:
        def rotate(*arguments: Any, **named: Any) -> Any:
            tensors = [x for x in (*arguments, *named.values()) if isinstance(x, torch.Tensor)]
            shapes = [tuple(x.shape) for x in tensors if id(x) not in labels and x.ndim == 4]
            (pending.indexed if inside else pending.rotated).extend(shapes)
            if not inside:
                pending.tables += [labels[id(x)] for x in tensors if id(x) in labels]
            return function(*arguments, **named)

        return rotate

    with contextlib.ExitStack() as stack:
        modeling.ALL_ATTENTION_FUNCTIONS.register("record", attend)
        stack.callback(setattr, masking, "find_packed_sequence_indices", _PACKED)
        masking.find_packed_sequence_indices = lambda _: None  # it would read values
        for name, module in model.named_modules():
            hooks = []
            if NORM.fullmatch(name.split(".")[-1]):
                hooks = [module.register_forward_hook(see_norm)]
            elif match := re.search(r"(^|\.)layers?\.(\d+)$", name):
                enter = functools.partial(enter_layer, int(match[2]))
                hooks = [module.register_forward_pre_hook(lambda *_, enter=enter: enter())]
            elif "Indexer" in type(module).__name__ or "Compressor" in type(module).__name__:
                hooks = [
                    module.register_forward_pre_hook(lambda *_: inside.append(None)),
                    module.register_forward_hook(lambda *_: inside.clear()),
                ]
            elif any(key.endswith("inv_freq") for key, _ in module.named_buffers(recurse=False)):
                hooks = [module.register_forward_hook(see_tables, with_kwargs=True)]
            for hook in hooks:
                stack.callback(hook.remove)
        scope = vars(sys.modules[type(model).__module__])
        for name, value in list(scope.items()):
            if _methods._NAME.fullmatch(name) and callable(value) and not name.startswith("_"):
                stack.callback(scope.__setitem__, name, value)
                scope[name] = wrap(value)
        with torch.no_grad(), torch.device("meta"):
            model(input_ids=torch.zeros((1, TOKENS), dtype=torch.long))
    return layers


def _mask(*_: Any, **__: Any) -> Any:
    return torch.ones((1, 1, TOKENS, TOKENS), dtype=torch.bool, device="meta")


_PACKED = masking.find_packed_sequence_indices
masking.ALL_MASK_ATTENTION_FUNCTIONS.register("record", _mask)
modeling.ALL_ATTENTION_FUNCTIONS.register("record", _mask)  # models are built for it


def find_differences(model: Any) -> list[str]:
    """Return how the plan of a model's configuration differs from what the model does."""
    layers, recorded = rope_xp.plan(model.config), record(model)
    if not recorded:
        raise RuntimeError("its attention calls none of transformers' functions")
    problems = []
    count = getattr(model.config, "num_hidden_layers", None)
    if count is not None and len(layers) != count:
        problems.append(f"{len(layers)} layers for {count}")
    attending = {i for i, layer in enumerate(layers) if layer.heads is not None}
    if attending != set(recorded):
        problems.append(f"attention in layers {sorted(attending)} for {sorted(recorded)}")
    for i in sorted(attending & set(recorded)):
        problems += [f"layer {i}: {text}" for text in _compare_layer(layers[i], recorded[i], model)]
    return problems


def _compare_layer(plan: LayerPlan, seen: Recorded, model: Any) -> Iterator[str]:
    expanded = plan.kv_heads == 1 and any(shape[1] == 1 for shape in seen.rotated)  # latent
    for name, ours, theirs in (
        ("heads", plan.heads, seen.heads),
        ("kv_heads", plan.kv_heads, 1 if expanded else seen.kv_heads),
        ("head_dim", plan.head_dim, seen.head_dim),
    ):
        if ours != theirs:
            yield f"{name} {ours} for {theirs}"
    prescaled = model.config.model_type in PRESCALED
    if seen.scale and not prescaled and abs((plan.softmax_scale or 0) / seen.scale - 1) > 1e-6:
        yield f"softmax_scale {plan.softmax_scale} for {seen.scale}"
    if (plan.rope is not None) != bool(seen.rotated):
        yield f"rope {plan.rope} for rotations of {seen.rotated}"
    elif plan.rope is not None and model.config.model_type not in LEFT:
        yield from _compare_rope(plan, seen, model)
    yield from _compare_norms(plan, seen)
    if plan.indexer is not None or seen.indexed:
        has = {shape[-1] for shape in seen.indexed}
        widths = set() if plan.indexer is None else {plan.indexer.head_dim}
        widths |= set() if plan.indexer is None else {plan.indexer.rope.rotary_dim}
        if not has & widths:
            yield f"indexer {plan.indexer} for rotations of {seen.indexed}"


def _compare_rope(plan: LayerPlan, seen: Recorded, model: Any) -> Iterator[str]:
    """Compare the rope with the buffers of the module whose tables the layer used."""
    (module, label), *others = seen.tables
    if any(other != (module, label) for other in others):
        yield f"tables of {[label for _, label in seen.tables]}"
    buffers = census._buffers(type(module)(module.config))
    theirs = buffers.get(label or "", buffers.get("")).double().numpy()
    assert plan.rope is not None
    ours = plan.rope.for_length(1).frequencies(plan.rope.rotary_dim or plan.head_dim or 0)
    if plan.rope.position_axes is not None:  # some modules have each component's pairs together
        theirs, ours = np.sort(theirs), np.sort(ours)
    if ours.shape != theirs.shape or not np.allclose(ours, theirs, rtol=FREQUENCIES, atol=0):
        yield f"frequencies {ours[:3]} ({len(ours)}) for {theirs[:3]} ({len(theirs)}) of {label}"


def _compare_norms(plan: LayerPlan, seen: Recorded) -> Iterator[str]:
    norm = plan.norm
    if norm is None or not seen.norms:
        if norm is not None or seen.norms:
            yield f"norm {norm} for {[(type(m).__name__, shape) for m, shape, _ in seen.norms]}"
        return
    if len(seen.rotated) > 1 and len(seen.norms) != len(norm.arrays):  # else k is of another layer
        yield f"norms of {norm.arrays} for {len(seen.norms)}"
    widths = {
        "head": (plan.head_dim,),
        "all heads": tuple((n or 0) * (plan.head_dim or 0) for n in (plan.heads, plan.kv_heads)),
        "slice": (plan.rope and plan.rope.rotary_dim,),
    }[norm.over]
    for name, (module, shape, after) in zip(norm.arrays, seen.norms, strict=False):
        if shape[-1] not in widths:
            yield f"norm over {norm.over} for {shape}"
        if after != norm.after_rotation and name == "q":
            yield f"norm after rotation {norm.after_rotation} for {after}"
        if not hasattr(module, "norms"):  # of StableLM, a module for each head
            yield from _compare_norm(norm, name, module, shape)


def _compare_norm(norm: NormPlan, name: str, module: Any, shape: tuple[int, ...]) -> Iterator[str]:
    """Compare a norm with the formula of its plan, with random weights and values."""
    module = copy.deepcopy(module).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    parameters = dict(module.named_parameters())
    for parameter in parameters.values():
        parameter.data = torch.rand(parameter.shape, generator=generator) + 0.5
    # Small enough for eps to matter.
    x = torch.randn(shape, generator=generator) * 3e-3
    with torch.no_grad():
        theirs = module(x).double()
    y = x.double()
    y = y - y.mean(-1, keepdim=True) if norm.kind == "layer" else y
    y = y / (y.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    weight, bias = parameters.get("weight"), parameters.get("bias")
    if (name in norm.weighted) != (weight is not None):
        yield f"weights of {norm.weighted} for {sorted(parameters)} of {name}"
    if weight is not None:
        if weight.ndim == 2 and y.ndim == 4 and y.shape[1] == weight.shape[0] != y.shape[2]:
            weight = weight[:, None]
        y = y * (weight.double() + norm.offset)
    y = y if bias is None else y + bias.double()
    if not (error := (y - theirs).abs().max().item() / theirs.abs().max().item()) < 1e-5:
        yield f"{name} norm off by {error:.1e}"


NO_PLAN = re.compile(
    "no rotary embedding|plans are of language models|it rotates v|by the negative angle"
    "|is not known|frequencies are learned|no plan of model_type '(dory|zaya)'|rotates two slices"
    "|angles are products|model_type is missing|different components|must sum to"
    # Of encoders of sound, whose layers have other keys, and of configurations that were cut short.
    "|num_hidden_layers is missing|head_dim is missing|num_attention_heads is missing"
    "|transformers cannot read"
)


def list_equal(directory: str) -> list[str]:
    """Return the models of a directory whose plan is what they do; all others have a reason."""
    equal = []
    for kind in list_classes(directory):
        for more in ({}, *VARIANTS.get(getattr(kind.config_class, "model_type", ""), [])):
            if (model := build_model(kind, **more)) is None:
                continue
            try:
                differences = find_differences(model)
            except RopeError as error:
                if not NO_PLAN.search(str(error)):
                    raise
            except (*ERRORS, NotImplementedError):
                continue  # it does not run on the meta device, or without images
            else:
                assert differences == [], (kind, more)
                equal.append(kind.__name__)
    return equal
