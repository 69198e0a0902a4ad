"""The modules of transformers that compute cos and sin: found, checked, and replaced."""

from __future__ import annotations

import copy
import inspect
import math
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rope_xp._core.errors import RopeError
from rope_xp.hf import from_hf_config
from rope_xp.integrations import _formats
from rope_xp.integrations._formats import Format, Tables
from rope_xp.rope import RoPE
from rope_xp.scaling import Axial, DynamicNTK, LongRoPE

# Their frequencies are float32 powers and quotients: a few units of 6e-8.
FREQUENCIES = 1e-6
# Angles of positions below 8 in float32, and a table in float32.
TABLES = 1e-5
FAILURES = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What a module's own code may raise that is called in a way that it does not know."""
PLANS = "rope_xp_plans"
"""The attribute of a patched module that holds what it is to return for each layer type."""
_TOKENS = 8


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
        positions = _move_components_first(self.rope, positions)
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
        head = torch.empty(2 * self.pairs, dtype=dtype, device=positions.device)
        if torch.jit.is_tracing():  # type: ignore[no-untyped-call, attr-defined]  # of torch
            # Traces are of one thread: another one builds what then is a constant in each of them.
            other = threading.Thread(target=rope.at, args=(positions,), kwargs={"like": head})
            other.start()
            other.join()
            # The sizes of arrays are tensors in a trace, and this one must be a number.
            return rope.cos_sin(positions, 2 * self.pairs, dtype=dtype)
        angles = rope.at(positions, like=head)
        return angles.cos, angles.sin


def _move_components_first(rope: RoPE, positions: torch.Tensor) -> torch.Tensor:
    if rope.position_axes is None:
        return positions
    if isinstance(rope.scaling, Axial):  # of patches: (..., components)
        return positions.movedim(-1, 0)
    # (batch, tokens), or (1, batch, tokens), which their own modules expand too.
    return positions.expand(max(rope.position_axes) + 1, -1, -1)


def forward(
    self: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
) -> Tables | torch.Tensor:
    """Return exact tables for these positions, in float32 whatever the dtype of the model is."""
    plan: Plan = self.rope_xp_plans[layer_type]
    if position_ids.requires_grad:  # as in the models. no_grad around it all would take 3 us
        position_ids = position_ids.detach()
    tables = plan.tables(position_ids.to(x.device), x.dtype)
    return tables if len(tables) > 1 else tables[0]


# --- what a module and its configuration say -----------------------------------------------------


def rotary_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the rotary modules of a model with their names."""
    for name, module in model.named_modules():
        if any(key.endswith("inv_freq") for key, _ in module.named_buffers(recurse=False)):
            yield name, module


def layer_type(key: str) -> str | None:
    """Return the layer type of a buffer by its name, None where there is only one."""
    label = key.removesuffix("inv_freq").removesuffix("_").removesuffix("original")
    return label.removesuffix("_") or None


def frequency_buffers(module: torch.nn.Module) -> dict[str | None, torch.Tensor]:
    """Return the frequencies of a rotary module for each layer type."""
    return {
        layer_type(key): buffer
        for key, buffer in module.named_buffers(recurse=False)
        if key.endswith("inv_freq") and "original" not in key
    }


def configured_ropes(module: torch.nn.Module, label: str | None) -> list[RoPE]:
    """Return the ropes that a module's configuration has for a layer type, or for all layers.

    Raises
    ------
    RopeError
        If the configuration is missing or cannot be read.
    """
    config = getattr(module, "config", None)
    if config is None:
        raise RopeError("it has no configuration to read the RoPE from")
    try:
        # The layout is for the functions that rotate to say; these modules make tables alone.
        ropes = from_hf_config(config, layout="half")
    except TypeError as error:
        raise RopeError(str(error)) from error
    if isinstance(ropes, RoPE):
        return [ropes]
    every = ropes.values() if label is None else [ropes.get(label)]
    return list(dict.fromkeys(rope for rope in every if rope is not None))


def held_attention_factor(module: torch.nn.Module, label: str | None) -> Any:
    """Return what a module multiplies cos and sin by."""
    return getattr(module, f"{label}_attention_scaling" if label else "attention_scaling", 1.0)


def regimes(rope: RoPE) -> list[RoPE]:
    """Return a rope as it is for a short context and, where it changes, for a long one."""
    lengths = [1]
    if isinstance(rope.scaling, LongRoPE):
        lengths.append(rope.scaling.original_max_position_embeddings + 1)
    return [rope.for_length(n) for n in lengths]


def rotated_pairs(rope: RoPE, size: int) -> int:
    """Return how many pairs are rotated by a buffer of this size, one series for all components."""
    if isinstance(rope.scaling, Axial) and rope.scaling.order != "strided":
        return size * rope.scaling.axes
    return size


def series(rope: RoPE, size: int) -> NDArray[np.float64]:
    """Return what a buffer of this size holds."""
    frequencies = rope.frequencies(2 * rotated_pairs(rope, size))
    if isinstance(rope.scaling, Axial):
        alternating = rope.scaling.order == "alternating"
        return frequencies[:: rope.scaling.axes] if alternating else frequencies[:size]
    return frequencies


# --- plans ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Options:
    """How a module is to be patched."""

    length: int | None = None
    rotation: bool = True
    """Whether its tables go to functions of rope_xp, and not to the model's own."""
    trusting: bool = False
    """Whether the configuration is trusted, and the buffers are not looked at."""
    strict: bool = True
    """Whether tables that hold other numbers are refused."""


def plans(name: str, module: torch.nn.Module, options: Options) -> dict[str | None, Plan]:
    """Return what the module is to do, checked against what it does.

    Raises
    ------
    RopeError
        If its configuration cannot be read, or describes something else than its buffers hold.
    """
    try:
        return {
            label: _plan(module, label, buffer, options)
            for label, buffer in frequency_buffers(module).items()
        }
    except RopeError as error:
        where = f"{name or 'the model'} ({type(module).__name__})"
        raise RopeError(f"cannot patch {where}: {error}") from error


def _plan(
    module: torch.nn.Module, label: str | None, buffer: torch.Tensor, options: Options
) -> Plan:
    ropes = configured_ropes(module, label)
    if len(ropes) != 1:  # of one module for all layers, some may not rotate
        raise RopeError(f"its configuration has no RoPE for {label!r}")
    (rope,) = ropes
    if options.length is None and isinstance(rope.scaling, DynamicNTK):
        msg = (
            "the frequencies of DynamicNTK change while a context grows, and cached keys do not "
            "follow; fix them by patch(model, length=n)"
        )
        raise RopeError(msg)
    first, *rest = regimes(rope)
    if not options.trusting:  # the last call may have left frequencies of a long context
        _check_frequencies([first, *rest], buffer)
    factor = held_attention_factor(module, label)
    if abs(rope.attention_factor - factor) > FREQUENCIES:
        msg = f"its configuration says the attention factor {rope.attention_factor}, it {factor}"
        raise RopeError(msg)
    plan = _fit(module, label, first, len(buffer), options)
    if options.length is not None:
        return replace(plan, rope=rope.for_length(options.length))
    if isinstance(rope.scaling, LongRoPE):
        limit = rope.scaling.original_max_position_embeddings
        return replace(plan, beyond=rest[0], limit=limit)
    return plan


def _check_frequencies(ropes: list[RoPE], buffer: torch.Tensor) -> None:
    if buffer.device.type == "meta":
        raise RopeError("it is on the meta device; load its weights first")
    # A model that was cast to bfloat16 has rounded its frequencies too; these are not.
    # One in float64 has those of float32.
    tolerance = max(FREQUENCIES, 2 * torch.finfo(buffer.dtype).eps)
    for rope in ropes:
        expected = torch.from_numpy(series(rope, len(buffer))).to(buffer)
        if buffer.shape == expected.shape and torch.allclose(buffer, expected, tolerance, 0.0):
            return
    msg = (
        f"its configuration says the frequencies {expected[:3].tolist()} ..., its buffer holds "
        f"{buffer[:3].tolist()} ..."
    )
    raise RopeError(msg)


def _fit(
    module: torch.nn.Module, label: str | None, rope: RoPE, size: int, options: Options
) -> Plan:
    """Return the plan whose tables of a few positions are those of the module, or the nearest."""
    if "position_ids" not in inspect.signature(type(module).forward).parameters:
        raise RopeError("its forward takes no position_ids")
    positions = probe_positions(rope, list(range(_TOKENS)), apart=1)
    fresh = _with_series(module, label, series(rope, size))
    more: dict[str, Any] = {} if label is None else {"layer_type": label}

    def compute(dtype: torch.dtype) -> Tables:
        try:
            tables = type(module).forward(fresh, torch.zeros(1, dtype=dtype), positions, **more)
        except FAILURES as error:
            msg = f"its forward fails for {_TOKENS} positions on a CPU: {error}"
            raise RopeError(msg) from error
        return tables if isinstance(tables, tuple) else (tables,)

    pairs, theirs = rotated_pairs(rope, size), compute(torch.float32)
    every = (Plan(rope, None, 0, pairs, f, one) for f in _formats.FORMATS for one in (False, True))
    errors = {plan: _largest_error(plan.tables(positions, torch.float32), theirs) for plan in every}
    plan = min(errors, key=lambda each: errors[each])
    if errors[plan] > (TABLES if options.strict else sys.float_info.max):
        raise RopeError(f"its tables are not those of {rope}")
    if options.rotation:
        return plan
    follows = compute(torch.bfloat16)[0].dtype == torch.bfloat16
    return replace(plan, rounding="as x" if follows else "float32")


def probe_positions(rope: RoPE, numbers: list[int], apart: int) -> torch.Tensor:
    """Return positions as the modules of this rope take them, with components that differ so."""
    positions = torch.tensor(numbers)
    components = max(rope.position_axes or (0,)) + 1
    rows = torch.stack([positions + apart * i for i in range(components)])
    if isinstance(rope.scaling, Axial):
        return rows.T
    return rows[:, None] if components > 1 else rows


def _with_series(
    module: torch.nn.Module, label: str | None, frequencies: NDArray[np.float64]
) -> torch.nn.Module:
    """Return a copy of a module on the CPU with these frequencies, to whatever it was cast."""
    copied, buffers = copy.copy(module), dict(module.named_buffers(recurse=False))
    for key in buffers:
        if key.endswith("inv_freq") and layer_type(key) == label:
            buffers[key] = torch.from_numpy(frequencies).float()
    vars(copied)["_buffers"] = {k: b if b.is_meta else b.cpu() for k, b in buffers.items()}
    return copied


def _largest_error(ours: Tables, theirs: Tables) -> float:
    """Return how far tables are apart; infinity where they differ in shape or hold a NaN."""
    if [table.shape for table in ours] != [table.shape for table in theirs]:
        return math.inf
    error = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return math.inf if math.isnan(error) else error


@torch.no_grad()
def set_plans(module: torch.nn.Module, plans: dict[str | None, Plan], trusting: bool) -> None:
    """Give a module its plans; where they are trusted, make its buffers anew, in float32."""
    setattr(module, PLANS, plans)
    if not trusting:
        return
    for key, buffer in list(module.named_buffers(recurse=False)):
        if key.endswith("inv_freq") and not buffer.is_meta:
            frequencies = torch.from_numpy(series(plans[layer_type(key)].rope, len(buffer)))
            setattr(module, key, frequencies.to(buffer.device, torch.float32))
