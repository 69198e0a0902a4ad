"""Which functions tables may get to: they are recognised, and nothing else may take some."""

from __future__ import annotations

import importlib
import inspect
from types import MethodType
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch
import transformers
from support.patched import LOGITS
from support.small_models import make, vision_language
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from rope_xp import RopeError
from rope_xp.integrations import _classes, _flow, _rotary
from rope_xp.integrations.transformers import patch


def as_kernels_does(function: Any) -> nn.Module:
    """Return what a function is where transformers finds the package kernels: a module.

    transformers 5.23 asks for kernels 0.18.2, which is not to be had here, so its decorator is
    simulated: it gives the module's forward the signature of the function, and no name.
    """

    class Func(nn.Module):
        def forward(self, *arguments: Any, **named: Any) -> Any:
            return function(*arguments, **named)

    signature = inspect.signature(function)
    me = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [me, *signature.parameters.values()]
    Func.forward.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect
    return Func()


def kernel_of_a_gpu(self: Any, *arguments: Any, **named: Any) -> Any:
    raise RuntimeError("no GPU")


@pytest.mark.parametrize("kernelized", [False, True])
def test_functions_that_the_package_kernels_makes_modules(
    kernelized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = importlib.import_module("transformers.models.llama.modeling_llama")
    made = as_kernels_does(module.apply_rotary_pos_emb)
    model, tokens = make("llama"), torch.arange(24)[None]
    before = model(tokens).logits
    monkeypatch.setattr(module, "apply_rotary_pos_emb", made)
    if kernelized:  # as kernelize(model) does
        made.forward = MethodType(kernel_of_a_gpu, made)  # type: ignore[method-assign]  # as kernelize does
    after = patch(make("llama"))(tokens).logits
    torch.testing.assert_close(after, before, rtol=0, atol=LOGITS)


def test_a_model_of_which_one_half_is_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of Qwen2-VL, the function for the text is one that kernels may replace."""
    module = importlib.import_module("transformers.models.qwen2_vl.modeling_qwen2_vl")
    model, given = vision_language()
    before = model(**given).logits
    made = as_kernels_does(module.apply_rotary_pos_emb)
    monkeypatch.setattr(module, "apply_rotary_pos_emb", made)
    patch(model)
    torch.testing.assert_close(model(**given).logits, before, rtol=0, atol=LOGITS)
    half = given | {"pixel_values": given["pixel_values"].bfloat16()}
    assert model.bfloat16()(**half).logits.dtype == torch.bfloat16


# --- a model whose second part does something else with the tables -------------------------------

CONFIG = transformers.LlamaConfig(hidden_size=8, num_attention_heads=1)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        cos, sin = tables
        q, k = apply_rotary_pos_emb(x, x, cos, sin)
        return q + k  # type: ignore[no-any-return]  # tensors


class Model(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.rotary_emb = LlamaRotaryEmbedding(CONFIG)
        self.attention = Attention()
        self.parts = nn.ModuleList([part])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tables = self.rotary_emb(x, torch.arange(x.shape[-2])[None])
        x = self.attention(x, tables)
        for part in self.parts:
            x = part(x, tables=tables)
        return x


def turn(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    return cos * x


def turn_rightly(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
    return apply_rotary_pos_emb(x, x, cos, sin)[0]


class Computes(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        return x + tables[0]  # type: ignore[no-any-return]  # a tensor


class ComputesInPlace(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        cos, _ = tables
        x += cos
        return x


class CallsAFunction(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        return turn(x, *tables)


class CallsAFunctionThatRotates(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> Any:
        return turn_rightly(x, *tables)  # a function, and none of its names are replaced


class CallsWhatNobodyKnows(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        return torch.add(x, tables[0])


class CallsAMethodOfTables(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        return x.add(tables[0].mul(2))


class TakesFewerColumns(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> Any:
        cos, sin = tables
        return apply_rotary_pos_emb(x, x, cos[..., :4], sin[..., :4])[0]


class Keeps(nn.Module):
    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        self.tables = tables
        return x


class TakesByName(nn.Module):
    def forward(self, x: torch.Tensor, **named: Any) -> torch.Tensor:
        cos, _ = named["tables"]
        return x * cos  # type: ignore[no-any-return]  # a tensor


class HandsOn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = TakesByName()

    def forward(self, x: torch.Tensor, **named: Any) -> Any:
        return self.inner(x, **named)


class AsksItsBase(Computes):
    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        return super().forward(x, (tables[0].to(x.dtype), None))


class Provides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary_emb = LlamaRotaryEmbedding(CONFIG)

    def forward(self, x: torch.Tensor) -> Any:
        return x, self.rotary_emb(x, torch.arange(x.shape[-2])[None])


class AsksAnother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.provider = Provides()

    def forward(self, x: torch.Tensor) -> Any:
        x, (cos, _) = self.provider(x)
        return x * cos


class HoldsWhatAsks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = AsksAnother()

    def forward(self, x: torch.Tensor, tables: Any) -> Any:
        return self.inner(x)


class HandsTheModuleOn(Provides):
    def forward(self, x: torch.Tensor, tables: Any) -> Any:
        self.rotary_emb(x, torch.arange(x.shape[-2])[None])
        return torch.utils.checkpoint.checkpoint(self.rotary_emb, x)


class HidesTheCall(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rotary_emb = LlamaRotaryEmbedding(CONFIG)

    def forward(self, x: torch.Tensor, tables: Any) -> torch.Tensor:
        ask = getattr(self, "rotary_emb")  # noqa: B009  # as code does that makes up names
        return x * ask(x, torch.arange(x.shape[-2])[None])[0]  # type: ignore[no-any-return]  # a tensor


class WithoutSource(nn.Module):
    exec("def forward(self, x, tables): return x + tables[0]")


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (Computes, r"Computes\.forward: tables .* get to `x \+ tables\[0\]`"),
        (ComputesInPlace, r"get to `x \+= cos`"),
        (CallsAFunction, r"cannot patch turn: tables .* get to `cos \* x`"),
        (CallsWhatNobodyKnows, r"get to `torch\.add\(x, tables\[0\]\)`"),
        (CallsAMethodOfTables, r"get to `tables\[0\]\.mul\(2\)`"),
        (TakesFewerColumns, r"get to `cos\[\.\.\., :4\]`"),
        (Keeps, r"get to `self\.tables`"),
        (TakesByName, r"TakesByName\.forward: tables .* get to `x \* cos`"),
        (HandsOn, r"TakesByName\.forward: tables .* get to `x \* cos`"),
        (AsksItsBase, r"AsksItsBase\.forward: tables .* get to `x \+ tables\[0\]`"),
        (CallsAFunctionThatRotates, r"cannot patch apply_rotary_pos_emb: tables"),
        (HoldsWhatAsks, r"AsksAnother\.forward: tables .* get to `x \* cos`"),
        (HandsTheModuleOn, r"get to `torch\.utils\.checkpoint"),
        (HidesTheCall, "its source does not tell what becomes of its rotary module"),
        (WithoutSource, "WithoutSource.forward: its source cannot be read"),
    ],
)
def test_no_model_is_patched_by_half(part: type[nn.Module], message: str) -> None:
    model = Model(part())
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(RopeError, match=message + r".*rotation=False"):
        patch(model)
    assert [type(module) for module in model.modules()] == kinds
    assert "rope_xp_plans" not in vars(model.rotary_emb)


class Moves(nn.Module):
    """What models do with tables on their way, and is no use of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention(), Attention()])

    def forward(self, x: torch.Tensor, tables: Any, **named: Any) -> torch.Tensor:
        if tables is None or not isinstance(tables, tuple):
            return x
        each = {kind: (cos[:, :], sin.to(x.dtype)) for kind, (cos, sin) in {"a": tables}.items()}
        x, chosen = self.choose(x, each, "a")
        if named.get("cross"):  # which only others of the class have
            x = self.cross(x, tables=chosen)
        x = x * x.shape[0] / chosen[0].shape[0]
        for _, layer in enumerate(self.layers[:1]):
            x = layer(x, tables=chosen)
        return self.last(x, **(named | {"x": x})) if named else self.back(x, *chosen)

    def choose(self, x: torch.Tensor, each: Any, key: str) -> Any:
        return x, each[key] if key in each else each.get("b")

    def back(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> Any:
        return apply_rotary_pos_emb(x, x, cos.unsqueeze(0).squeeze(0), -sin)[0]

    def last(self, x: torch.Tensor) -> Any:
        return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tables_that_only_move_are_no_obstacle(dtype: torch.dtype) -> None:
    model, x = Model(Moves()), torch.randn(1, 3, 5, 8, dtype=dtype)
    before = model(x)
    after = patch(model)(x)
    assert after.dtype == dtype
    close = 8 * torch.finfo(dtype).eps  # roundings of numbers below 8, one after another
    torch.testing.assert_close(after, before, rtol=0, atol=8 * close)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *(("qwen2_5_vl", {}), ("gemma4_text", {}), ("mlcd_vision_model", {}), ("granite_swa", {})),
        ("zamba2", {"use_mem_rope": True}),
    ],
)
def test_models_that_do_odd_things_with_tables(name: str, more: dict[str, Any]) -> None:
    """By methods for q as well as tables, in tuples, joined to others, and in ``**kwargs``."""
    config = transformers.AutoConfig.for_model(name, **more)
    with torch.device("meta"):
        model = transformers.AutoModel.from_config(config)
    called = (_classes.called(type(module)) for module in model.modules())
    replaced = {function for functions in called for _, function in functions}
    rotary = dict(_rotary.modules(model)).values()
    _flow.check(model, rotary, replaced)
    with pytest.raises(RopeError, match="rotation=False"):
        _flow.check(model, rotary, set())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("part", [Computes, CallsAFunction, TakesByName])
def test_the_rotary_modules_alone(part: type[nn.Module], dtype: torch.dtype) -> None:
    """Any code may take their tables, which have the dtype that it knows."""
    model, x = Model(part()), torch.randn(1, 3, 5, 8, dtype=dtype)
    before = model(x)
    assert [type(m) for m in patch(model, rotation=False).parts] == [part]
    after = model(x)
    assert after.dtype == dtype
    # A table may differ by one rounding, and numbers are below 8.
    torch.testing.assert_close(after, before, rtol=0, atol=8 * torch.finfo(dtype).eps)
