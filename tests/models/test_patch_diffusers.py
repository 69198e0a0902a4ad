"""The rotation of diffusers' transformers, handed to rope_xp and taken back."""

import copy
import functools
import inspect
import pickle
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import diffusers
import torch
from diffusers.models.transformers import transformer_flux as flux_module
from diffusers.models.transformers import transformer_kandinsky as kandinsky_module
from diffusers.models.transformers import transformer_wan as wan_module
from support.cases import slow
from support.diffusion_models import SMALL, call_model, flux, wan, z_image
from support.patched import is_ours, refuse
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from rope_xp import Angles
from rope_xp.integrations import _classes, _formats, _norms
from rope_xp.integrations._diffusion import rotations
from rope_xp.integrations.diffusers import patch, unpatch

# Float32 of a few layers, with outputs of 1 to 5 in modulus: the model's own rounding.
OUTPUTS = 2e-5


def models(*names):
    chosen = [s if s.name in names else slow(s) for s in SMALL]
    return pytest.mark.parametrize("small", chosen, ids=str)


def output(model, arguments):
    with torch.no_grad():
        return call_model(model, arguments)


def gradients(model, arguments):
    model.zero_grad()
    call_model(model, arguments).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


class Forbidding(TorchDispatchMode):
    """Raises where anything makes or takes a tensor of float64, or of complex numbers of it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            if isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128):
                raise AssertionError(f"{function} has {value.dtype}")
        return result


@models("flux", "wan", "z_image", "hidream", "cogvideox")
def test_patched_model_has_its_outputs_without_float64(small, monkeypatch):
    model, arguments = small.make()
    before, own_gradients = output(model, arguments), gradients(model, arguments)
    if small.name == "flux":
        with pytest.raises(AssertionError, match="float64"), Forbidding():
            output(model, arguments)
    assert patch(model) is model
    assert is_ours(output, model, arguments)
    with Forbidding():
        assert (output(model, arguments) - before).abs().max() < OUTPUTS
    for ours, theirs in zip(gradients(model, arguments), own_gradients, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5 * max(1.0, float(theirs.max())))
    with monkeypatch.context() as context:  # what it rotates is no small part of the outputs
        context.setattr(Angles, "rotate", lambda _, x, **__: x)
        assert (output(model, arguments) - before).abs().max() > 1e-3
    refuse(patch, model, "patched already")
    unpatch(unpatch(model))  # the second changes nothing
    assert torch.equal(output(model, arguments), before)
    assert not is_ours(output, model, arguments)


@models("flux", "qwen_image", "wan")
def test_patched_norms_keep_outputs_or_are_refused(small, monkeypatch):
    model, arguments = small.make()
    keys, before = list(model.state_dict()), output(model, arguments)
    if small.name not in ("flux", "qwen_image", "z_image"):
        message = "norm_q .* norm spans heads" if small.name == "wan" else "cannot fuse a norm of"
        refuse(patch, model, message, norm=True)
        return
    patch(model, norm=True)
    found = {path for path, m in model.named_modules() if "norm" in path and _classes.is_patched(m)}
    norms = {key.removesuffix(".weight") for key in keys if re.search("norm_(added_)?[qk]", key)}
    assert found == {path for path in norms if small.name != "flux" or path.startswith("single")}
    with monkeypatch.context() as context:
        context.setattr(_norms.Unnormalized, "normalize", None)  # only the rotation computes it
        assert (output(model, arguments) - before).abs().max() < OUTPUTS
        gradients(model, arguments)
    assert list(model.state_dict()) == keys
    assert torch.equal(output(unpatch(model), arguments), before)


@pytest.mark.parametrize(
    ("name", "axes", "norm"), [("Flux2", (2, 2, 2, 2), True), ("Bria", (0, 4, 4), False)]
)
def test_models_built_like_flux_keep_the_output(name, axes, norm):
    torch.manual_seed(0)
    more = {"pooled_projection_dim": None} if name == "Bria" else {}
    fields = {**HEADS, **more, "num_single_layers": 1, "joint_attention_dim": 8}
    model = getattr(diffusers, f"{name}Transformer2DModel")(**fields, axes_dims_rope=axes).eval()
    keys = ("hidden_states", "encoder_hidden_states", "timestep", "img_ids", "txt_ids")
    arguments = {key: SMALL[0].arguments[key] for key in keys}
    for key in keys[-2:]:
        arguments[key] = torch.nn.functional.pad(arguments[key], (0, len(axes) - 3))
    arguments |= {"guidance": torch.ones(2)} if name == "Flux2" else {}
    before = output(model, arguments)
    patch(model, norm=norm)
    assert _classes.is_patched(model.single_transformer_blocks[0].attn.norm_q) == norm
    assert (output(model, arguments) - before).abs().max() < OUTPUTS


def test_frequencies_cast_to_bfloat16_are_patched() -> None:
    sizes = dict.fromkeys(
        ("hidden_size", "ffn_dim", "freq_dim", "time_embed_hidden_dim", "time_embed_dim"), 32
    )
    fields = {**HEADS, **sizes, "attention_head_dim": 16, "rope_freq_dim": 2}
    model = diffusers.MiniMaxH3Transformer3DModel(**fields, num_refiner_layers=1, text_dim=8)
    ids = torch.arange(12).reshape(4, 3)
    exact = model.rope(ids)
    assert not torch.equal(model.bfloat16().rope(ids)[1], exact[1])
    for ours, theirs in zip(patch(model).rope(ids), exact, strict=True):
        assert (ours - theirs).abs().max() < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(("make", "name"), [(wan, "blocks"), (z_image, "layers")])
def test_patched_model_whose_block_is_compiled_has_its_outputs(make, name):
    model, arguments = make()
    before = output(model, arguments)
    torch._dynamo.reset()
    getattr(patch(model), name)[0].compile(backend="eager", fullgraph=True)
    assert (output(model, arguments) - before).abs().max() < OUTPUTS


@models("flux", "z_image")
def test_patched_model_in_bfloat16_is_as_near_to_the_truth_as_before(small):
    model, arguments = small.make()
    exact = output(model, arguments)
    model.to(torch.bfloat16)
    uncast = {k: v for k, v in arguments.items() if k in ("img_ids", "txt_ids", "image_rotary_emb")}
    narrow = tree_map_only(
        torch.Tensor, lambda t: t.bfloat16() if t.is_floating_point() else t, arguments
    )
    theirs = (output(model, narrow | uncast).float() - exact).abs().max()
    ours = (output(patch(model), narrow | uncast).float() - exact).abs().max()
    assert ours < 1.5 * theirs + 1e-3


def test_copies_and_pickles_of_a_patched_model_are_patched():
    model, arguments = wan()
    before = output(patch(model), arguments)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(output(other, arguments), before)
        assert is_ours(output, other, arguments)
        assert type(other.blocks[0].attn1.processor) is type(model.blocks[0].attn1.processor)
        unpatch(other)
    assert list(model.state_dict()) == list(wan()[0].state_dict())


def test_patch_leaves_other_models_functions_names_and_processors_set_later():
    function = flux_module.apply_rotary_emb
    (model, arguments), (other, _) = flux(), flux()
    processor = model.transformer_blocks[0].attn.processor
    before = type(processor).__name__, inspect.signature(processor.__call__)
    patch(model)
    assert flux_module.apply_rotary_emb is function
    assert isinstance(processor, flux_module.FluxAttnProcessor)
    assert (type(processor).__name__, inspect.signature(processor.__call__)) == before
    expected = output(other, arguments)
    assert not is_ours(output, other, arguments)
    model.set_attn_processor(flux_module.FluxAttnProcessor())
    assert (output(model, arguments) - expected).abs().max() < OUTPUTS
    assert not is_ours(output, model, arguments)
    unpatch(model)


@pytest.mark.parametrize(
    ("make", "module", "name", "rotates"),
    [
        (flux, flux_module, "apply_rotary_emb", False),
        (wan, wan_module, "dispatch_attention_fn", True),
    ],
)
def test_patched_model_calls_what_replaces_a_function_later(
    make, module, name, rotates, monkeypatch
):
    model, arguments = make()
    before = output(patch(model), arguments)
    function, calls = getattr(module, name), []

    @functools.wraps(function)
    def record(*arguments, **options):
        calls.append(arguments)
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, record)
    assert (output(model, arguments) - before).abs().max() < OUTPUTS
    assert calls
    assert is_ours(output, model, arguments) is rotates
    patch(unpatch(model))  # as the module is now
    calls.clear()
    output(model, arguments)
    assert bool(calls) is rotates
    assert is_ours(output, model, arguments)


def replace_processor(processor):
    processor.__class__ = _classes.load_rotating(type(processor), rotations.build_replacement)


def test_patched_processor_leaves_keys_of_an_image():
    attention = wan_module.WanAttention(dim=32, heads=2, dim_head=16, added_kv_proj_dim=32)
    processor = wan_module.WanAttnProcessor()
    x, context = torch.randn(1, 512, 32), torch.randn(1, 6 + 512, 32)  # 6 tokens of an image
    angles = torch.rand(1, 512, 1, 8)
    tables = _formats.write(angles.cos(), angles.sin(), "neighbours")
    with torch.no_grad():
        theirs = processor(attention, x, context, rotary_emb=tables)
        replace_processor(processor)
        ours = processor(attention, x, context, rotary_emb=tables)
    assert (ours - theirs).abs().max() < 1e-6


def test_patched_processor_that_defines_its_rotation_rotates():
    attention = kandinsky_module.Kandinsky5Attention(num_channels=32, head_dim=16)
    processor = kandinsky_module.Kandinsky5AttnProcessor()
    angles = torch.arange(6)[None, :, None, None] * torch.linspace(1, 0.1, 8)
    tables = _formats.unwrap(_formats.write(angles.cos(), angles.sin(), "matrices"))
    x = torch.randn((2, 6, 32), generator=torch.Generator().manual_seed(0))

    def run(**options):
        with torch.no_grad():
            return processor(attention, x, **options)

    theirs, plain = run(rotary_emb=tables), run()
    replace_processor(processor)
    ours = run(rotary_emb=tables)
    assert is_ours(lambda: run(rotary_emb=tables))
    assert torch.equal(run(), plain)  # without tables nothing is rotated
    assert (ours - theirs).abs().max() < 2e-2  # Kandinsky's own function rounds to bfloat16
    assert (ours - plain).abs().max() > 1e-2


def test_patched_model_takes_positions_beyond_its_own_tables():
    model, _ = z_image()
    ids = torch.tensor([[1_000_003, 5, 31]])
    with pytest.raises(IndexError):
        model.rope_embedder(ids)
    widths = ((1_000_003, 4), (5, 4), (31, 8))
    angles = [p * 256.0 ** (-2 * i / n) for p, n in widths for i in range(n // 2)]
    exact = torch.polar(torch.ones(8).double(), torch.tensor(angles).double())
    assert (patch(model).rope_embedder(ids)[0] - exact).abs().max() < 1e-6


HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "in_channels": 4}
WIDTHS = {**HEADS, "pooled_projection_dim": 8}
MOCHI = {**WIDTHS, "text_embed_dim": 8, "time_embed_dim": 8, "max_sequence_length": 8}
SD3 = {**WIDTHS, "joint_attention_dim": 8, "caption_projection_dim": 16, "sample_size": 8}


def wrong_wan():
    model, _ = wan()
    model.rope.freqs_cos *= 0.5
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: diffusers.MochiTransformer3DModel(**MOCHI), "MochiTransformer3DModel.*learned"),
        (
            lambda: diffusers.SD3Transformer2DModel(**SD3),
            "SD3Transformer2DModel.*is unknown or does not rotate",
        ),
        (wrong_wan, "rope .WanRotaryPosEmbed.: its tables are not those"),
    ],
)
def test_patch_refuses_by_name(make, message):
    refuse(patch, make(), message)


def need_more(x, tables, positions, sequence_dim=2):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "known", "message"),
    [
        (lambda x, *_, **__: x * 0.5, True, "does not rotate pairs by cos and sin of one angle"),
        (need_more, True, "FluxAttnProcessor.*takes other arguments now.*positions"),
        (lambda x, *_, **__: x * 0.5, False, "FluxAttnProcessor.*does not know .*apply_rotary_emb"),
    ],
)
def test_patch_refuses_other_functions(function, known, message, monkeypatch):
    model, _ = flux()

    def other(*args, **options):
        return function(*args, **options)

    if known:
        functools.update_wrapper(other, flux_module.apply_rotary_emb)
    monkeypatch.setattr(flux_module, "apply_rotary_emb", other)
    refuse(patch, model, message)
