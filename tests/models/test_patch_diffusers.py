"""The rotation of diffusers' transformers, handed to rope_xp and taken back."""

import copy
import functools
import inspect
import pickle
import re

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import torch
from diffusers.models.transformers import transformer_flux as flux_module
from support.diffusion_models import call_model, make
from support.patched import is_ours, refuse
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from rope_xp import Angles
from rope_xp.integrations import _classes, _norms
from rope_xp.integrations.diffusers import patch, unpatch

# Float32 of a few layers, with outputs of 1 to 5 in modulus: the model's own rounding.
OUTPUTS = 2e-5


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


@pytest.mark.parametrize("name", ["flux", "wan", "z_image"])
def test_patched_model_has_its_outputs_without_float64(name, monkeypatch):
    model, arguments = make(name)
    before, own_gradients = output(model, arguments), gradients(model, arguments)
    if name == "flux":
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


@pytest.mark.parametrize("name", ["flux", "z_image"])
def test_patched_norms_keep_outputs(name, monkeypatch):
    model, arguments = make(name)
    keys, before = list(model.state_dict()), output(model, arguments)
    patch(model, norm=True)
    found = {path for path, m in model.named_modules() if "norm" in path and _classes.is_patched(m)}
    norms = {key.removesuffix(".weight") for key in keys if re.search("norm_(added_)?[qk]", key)}
    assert found == {path for path in norms if name != "flux" or path.startswith("single")}
    with monkeypatch.context() as context:
        context.setattr(_norms.Unnormalized, "normalize", None)  # only the rotation computes it
        assert (output(model, arguments) - before).abs().max() < OUTPUTS
        gradients(model, arguments)
    assert list(model.state_dict()) == keys
    assert torch.equal(output(unpatch(model), arguments), before)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "blocks"), [("wan", "blocks"), ("z_image", "layers")])
def test_patched_model_whose_block_is_compiled_has_its_outputs(name, blocks):
    model, arguments = make(name)
    before = output(model, arguments)
    torch._dynamo.reset()
    getattr(patch(model), blocks)[0].compile(backend="eager", fullgraph=True)
    assert (output(model, arguments) - before).abs().max() < OUTPUTS


@pytest.mark.parametrize("name", ["flux", "z_image"])
def test_patched_model_in_bfloat16_is_as_near_to_the_truth_as_before(name):
    model, arguments = make(name)
    exact = output(model, arguments)
    model.to(torch.bfloat16)
    narrow = tree_map_only(
        torch.Tensor, lambda t: t.bfloat16() if t.is_floating_point() else t, arguments
    )
    narrow |= {name: ids for name, ids in arguments.items() if name in ("img_ids", "txt_ids")}
    theirs = (output(model, narrow).float() - exact).abs().max()
    ours = (output(patch(model), narrow).float() - exact).abs().max()
    assert ours < 1.5 * theirs + 1e-3


def test_copies_and_pickles_of_a_patched_model_are_patched():
    model, arguments = make("wan")
    keys = list(model.state_dict())
    before = output(patch(model), arguments)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(output(other, arguments), before)
        assert is_ours(output, other, arguments)
        assert type(other.blocks[0].attn1.processor) is type(model.blocks[0].attn1.processor)
        unpatch(other)
    assert list(model.state_dict()) == keys


def test_patch_leaves_other_models_functions_names_and_processors_set_later():
    function = flux_module.apply_rotary_emb
    (model, arguments), (other, _) = make("flux"), make("flux")
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


def test_patched_model_calls_what_replaces_a_function_later(monkeypatch):
    model, arguments = make("flux")
    before = output(patch(model), arguments)
    function, calls = flux_module.apply_rotary_emb, []

    @functools.wraps(function)
    def record(*arguments, **options):
        calls.append(arguments)
        return function(*arguments, **options)

    monkeypatch.setattr(flux_module, "apply_rotary_emb", record)
    assert (output(model, arguments) - before).abs().max() < OUTPUTS
    assert calls
    assert not is_ours(output, model, arguments)
    patch(unpatch(model))  # as the module is now
    assert is_ours(output, model, arguments)


def test_patched_model_takes_positions_beyond_its_own_tables():
    model, _ = make("z_image")
    ids = torch.tensor([[1_000_003, 5, 31]])
    with pytest.raises(IndexError):
        model.rope_embedder(ids)
    widths = ((1_000_003, 4), (5, 4), (31, 8))
    angles = [p * 256.0 ** (-2 * i / n) for p, n in widths for i in range(n // 2)]
    exact = torch.polar(torch.ones(8).double(), torch.tensor(angles).double())
    assert (patch(model).rope_embedder(ids)[0] - exact).abs().max() < 1e-6


def test_patch_refuses_a_module_with_other_tables():
    model, _ = make("wan")
    model.rope.freqs_cos *= 0.5
    refuse(patch, model, "rope .WanRotaryPosEmbed.: its tables are not those")


def unknown(x, *_, **__):
    return x * 0.5


@functools.wraps(flux_module.apply_rotary_emb)
def halve(x, *_, **__):
    return x * 0.5


@functools.wraps(flux_module.apply_rotary_emb)
def need_more(x, tables, positions, sequence_dim=2):
    raise NotImplementedError


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (halve, "does not rotate pairs by cos and sin of one angle"),
        (need_more, "FluxAttnProcessor.*takes other arguments now.*positions"),
        (unknown, "FluxAttnProcessor.*does not know .*apply_rotary_emb"),
    ],
)
def test_patch_refuses_other_functions(function, message, monkeypatch):
    monkeypatch.setattr(flux_module, "apply_rotary_emb", function)
    refuse(patch, make("flux")[0], message)
