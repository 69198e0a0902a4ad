"""The rotation of diffusers' transformers, handed to rope_xp and taken back."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import pickle
import re
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import diffusers
import torch
from diffusers.models.transformers import transformer_flux as flux_module
from diffusers.models.transformers import transformer_wan as wan_module
from support.diffusion_models import SMALL, call_model, flux, hidream, wan, z_image
from support.exhaustive import exhaustive
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from rope_xp import Angles, RopeError
from rope_xp.integrations import _classes, _formats, _norms
from rope_xp.integrations._diffusion import rotations
from rope_xp.integrations.diffusers import patch, unpatch

if TYPE_CHECKING:
    pass

# Float32 of a few layers, with outputs of 1 to 5 in modulus: the model's own rounding.
OUTPUTS = 2e-5


def models(*names):
    """Parametrize a test by all small models, of which the short suite runs these."""
    chosen = [s if s.name in names else exhaustive(s) for s in SMALL]
    return pytest.mark.parametrize("small", chosen, ids=str)


# Where a test is about tables: cos and sin, complex numbers, and matrices.
few = models("flux", "z_image", "hidream")


@pytest.fixture(autouse=True)
def rotated(monkeypatch):
    axes = []
    rotate = Angles.rotate

    def count(angles, x, **options):
        axes.append(options["axes"])
        return rotate(angles, x, **options)

    monkeypatch.setattr(Angles, "rotate", count)
    return axes


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


@models(*(s.name for s in SMALL if s.name not in ("cosmos", "qwen_image")))
def test_outputs(small, rotated, monkeypatch):
    model, arguments = small.make()
    before = output(model, arguments)
    if small.name == "flux":
        with pytest.raises(AssertionError, match="float64"), Forbidding():
            output(model, arguments)
    assert patch(model) is model
    rotated.clear()
    assert (output(model, arguments) - before).abs().max() < OUTPUTS
    assert rotated  # rope_xp rotates, and both q and k
    assert len(rotated) % 2 == 0
    with Forbidding():  # and has no float64 on the device for it
        output(model, arguments)
    with monkeypatch.context() as context:  # what it rotates is no small part of the outputs
        context.setattr(Angles, "rotate", lambda _, x, **__: x)
        assert (output(model, arguments) - before).abs().max() > 1e-3
    with pytest.raises(RopeError, match="patched already"):
        patch(model)
    unpatch(unpatch(model))  # the second changes nothing
    rotated.clear()
    assert torch.equal(output(model, arguments), before)
    assert not rotated


@models("flux", "qwen_image", "wan")
def test_norms(small, monkeypatch):
    model, arguments = small.make()
    keys, before = list(model.state_dict()), output(model, arguments)
    if small.name not in ("flux", "qwen_image", "z_image"):
        message = "norm_q .* norm spans heads" if small.name == "wan" else "no layer of"
        with pytest.raises(RopeError, match=message):
            patch(model, norm=True)
        assert not any(map(_classes.is_patched, model.modules()))
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


@few
def test_gradients(small):
    model, arguments = small.make()
    before = gradients(model, arguments)
    for ours, theirs in zip(gradients(patch(model), arguments), before, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5 * max(1.0, float(theirs.max())))


@models("flux", "wan", "z_image", "cosmos", "qwen_image")
def test_on_the_meta_device(small):
    if small.name == "hidream":
        pytest.skip("it counts the tokens of each expert, which takes their values")
    model, arguments = small.make()
    before = output(model, arguments)
    patch(model).to("meta")
    arguments = tree_map_only(torch.Tensor, lambda t: t.to("meta"), arguments)
    with torch.device("meta"):
        result = output(model, arguments)
    assert (result.device.type, result.shape) == ("meta", before.shape)


@pytest.mark.parametrize(
    ("make", "backend"),
    [(wan, "eager"), *(exhaustive(make, "aot_eager") for make in (flux, wan, z_image, hidream))],
)
def test_compiled(make, backend):
    model, arguments = make()
    before = output(model, arguments)
    patch(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend=backend)
    assert (output(compiled, arguments) - before).abs().max() < OUTPUTS


@few
def test_bfloat16(small):
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


def test_copies_and_pickles(rotated):
    model, arguments = wan()
    before = output(patch(model), arguments)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        rotated.clear()
        assert torch.equal(output(other, arguments), before)
        assert rotated
        assert type(other.blocks[0].attn1.processor) is type(model.blocks[0].attn1.processor)
        unpatch(other)
    assert list(model.state_dict()) == list(wan()[0].state_dict())


def test_what_a_patch_leaves_as_it_is(rotated):
    """Other models, functions, names, and processors that are set later."""
    function = flux_module.apply_rotary_emb
    (model, arguments), (other, _) = flux(), flux()
    processor = model.transformer_blocks[0].attn.processor
    before = type(processor).__name__, inspect.signature(processor.__call__)
    patch(model)
    assert flux_module.apply_rotary_emb is function
    assert isinstance(processor, flux_module.FluxAttnProcessor)
    assert (type(processor).__name__, inspect.signature(processor.__call__)) == before
    rotated.clear()
    expected = output(other, arguments)
    assert not rotated
    model.set_attn_processor(flux_module.FluxAttnProcessor())
    assert (output(model, arguments) - expected).abs().max() < OUTPUTS
    assert not rotated
    unpatch(model)


@pytest.mark.parametrize(
    ("make", "module", "name", "rotates"),
    [
        (flux, flux_module, "apply_rotary_emb", False),
        (wan, wan_module, "dispatch_attention_fn", True),
    ],
)
def test_what_replaces_a_function_later_is_called(
    make, module, name, rotates, rotated, monkeypatch
):
    model, arguments = make()
    before = output(patch(model), arguments)
    function, calls = getattr(module, name), []

    @functools.wraps(function)
    def count(*arguments, **options):
        calls.append(arguments)
        return function(*arguments, **options)

    monkeypatch.setattr(module, name, count)
    rotated.clear()
    assert (output(model, arguments) - before).abs().max() < OUTPUTS
    assert calls
    assert bool(rotated) is rotates
    patch(unpatch(model))  # as the module is now
    calls.clear()
    rotated.clear()
    output(model, arguments)
    assert rotated
    assert bool(calls) is rotates


PROCESSORS = {"wan": "Wan", "wan_animate": "Wan", "chronoedit": "Wan", "skyreels_v2": "SkyReelsV2"}
SIZES = {"dim": 32, "heads": 2, "dim_head": 16}


def replace_processor(processor):
    processor.__class__ = _classes.load_rotating(type(processor), rotations.build_replacement)


def test_keys_of_an_image_are_not_rotated(rotated):
    attention = wan_module.WanAttention(**SIZES, added_kv_proj_dim=32)
    processor = wan_module.WanAttnProcessor()
    x, context = torch.randn(1, 512, 32), torch.randn(1, 6 + 512, 32)  # 6 tokens of an image
    angles = torch.rand(1, 512, 1, 8)
    tables = _formats.write(angles.cos(), angles.sin(), "neighbours")
    with torch.no_grad():
        theirs = processor(attention, x, context, rotary_emb=tables)
        replace_processor(processor)
        ours = processor(attention, x, context, rotary_emb=tables)
    assert len(rotated) == 2
    assert (ours - theirs).abs().max() < 1e-6


@pytest.mark.parametrize("name", [*PROCESSORS, "kandinsky"])
def test_processors_that_define_their_rotation(name, rotated):
    module = importlib.import_module(f"diffusers.models.transformers.transformer_{name}")
    kind = PROCESSORS.get(name, "Kandinsky5")
    sizes = SIZES if name in PROCESSORS else {"num_channels": 32, "head_dim": 16}
    attention = getattr(module, f"{kind}Attention")(**sizes)
    processor = getattr(module, f"{kind}AttnProcessor")()
    angles = torch.arange(6)[None, :, None, None] * torch.linspace(1, 0.1, 8)
    form = "neighbours" if name in PROCESSORS else "matrices"
    tables = _formats.unwrap(_formats.write(angles.cos(), angles.sin(), form))
    x = torch.randn((2, 6, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs, plain = processor(attention, x, rotary_emb=tables), processor(attention, x)
        replace_processor(processor)
        ours = processor(attention, x, rotary_emb=tables)
        assert len(rotated) == 2  # q and k
        assert torch.equal(processor(attention, x), plain)  # without tables nothing is rotated
    # Kandinsky's own function rounds to bfloat16.
    assert (ours - theirs).abs().max() < (2e-2 if name == "kandinsky" else 1e-6)
    assert (ours - plain).abs().max() > 1e-2


def test_positions_beyond_what_the_model_has_tables_for():
    model, _ = z_image()
    ids = torch.tensor([[1_000_003, 5, 31]])
    with pytest.raises(IndexError):
        model.rope_embedder(ids)
    widths = ((1_000_003, 4), (5, 4), (31, 8))
    angles = [p * 256.0 ** (-2 * i / n) for p, n in widths for i in range(n // 2)]
    exact = torch.polar(torch.ones(8).double(), torch.tensor(angles).double())
    assert (patch(model).rope_embedder(ids)[0] - exact).abs().max() < 1e-6


HEADS = {"num_attention_heads": 2, "attention_head_dim": 8, "num_layers": 1, "in_channels": 4}
WIDTHS = {"pooled_projection_dim": 8}


def mochi():
    widths = {**WIDTHS, "text_embed_dim": 8, "time_embed_dim": 8, "max_sequence_length": 8}
    return diffusers.MochiTransformer3DModel(**HEADS, **widths)


def sd3():
    widths = {**WIDTHS, "joint_attention_dim": 8, "caption_projection_dim": 16, "sample_size": 8}
    return diffusers.SD3Transformer2DModel(**HEADS, **widths)


def wrong_wan():
    model, _ = wan()
    model.rope.freqs_cos *= 0.5
    return model


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (mochi, "MochiTransformer3DModel.*learned"),
        (sd3, "SD3Transformer2DModel.*is unknown or does not rotate"),
        (wrong_wan, "rope .WanRotaryPosEmbed.: its tables are not those"),
    ],
)
def test_refused_by_name(make, message):
    model = make()
    classes = [type(module) for module in model.modules()]
    with pytest.raises(RopeError, match=message):
        patch(model)
    assert [type(module) for module in model.modules()] == classes


def scale(x, *_, **__):
    return x * 0.5


def need_more(x, tables, positions, sequence_dim=2):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "known", "message"),
    [
        (scale, True, "does not rotate pairs by cos and sin of one angle"),
        (need_more, True, "FluxAttnProcessor.*takes other arguments now.*positions"),
        (scale, False, "FluxAttnProcessor.*does not know .*apply_rotary_emb"),
    ],
)
def test_other_functions_are_refused(function, known, message, monkeypatch):
    model, _ = flux()

    def other(*args, **options):
        return function(*args, **options)

    if known:
        functools.update_wrapper(other, flux_module.apply_rotary_emb)
    monkeypatch.setattr(flux_module, "apply_rotary_emb", other)
    with pytest.raises(RopeError, match=message):
        patch(model)
