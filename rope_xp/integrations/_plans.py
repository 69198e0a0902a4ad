"""The tables of patched rotary modules of transformers, checked against the modules' own."""

import copy
import inspect
import itertools
import math
import threading
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError, rewording
from rope_xp.integrations import _classes, _formats, _rotary
from rope_xp.integrations._formats import Format
from rope_xp.rope import RoPE
from rope_xp.scaling import Axial, DynamicNTK

# Their frequencies are float32 powers and quotients: a few units of 6e-8.
_FREQUENCIES = 1e-6
_TOKENS = 8
PLANS = "rope_xp_plans"  # the attribute of a patched module that holds its plans


@dataclass(frozen=True)
class RotaryPlan:
    """The tables that a patched rotary module returns for one layer type."""

    rope: RoPE
    pairs: int
    form: Format
    leading: bool  # tables begin with an axis for a batch of one, which positions do not have
    beyond: RoPE | None = None  # of calls with positions past LongRoPE's original context
    # Functions of the model's own take tables in the dtype that they expect.
    rounding: Literal["never", "as x", "float32"] = "never"

    def tables(self, positions: torch.Tensor, like: torch.dtype) -> Any:
        single = self.rounding == "float32" or like != torch.float64
        dtype = torch.float32 if single else torch.float64
        if isinstance(self.rope.scaling, Axial):  # of patches: (..., components)
            positions = positions.movedim(-1, 0)
        elif self.rope.position_axes is not None:
            # (batch, tokens), or (1, batch, tokens), which their own modules expand too.
            positions = positions.expand(max(self.rope.position_axes) + 1, -1, -1)
        cos, sin = self._cos_sin(self.rope, positions, dtype)
        if self.beyond is not None:
            far = positions.max() >= self.beyond.scaling.original_max_position_embeddings  # type: ignore[union-attr]  # LongRoPE
            far_cos, far_sin = self._cos_sin(self.beyond, positions, dtype)
            cos, sin = torch.where(far, far_cos, cos), torch.where(far, far_sin, sin)
        if self.rounding == "as x":
            cos, sin = cos.to(like), sin.to(like)
        if self.leading:
            cos, sin = cos[None], sin[None]
        return _formats.unwrap(_formats.write(cos, sin, self.form))

    def _cos_sin(
        self, rope: RoPE, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        head = torch.empty(2 * self.pairs, dtype=dtype, device=positions.device)
        if torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]  # of torch
            # Another thread, which is not traced, caches tables, which are constants of the trace.
            builder = threading.Thread(target=rope.at, args=(positions,), kwargs={"like": head})
            builder.start()
            builder.join()
            # The sizes of arrays are tensors in a trace, and this one must be a number.
            return rope.cos_sin(positions, 2 * self.pairs, dtype=dtype)
        angles = rope.at(positions, like=head)
        return angles.cos, angles.sin


RotaryPlans = dict[str | None, RotaryPlan]


def _forward(
    self: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
) -> Any:
    plan: RotaryPlan = self.rope_xp_plans[layer_type]
    if position_ids.requires_grad:  # as in the models. no_grad around it all would take 3 us
        position_ids = position_ids.detach()
    return plan.tables(position_ids.to(x.device), x.dtype)


@cached(256)
def load_rotary(kind: type) -> type:
    return _classes.rotary_class(kind, "forward", PLANS, _forward, load_rotary)


@torch.no_grad()
def set_plans(module: torch.nn.Module, plans: RotaryPlans, trusting: bool) -> None:
    """Give a module its plans; if the configuration is trusted, also its buffers and factors."""
    setattr(module, PLANS, plans)
    for label, plan in plans.items():
        if trusting and hasattr(module, attribute := _rotary.attention_attribute(label)):
            setattr(module, attribute, plan.rope.attention_factor)
    for key, buffer in list(module.named_buffers(recurse=False)):
        if trusting and key.endswith("inv_freq") and not buffer.is_meta:
            rope = plans[_rotary.layer_type(key)].rope
            frequencies = torch.from_numpy(_rotary.series(rope, len(buffer)))
            setattr(module, key, frequencies.to(buffer.device, torch.float32))


class PatchOptions(NamedTuple):
    length: int | None = None
    rotation: bool = True  # rope_xp's functions read its tables, and not the model's own
    trusting: bool = False  # buffers may differ from the configuration
    strict: bool = True  # tables may not


def build_plans(
    name: str, module: torch.nn.Module, options: PatchOptions, has_others: bool = False
) -> RotaryPlans:
    """Return the plan of each layer type, after a comparison with the module's own tables."""
    where = f"{name or 'the model'} ({type(module).__name__})"
    advice = "; parts of the model without it can be patched alone" if has_others else ""
    with rewording(RopeError, f"cannot patch {where}: ", advice):
        return {
            label: _build_plan(module, label, buffer, options)
            for label, buffer in _rotary.frequency_buffers(module).items()
        }


def _build_plan(
    module: torch.nn.Module, label: str | None, buffer: torch.Tensor, options: PatchOptions
) -> RotaryPlan:
    ropes = _rotary.configured_ropes(module, label)
    if len(ropes) > 1:
        # transformers < 5: a module for each layer type, which does not know its own.
        ropes = [rope for rope in ropes if _has_frequencies(buffer, rope)]
    if len(ropes) != 1:  # of one module for all layers, some may not rotate
        raise RopeError(f"its configuration has no RoPE for {label!r}")
    (rope,) = ropes
    if options.length is None and isinstance(rope.scaling, DynamicNTK):
        raise RopeError(
            "the frequencies of DynamicNTK change as the context grows, but cached keys do not "
            "follow; fix the length with patch(model, length=n)"
        )
    regimes = _rotary.regimes(rope)
    if not options.trusting:
        if buffer.is_meta:
            raise RopeError("it is on the meta device; load its weights first")
        # Of either regime: the last call may have written to the buffer.
        if not any(_has_frequencies(buffer, regime) for regime in regimes):
            expected = _rotary.series(regimes[-1], len(buffer))[:3].tolist()
            msg = f"its configuration gives frequencies {expected} ..., but its buffer holds "
            raise RopeError(f"{msg}{buffer[:3].tolist()} ...")
    factor = _rotary.own_attention_factor(module, label)
    if not options.trusting and abs(rope.attention_factor - factor) > _FREQUENCIES:
        msg = f"its configuration gives attention factor {rope.attention_factor}, it has {factor}"
        raise RopeError(msg)
    plan = _fit(module, label, regimes[0], len(buffer), options)
    if options.length is not None:
        return replace(plan, rope=rope.for_length(options.length))
    return replace(plan, beyond=regimes[1]) if len(regimes) > 1 else plan


def _has_frequencies(buffer: torch.Tensor, rope: RoPE) -> bool:
    # A model in bfloat16 has rounded frequencies, one in float64 those of float32.
    tolerance = max(_FREQUENCIES, 2 * torch.finfo(buffer.dtype).eps)
    expected = torch.from_numpy(_rotary.series(rope, len(buffer))).to(buffer)
    return buffer.shape == expected.shape and torch.allclose(buffer, expected, tolerance, 0.0)


def _fit(
    module: torch.nn.Module, label: str | None, rope: RoPE, size: int, options: PatchOptions
) -> RotaryPlan:
    """Return the plan whose tables of a few positions are nearest to those of the module."""
    if "position_ids" not in inspect.signature(type(module).forward).parameters:
        raise RopeError("its forward takes no position_ids")
    positions = _rotary.probe_positions(rope, list(range(_TOKENS)), step=1)
    fresh, buffers = copy.copy(module), dict(module.named_buffers(recurse=False))
    for key in buffers:
        if key.endswith("inv_freq") and _rotary.layer_type(key) == label:
            buffers[key] = torch.from_numpy(_rotary.series(rope, size)).float()
    vars(fresh)["_buffers"] = {k: b if b.is_meta else b.cpu() for k, b in buffers.items()}
    vars(fresh)[_rotary.attention_attribute(label)] = rope.attention_factor

    def compute(dtype: torch.dtype) -> Any:
        x, named = torch.zeros(1, dtype=dtype), _rotary.label_argument(label)
        with rewording(_rotary.FAILURES, f"its forward fails for {_TOKENS} positions on CPU: "):
            return type(module).forward(fresh, x, positions, **named)

    pairs, theirs = _rotary.rotated_pairs(rope, size), compute(torch.float32)
    ropes = [rope]
    if positions.ndim == 3:  # transformers < 5 has tables of each component to select from
        ropes.append(replace(rope, position_axes=None))
    candidates = [
        RotaryPlan(rope, pairs, form, leading)
        for rope, form, leading in itertools.product(ropes, _formats.FORMATS, (False, True))
    ]
    errors = [_formats.scaled_error(p.tables(positions, torch.float32), theirs) for p in candidates]
    error, plan = min(zip(errors, candidates, strict=True), key=lambda pair: pair[0])
    if error == math.inf or (options.strict and error > 1):
        raise RopeError(f"its tables are not those of {rope}")
    if options.rotation:
        return plan
    follows = compute(torch.bfloat16)[0].dtype == torch.bfloat16
    return replace(plan, rounding="as x" if follows else "float32")
