"""The rotation of diffusers' transformers, handed to rope_xp and taken back."""

from __future__ import annotations

import copy
import doctest
import functools
import gc
import importlib
import inspect
import pickle
import threading
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("diffusers")

import diffusers
import torch
from diffusers.models.transformers import transformer_flux as flux_module
from diffusers.models.transformers import transformer_wan as wan_module
from support.diffusion_models import SMALL, Small, called, flux, hidream_in_training, wan, z_image
from support.exhaustive import exhaustive
from torch.utils._python_dispatch import TorchDispatchMode

from rope_xp import RopeError
from rope_xp.integrations._diffusion import patching, rotations
from rope_xp.integrations._diffusion import tables as tables_module
from rope_xp.integrations.diffusers import patch, unpatch

if TYPE_CHECKING:
    from collections.abc import Callable

# Float32 of a few layers, with outputs of 1 to 5 in modulus: the model's own rounding.
OUTPUTS = 2e-5
# One for each way in which tables are written: cos and sin, complex numbers, and matrices.
SHORT = ("flux", "z_image", "hidream")
few = pytest.mark.parametrize("small", [s if s.name in SHORT else exhaustive(s) for s in SMALL])
every = pytest.mark.parametrize("small", SMALL, ids=[small.name for small in SMALL])


@pytest.fixture(autouse=True)
def done(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note on which axes rope_xp rotates."""
    found: list[str] = []
    rotate = rotations.apply_tables

    def counted(x: torch.Tensor, *given: Any, **options: Any) -> Any:
        found.append(options["axes"])
        return rotate(x, *given, **options)

    monkeypatch.setattr(rotations, "apply_tables", counted)
    return found


def output(model: torch.nn.Module, arguments: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return called(model, arguments)


class Forbidding(TorchDispatchMode):
    """Raises where anything makes or takes a tensor of float64, or of complex numbers of it."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for value in torch.utils._pytree.tree_leaves((args, kwargs, result)):
            if isinstance(value, torch.Tensor) and value.dtype in (torch.float64, torch.complex128):
                raise AssertionError(f"{function} has {value.dtype}")
        return result


@every
def test_outputs(small: Small, done: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    model, arguments = small.make()
    before = output(model, arguments)
    assert patch(model) is model
    done.clear()
    assert (output(model, arguments) - before).abs().max() < OUTPUTS
    assert done  # rope_xp rotates, and both q and k
    assert len(done) % 2 == 0
    with Forbidding():  # and has no float64 on the device for it
        output(model, arguments)
    with monkeypatch.context() as context:  # what it rotates is no small part of the outputs
        context.setattr(rotations, "apply_tables", lambda x, *_, **__: x)
        assert (output(model, arguments) - before).abs().max() > 1e-3
    unpatch(model)
    done.clear()
    assert torch.equal(output(model, arguments), before)
    assert not done


@few
def test_gradients(small: Small) -> None:
    model, arguments = small.make()

    def gradients() -> list[torch.Tensor]:
        model.zero_grad()
        called(model, arguments).square().mean().backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    before = gradients()
    patch(model)
    after = gradients()
    assert len(before) == len(after)
    for ours, theirs in zip(after, before, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=1e-5 * max(1.0, float(theirs.max())))


def test_what_forbids_float64_notices_it() -> None:
    model, arguments = flux()
    with pytest.raises(AssertionError, match="float64"), Forbidding():
        output(model, arguments)


# Lumina 2 reads how long texts are from its mask, and HiDream how many tokens each expert has.
READING = {"lumina2": "out of meta tensor", "hidream": "bincount"}
IN_TRAINING = Small("hidream_in_training", hidream_in_training)
ON_META = (*(small for small in SMALL if small.name != "hidream"), IN_TRAINING)


def on_meta(arguments: dict[str, Any]) -> Any:
    return torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), arguments)


@pytest.mark.parametrize("small", [s for s in SMALL if s.name in READING], ids=str)
def test_what_cannot_run_on_the_meta_device_by_itself(small: Small) -> None:
    model, arguments = small.make()
    model.to("meta")
    with torch.device("meta"), pytest.raises(NotImplementedError, match=READING[small.name]):
        output(model, on_meta(arguments))


@pytest.mark.parametrize("small", ON_META, ids=[small.name for small in ON_META])
def test_on_the_meta_device(small: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    model, arguments = small.make()
    before = output(model, arguments)
    patch(model).to("meta")
    moved = on_meta(arguments)
    if small.name in READING:
        monkeypatch.setattr(torch.Tensor, "tolist", lambda _: [5, 3])  # the lengths of its texts
    with torch.device("meta"):
        found = output(model, moved)
    assert (found.device.type, found.shape) == ("meta", before.shape)


@pytest.mark.parametrize(
    "small", [s if s.name in ("flux", "wan") else exhaustive(s) for s in SMALL]
)
def test_compiled(small: Small) -> None:
    model, arguments = small.make()
    before = output(model, arguments)
    patch(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager")
    assert (output(compiled, arguments) - before).abs().max() < OUTPUTS


# Positions, tables and sizes, which are not cast with a model.
KEPT = ("img_ids", "txt_ids", "image_rotary_emb", "original_size", "target_size", "crop_coords")


@few
def test_bfloat16(small: Small) -> None:
    model, arguments = small.make()
    exact = output(model, arguments)
    model.to(torch.bfloat16)
    narrow = torch.utils._pytree.tree_map_only(
        torch.Tensor,
        lambda t: t.to(torch.bfloat16) if t.is_floating_point() else t,
        {key: value for key, value in arguments.items() if key not in KEPT},
    ) | {key: value for key, value in arguments.items() if key in KEPT}
    theirs = (output(model, narrow).float() - exact).abs().max()
    ours = (output(patch(model), narrow).float() - exact).abs().max()
    assert ours < 1.5 * theirs + 1e-3


def test_copies_and_pickles() -> None:
    model, arguments = wan()
    before = output(patch(model), arguments)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(output(other, arguments), before)
        assert type(other.blocks[0].attn1.processor) is type(model.blocks[0].attn1.processor)
        unpatch(other)
    assert list(model.state_dict()) == list(wan()[0].state_dict())


def test_other_models_are_not_touched(done: list[str]) -> None:
    one, arguments = flux()
    patch(flux()[0])
    done.clear()
    output(one, arguments)
    assert not done


def test_names_and_signatures_stay() -> None:
    model, _ = flux()
    processor = model.transformer_blocks[0].attn.processor
    before = type(processor).__name__, inspect.signature(processor.__call__)
    patch(model)
    assert isinstance(processor, flux_module.FluxAttnProcessor)
    assert (type(processor).__name__, inspect.signature(processor.__call__)) == before


def test_processors_set_later_are_the_models_own(done: list[str]) -> None:
    model, arguments = flux()
    before = output(model, arguments)
    patch(model)
    model.set_attn_processor(flux_module.FluxAttnProcessor())
    done.clear()
    assert (output(model, arguments) - before).abs().max() < OUTPUTS
    assert not done
    unpatch(model)


# --- functions of diffusers ----------------------------------------------------------------------


@pytest.fixture
def unpatched() -> None:
    """Take the models of earlier tests away, which were not unpatched."""
    gc.collect()
    unpatch(flux()[0])


@pytest.mark.usefixtures("unpatched")
def test_functions_come_back() -> None:
    functions = flux_module.apply_rotary_emb, wan_module.dispatch_attention_fn
    one, other = patch(flux()[0]), patch(wan()[0])
    copied = copy.deepcopy(one)
    assert wan_module.dispatch_attention_fn is not functions[1]
    unpatch(one)
    unpatch(other)
    assert flux_module.apply_rotary_emb is not functions[0]  # the copy rotates by rope_xp
    unpatch(copied)
    assert (flux_module.apply_rotary_emb, wan_module.dispatch_attention_fn) == functions


def test_copies_and_loaded_models_rotate_by_rope_xp(done: list[str]) -> None:
    model, arguments = flux()
    stored = pickle.dumps(patch(model))
    unpatch(model)
    loaded = pickle.loads(stored)
    done.clear()
    output(loaded, arguments)
    assert done
    unpatch(loaded)


@pytest.mark.usefixtures("unpatched")
def test_what_replaces_a_function_later_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    function = flux_module.apply_rotary_emb
    monkeypatch.setattr(flux_module, "apply_rotary_emb", function)  # and back after the test
    model, arguments = flux()
    calls = []
    patch(model)
    dispatch = flux_module.apply_rotary_emb

    @functools.wraps(dispatch)
    def count(*given: Any, **options: Any) -> Any:
        calls.append(given)
        return dispatch(*given, **options)

    flux_module.apply_rotary_emb = count
    unpatch(model)
    assert flux_module.apply_rotary_emb is count
    patch(model)
    output(model, arguments)
    assert calls
    unpatch(model)


def test_an_attention_function_set_later_gets_rotated_q_and_k(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wan's processor rotates by itself again, as nothing else would."""
    attend = wan_module.dispatch_attention_fn
    model, arguments = wan()
    before = output(model, arguments)
    patch(model)
    monkeypatch.setattr(wan_module, "dispatch_attention_fn", lambda *a, **k: attend(*a, **k))
    assert torch.equal(output(model, arguments), before)


def test_other_threads_have_their_own_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    model, arguments = flux()
    patch(model)
    calls: list[int] = []
    rotate = rotations.apply_tables

    def call_from_a_thread(x: torch.Tensor, *tables: Any, **options: Any) -> Any:
        calls.append(threading.get_ident())
        if len(calls) == 1:
            wide = (torch.ones(x.shape[1], x.shape[3]),) * 2
            thread = threading.Thread(
                target=flux_module.apply_rotary_emb, args=(x, wide), kwargs={"sequence_dim": 1}
            )
            thread.start()
            thread.join()
        return rotate(x, *tables, **options)

    monkeypatch.setattr(rotations, "apply_tables", call_from_a_thread)
    output(model, arguments)
    assert set(calls) == {threading.get_ident()}


def test_after_an_error_other_models_are_not_touched(done: list[str]) -> None:
    model, arguments = flux()
    other, _ = flux()
    processor = patch(model).transformer_blocks[0].attn.processor
    with pytest.raises(AttributeError):
        processor(None, None)
    done.clear()
    output(other, arguments)
    assert not done


# --- processors with functions of their own ------------------------------------------------------


def processors() -> dict[str, tuple[Any, torch.nn.Module, str]]:
    """Return processors that define what they rotate by, an attention module, and its argument."""
    models = diffusers.models.transformers
    sizes = {"dim": 32, "heads": 2, "dim_head": 16}
    found = {}
    for name in ("wan", "wan_animate", "chronoedit", "skyreels_v2"):
        module = importlib.import_module(f"{models.__name__}.transformer_{name}")
        kind = "SkyReelsV2" if name == "skyreels_v2" else "Wan"
        processor = getattr(module, f"{kind}AttnProcessor")()
        found[name] = processor, getattr(module, f"{kind}Attention")(**sizes), "rotary_emb"
    kandinsky = importlib.import_module(f"{models.__name__}.transformer_kandinsky")
    attention = kandinsky.Kandinsky5Attention(num_channels=32, head_dim=16)
    found["kandinsky"] = kandinsky.Kandinsky5AttnProcessor(), attention, "rotary_emb"
    return found


def test_keys_of_an_image_are_not_rotated(done: list[str]) -> None:
    attention = wan_module.WanAttention(32, heads=2, dim_head=16, added_kv_proj_dim=32)
    processor = wan_module.WanAttnProcessor()
    x, context = torch.randn(1, 512, 32), torch.randn(1, 6 + 512, 32)  # 6 tokens of an image
    tables = torch.rand(1, 512, 1, 16), torch.rand(1, 512, 1, 16)
    with torch.no_grad():
        theirs = processor(attention, x, context, rotary_emb=tables)
        processor.__class__ = patching.load_processor(type(processor))
        assert torch.equal(processor(attention, x, context, rotary_emb=tables), theirs)
    assert not done


@pytest.mark.parametrize("name", processors())
def test_processors_that_define_their_rotation(name: str, done: list[str]) -> None:
    processor, attention, argument = processors()[name]
    rotation = rotations.INNER_ROTATIONS[type(processor).__name__].rotation
    angles = torch.arange(6)[None, :, None, None] * torch.linspace(1, 0.1, 8)
    tables = tables_module.write(angles.cos(), angles.sin(), rotation.form)
    x = torch.randn((2, 6, 32), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        theirs, plain = processor(attention, x, **{argument: tables}), processor(attention, x)
        processor.__class__ = patching.load_processor(type(processor))
        ours = processor(attention, x, **{argument: tables})
        assert len(done) == 2  # q and k
        place = list(inspect.signature(processor.__call__).parameters).index(argument)
        by_position = processor(attention, x, *[None] * (place - 2), tables)
        assert torch.equal(processor(attention, x), plain)  # without tables nothing is rotated
    assert torch.equal(ours, by_position)
    # Kandinsky's own function rounds to bfloat16.
    assert (ours - theirs).abs().max() < (2e-2 if name == "kandinsky" else 1e-6)
    assert (ours - plain).abs().max() > 1e-2


def test_positions_beyond_what_the_model_has_tables_for() -> None:
    model, _ = z_image()
    ids = torch.tensor([[1_000_003, 5, 31]])
    with pytest.raises(IndexError):
        model.rope_embedder(ids)
    assert patch(model).rope_embedder(ids).shape == (1, 8)


# --- refusals ------------------------------------------------------------------------------------


def mochi() -> torch.nn.Module:
    return diffusers.MochiTransformer3DModel(
        num_attention_heads=2, attention_head_dim=8, num_layers=1, pooled_projection_dim=8,
        in_channels=4, text_embed_dim=8, time_embed_dim=8, max_sequence_length=8,
    )  # fmt: skip


def ernie() -> torch.nn.Module:
    return diffusers.ErnieImageTransformer2DModel(
        hidden_size=32, num_attention_heads=2, num_layers=1, ffn_hidden_size=32, in_channels=4,
        out_channels=4, text_in_dim=8, rope_axes_dim=(4, 4, 8),
    )  # fmt: skip


def sd3() -> torch.nn.Module:
    return diffusers.SD3Transformer2DModel(
        sample_size=8, in_channels=4, num_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=8, caption_projection_dim=16, pooled_projection_dim=8,
    )  # fmt: skip


def sana_video() -> torch.nn.Module:
    return diffusers.SanaVideoTransformer3DModel(
        in_channels=4, num_attention_heads=2, attention_head_dim=12, num_layers=1,
        num_cross_attention_heads=2, cross_attention_head_dim=12, cross_attention_dim=24,
        caption_channels=8,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (mochi, "MochiTransformer3DModel.*learned"),
        (ernie, "ErnieImageTransformer2DModel.*does not rotate"),
        (sd3, "SD3Transformer2DModel.*not known, or does not rotate"),
        (
            sana_video,
            "SanaVideo.*SanaLinearAttnProcessor3_0.*defines apply_rotary_emb.*edit of its",
        ),
    ],
)
def test_refused_by_name(make: Callable[[], torch.nn.Module], said: str) -> None:
    model = make()
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(RopeError, match=said):
        patch(model)
    assert [type(module) for module in model.modules()] == kinds


def test_a_module_with_other_tables_is_refused() -> None:
    model, _ = wan()
    model.rope.freqs_cos *= 0.5
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(RopeError, match="rope .WanRotaryPosEmbed.: its tables are not those"):
        patch(model)
    assert [type(module) for module in model.modules()] == kinds


def test_a_function_that_does_not_rotate_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = flux()

    @functools.wraps(flux_module.apply_rotary_emb)
    def scale(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return x * 0.5

    monkeypatch.setattr(flux_module, "apply_rotary_emb", scale)
    with pytest.raises(RopeError, match="does not rotate pairs by cos and sin of one angle"):
        patch(model)


def test_a_function_with_other_arguments_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = flux()

    @functools.wraps(flux_module.apply_rotary_emb)
    def need_more(x: torch.Tensor, tables: Any, positions: Any, sequence_dim: int = 2) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(flux_module, "apply_rotary_emb", need_more)
    with pytest.raises(RopeError, match="FluxAttnProcessor.*takes other arguments now.*positions"):
        patch(model)


def test_a_function_that_is_not_known_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = flux()
    monkeypatch.setattr(flux_module, "apply_rotary_emb", eval("lambda x, *_, **__: x"))
    with pytest.raises(RopeError, match="FluxAttnProcessor.*does not know .*apply_rotary_emb"):
        patch(model)


def test_patched_twice_is_refused() -> None:
    model, _ = flux()
    with pytest.raises(RopeError, match="patched already"):
        patch(patch(model))
    unpatch(unpatch(model))  # the second has nothing to do


def test_the_examples() -> None:
    module = importlib.import_module("rope_xp.integrations.diffusers")
    failed, tried = doctest.testmod(module)
    assert tried > 5
    assert failed == 0
