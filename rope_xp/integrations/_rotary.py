"""The modules of transformers that make cos and sin: recognised, checked, and replaced."""

import copy
import inspect
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rope_xp._contract.errors import RopeError
from rope_xp.hf import from_hf_config
from rope_xp.integrations import _formats
from rope_xp.integrations._formats import Format, Tables
from rope_xp.rope import RoPE
from rope_xp.scaling import Axial, DynamicNTK, LongRoPE

# Their frequencies are float32 powers and quotients: a few units of 6e-8.
FREQUENCIES = 1e-6
# Angles of positions below 8 in float32, and a table in float32.
TABLES = 1e-5
_TOKENS = 8
FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a module's own code may raise that is called in a way that it does not know."""
PLANS = "rope_xp_plans"
"""The attribute of a patched module that holds what it is to return for each layer type."""


@dataclass(frozen=True)
class Plan:
    """What a rotary module is to return for one layer type."""

    rope: RoPE
    beyond: RoPE | None
    """What takes over where a call has positions from ``limit`` on; None for most."""
    limit: int
    pairs: int
    form: Format
    leading: bool = False
    """Whether tables begin with an axis for a batch of one, which positions do not have."""
    rounding: Literal["never", "as x", "float32"] = "never"
    """To what tables are rounded: functions of the model's own need the dtype that they know."""

    def tables(self, positions: torch.Tensor, like: torch.dtype) -> Tables:
        """Return the tables of these positions in the model's format, for x of this dtype."""
        single = self.rounding == "float32" or like != torch.float64
        dtype = torch.float32 if single else torch.float64
        positions = _components(self.rope, positions)
        cos, sin = self._cos_sin(self.rope, positions, dtype)
        if self.beyond is not None:
            far = positions.max() >= self.limit
            far_cos, far_sin = self._cos_sin(self.beyond, positions, dtype)
            cos, sin = torch.where(far, far_cos, cos), torch.where(far, far_sin, sin)
        if self.rounding == "as x":
            cos, sin = cos.to(like), sin.to(like)
        if self.leading:
            cos, sin = cos[None], sin[None]
        return _formats.written(cos, sin, self.form)

    def _cos_sin(
        self, rope: RoPE, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin of one column a pair."""
        if torch.jit.is_tracing():  # which makes tensors of the sizes of arrays
            return rope.cos_sin(positions, 2 * self.pairs, dtype=dtype)
        head = torch.empty(2 * self.pairs, dtype=dtype, device=positions.device)
        angles = rope.at(positions, like=head)
        return angles.cos, angles.sin


def _components(rope: RoPE, positions: torch.Tensor) -> torch.Tensor:
    """Return positions with their components first, as RoPE has them."""
    if rope.position_axes is None:
        return positions
    if isinstance(rope.scaling, Axial):  # of patches: (..., components)
        return positions.movedim(-1, 0)
    # (batch, tokens), or (1, batch, tokens), which their own modules expand too.
    return positions.expand(max(rope.position_axes) + 1, -1, -1)


def modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the rotary modules of a model with their names."""
    for name, module in model.named_modules():
        own = dict(module.named_buffers(recurse=False))
        if any(key.endswith("inv_freq") for key in own):
            yield name, module


def labels(module: torch.nn.Module) -> dict[str | None, torch.Tensor]:
    """Return the frequencies of a rotary module for each layer type, None if there is only one."""
    return {
        key.removesuffix("inv_freq").removesuffix("_") or None: buffer
        for key, buffer in module.named_buffers(recurse=False)
        if key.endswith("inv_freq") and "original" not in key
    }


def plans(
    name: str,
    module: torch.nn.Module,
    length: int | None,
    rotation: bool,
    trusting: bool = False,
    strict: bool = True,
) -> dict[str | None, Plan]:
    """Return what the module is to do, checked against what it does.

    Without rotation its tables go to the model's own functions. Trusting the configuration, the
    buffers are not looked at. If not strict, tables may hold other numbers.

    Raises
    ------
    RopeError
        If its configuration cannot be read, or describes something else than its buffers hold.
    """
    who = f"{name or 'the model'} ({type(module).__name__})"
    config = getattr(module, "config", None)
    if config is None:
        raise RopeError(f"cannot patch {who}: it has no configuration to read the RoPE from")
    try:
        # Which is for the functions that rotate to say; these modules have tables alone.
        found = from_hf_config(config, layout="half")
    except (RopeError, TypeError) as error:
        raise RopeError(f"cannot patch {who}: {error}") from error
    made = {}
    for label, buffer in labels(module).items():
        rope = _of(found, label)
        if rope is None:
            raise RopeError(f"cannot patch {who}: its configuration has no RoPE for {label!r}")
        made[label] = _plan(who, module, label, buffer, rope, length, rotation, trusting, strict)
    return made


def _of(found: RoPE | dict[str, RoPE | None], label: str | None) -> RoPE | None:
    if isinstance(found, RoPE):
        return found
    if label is not None:
        return found.get(label)
    # One module for all layers, of which some do not rotate.
    rotating = {rope for rope in found.values() if rope is not None}
    return rotating.pop() if len(rotating) == 1 else None


def _plan(
    who: str,
    module: torch.nn.Module,
    label: str | None,
    buffer: torch.Tensor,
    rope: RoPE,
    length: int | None,
    rotation: bool,
    trusting: bool,
    strict: bool,
) -> Plan:
    rule = rope.scaling
    if length is None and isinstance(rule, DynamicNTK):
        msg = (
            f"cannot patch {who}: the frequencies of DynamicNTK change while a context grows, "
            "and cached keys do not follow; fix them by patch(model, length=n)"
        )
        raise RopeError(msg)
    first, beyond, limit = rope.for_length(1), None, 0
    if isinstance(rule, LongRoPE):
        limit = rule.original_max_position_embeddings
        beyond = rope.for_length(limit + 1)
    repeats = len(rule_axes(rope)) if isinstance(rule, Axial) and rule.order != "dealt" else 1
    pairs = repeats * len(buffer)
    # The last call may have left those of a long context.
    if not trusting:
        _check_frequencies(who, [first] if beyond is None else [first, beyond], buffer, pairs)
    scaling = getattr(module, f"{label}_attention_scaling" if label else "attention_scaling", 1.0)
    if abs(rope.attention_factor - scaling) > FREQUENCIES:
        msg = f"its configuration says the attention factor {rope.attention_factor}, it {scaling}"
        raise RopeError(f"cannot patch {who}: {msg}")
    plan = _fitted(who, module, label, first, len(buffer), pairs, rotation, strict)
    if length is not None:
        return replace(plan, rope=rope.for_length(length))
    return replace(plan, beyond=beyond, limit=limit)


def rule_axes(rope: RoPE) -> set[int]:
    """Return the components of positions that a RoPE reads."""
    return set(rope.position_axes or (0,))


def _check_frequencies(who: str, ropes: list[RoPE], buffer: torch.Tensor, pairs: int) -> None:
    # A model that was cast to bfloat16 has rounded its frequencies too; these are not.
    # One in float64 has those of float32.
    close = max(FREQUENCIES, 2 * torch.finfo(buffer.dtype).eps)
    if buffer.device.type == "meta":
        raise RopeError(f"cannot patch {who}: it is on the meta device; load its weights first")
    for rope in ropes:
        expected = torch.from_numpy(_own_series(rope, 2 * pairs, len(buffer))).to(buffer)
        if buffer.shape == expected.shape and torch.allclose(buffer, expected, close, 0.0):
            return
    msg = (
        f"cannot patch {who}: its configuration says the frequencies {expected[:3].tolist()} ..., "
        f"its buffer holds {buffer[:3].tolist()} ..."
    )
    raise RopeError(msg)


def _own_series(rope: RoPE, components: int, length: int) -> NDArray[np.float64]:
    """Return what a buffer of this length holds, which is one series for all axial components."""
    series = rope.frequencies(components)
    if isinstance(rope.scaling, Axial):
        alternating = rope.scaling.order == "alternating"
        return series[:: rope.scaling.axes] if alternating else series[:length]
    return series


def _fitted(
    who: str,
    module: torch.nn.Module,
    label: str | None,
    rope: RoPE,
    size: int,
    pairs: int,
    rotation: bool,
    strict: bool,
) -> Plan:
    """Return the plan whose tables of a few positions are those of the module, or the nearest."""
    if "position_ids" not in inspect.signature(type(module).forward).parameters:
        raise RopeError(f"cannot patch {who}: its forward takes no position_ids")
    positions = _few_positions(rope)
    fresh = _with_series(module, label, _own_series(rope, 2 * pairs, size))
    more: dict[str, Any] = {} if label is None else {"layer_type": label}

    def tables(dtype: torch.dtype) -> Tables:
        try:
            given = type(module).forward(fresh, torch.zeros(1, dtype=dtype), positions, **more)
        except FAILURES as error:
            msg = f"cannot patch {who}: its forward fails for {_TOKENS} positions on a CPU: {error}"
            raise RopeError(msg) from error
        return given if isinstance(given, tuple) else (given,)

    theirs = tables(torch.float32)
    every = (Plan(rope, None, 0, pairs, f, one) for f in _formats.FORMATS for one in (False, True))
    errors = {plan: _largest_error(plan.tables(positions, torch.float32), theirs) for plan in every}
    plan = min(errors, key=lambda each: errors[each])
    if errors[plan] > (TABLES if strict else sys.float_info.max):
        raise RopeError(f"cannot patch {who}: its tables are not those of {rope}")
    if rotation:
        return plan
    follows = tables(torch.bfloat16)[0].dtype == torch.bfloat16
    return replace(plan, rounding="as x" if follows else "float32")


def _with_series(
    module: torch.nn.Module, label: str | None, series: NDArray[np.float64]
) -> torch.nn.Module:
    """Return a copy of a module on the CPU with these frequencies, to whatever it was cast."""
    copied = copy.copy(module)
    copied._parameters = {k: p if p is None else p.cpu() for k, p in module._parameters.items()}
    copied._buffers = {k: b if b is None else b.cpu() for k, b in module._buffers.items()}
    for key in copied._buffers:
        if key.endswith("inv_freq") and key.startswith(label or ""):
            copied._buffers[key] = torch.from_numpy(series).float()
    return copied


def _largest_error(ours: Tables, theirs: Tables) -> float:
    """Return how far tables are apart; infinity where they differ in shape or hold a NaN."""
    if [table.shape for table in ours] != [table.shape for table in theirs]:
        return math.inf
    off = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return math.inf if math.isnan(off) else off


@torch.no_grad()
def give(module: torch.nn.Module, plans: dict[str | None, Plan], trusting: bool) -> None:
    """Give a module its plans; where they are trusted, make its buffers anew, in float32."""
    setattr(module, PLANS, plans)
    if not trusting:
        return
    for key, buffer in list(module.named_buffers(recurse=False)):
        if key.endswith("inv_freq") and not buffer.is_meta:
            label = key.removesuffix("inv_freq").removesuffix("_")
            label = label.removesuffix("original").removesuffix("_")
            plan = plans[label or None]
            series = _own_series(plan.rope, 2 * plan.pairs, len(buffer))
            setattr(module, key, torch.from_numpy(series).to(buffer.device, torch.float32))


def _few_positions(rope: RoPE) -> torch.Tensor:
    positions = torch.arange(_TOKENS)[None]
    components = max(rope.position_axes or (0,)) + 1
    if isinstance(rope.scaling, Axial):
        return torch.stack([positions[0] + i for i in range(components)], dim=-1)
    if components > 1:
        return torch.stack([positions + i for i in range(components)])
    return positions


def forward(
    self: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
) -> Tables | torch.Tensor:
    """Return exact tables for these positions, in float32 whatever the dtype of the model is."""
    plan: Plan = self.rope_xp_plans[layer_type]
    if position_ids.requires_grad:  # as in the models. no_grad around it all would take 3 us
        position_ids = position_ids.detach()
    tables = plan.tables(position_ids.to(x.device), x.dtype)
    return tables if len(tables) > 1 else tables[0]
