"""The tables of patched rotary modules of transformers, checked against the modules' own."""

from __future__ import annotations

import copy
import inspect
import itertools
import math
import sys
import threading
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp.integrations import _classes, _formats, _rotary
from rope_xp.integrations._formats import Format, Tables
from rope_xp.rope import RoPE
from rope_xp.scaling import Axial, DynamicNTK, LongRoPE

# Their frequencies are float32 powers and quotients: a few units of 6e-8.
_FREQUENCIES = 1e-6
# Angles of positions below 8 in float32, and a table in float32.
_TABLES = 1e-5
_TOKENS = 8
PLANS = "rope_xp_plans"
"""The attribute of a patched module that holds its plan for each layer type."""


@dataclass(frozen=True)
class RotaryPlan:
    """The tables that a patched rotary module returns for one layer type."""

    rope: RoPE
    beyond: RoPE | None
    """The rope of calls with positions from ``limit`` on; None for most."""
    limit: int
    pairs: int
    form: Format
    leading: bool = False
    """Whether tables begin with an axis for a batch of one, which positions do not have."""
    rounding: Literal["never", "as x", "float32"] = "never"
    """The dtype of tables: functions of the model's own take the dtype that they expect."""

    def tables(self, positions: torch.Tensor, like: torch.dtype) -> Tables:
        """Return the tables of positions in the model's format, for x of a dtype."""
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
        return _formats.write(cos, sin, self.form)

    def _cos_sin(
        self, rope: RoPE, positions: torch.Tensor, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return cos and sin with one column per pair."""
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


def _move_components_first(rope: RoPE, positions: torch.Tensor) -> torch.Tensor:
    if rope.position_axes is None:
        return positions
    if isinstance(rope.scaling, Axial):  # of patches: (..., components)
        return positions.movedim(-1, 0)
    # (batch, tokens), or (1, batch, tokens), which their own modules expand too.
    return positions.expand(max(rope.position_axes) + 1, -1, -1)


def _forward(
    self: Any, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str | None = None
) -> Tables | torch.Tensor:
    """Return exact tables for these positions, in float32 whatever the dtype of the model is."""
    plan: RotaryPlan = self.rope_xp_plans[layer_type]
    if position_ids.requires_grad:  # as in the models. no_grad around it all would take 3 us
        position_ids = position_ids.detach()
    tables = plan.tables(position_ids.to(x.device), x.dtype)
    return tables if len(tables) > 1 else tables[0]


@cached(256)
def load_rotary(kind: type) -> type:
    """Return a class of rotary modules whose tables are those of their plans."""
    return _classes.rotary_class(kind, "forward", PLANS, _forward, load_rotary)


@torch.no_grad()
def set_plans(module: torch.nn.Module, plans: RotaryPlans, trusting: bool) -> None:
    """Give a module its plans; if the configuration is trusted, also new float32 buffers."""
    setattr(module, PLANS, plans)
    if not trusting:
        return
    for key, buffer in list(module.named_buffers(recurse=False)):
        if key.endswith("inv_freq") and not buffer.is_meta:
            rope = plans[_rotary.layer_type(key)].rope
            frequencies = torch.from_numpy(_rotary.series(rope, len(buffer)))
            setattr(module, key, frequencies.to(buffer.device, torch.float32))


@dataclass(frozen=True)
class PatchOptions:
    """How to patch a module."""

    length: int | None = None
    rotation: bool = True
    """Whether functions of rope_xp read its tables, and not the model's own."""
    trusting: bool = False
    """Whether buffers may differ from the configuration."""
    strict: bool = True
    """Whether tables may not differ from those of the configuration."""


def build_plans(name: str, module: torch.nn.Module, options: PatchOptions) -> RotaryPlans:
    """Return the plan of each layer type, after a comparison with the module's own tables.

    Raises
    ------
    RopeError
        If the configuration cannot be read, or differs from the module's buffers or tables.
    """
    try:
        return {
            label: _build_plan(module, label, buffer, options)
            for label, buffer in _rotary.frequency_buffers(module).items()
        }
    except RopeError as error:
        where = f"{name or 'the model'} ({type(module).__name__})"
        raise RopeError(f"cannot patch {where}: {error}") from error


def _build_plan(
    module: torch.nn.Module, label: str | None, buffer: torch.Tensor, options: PatchOptions
) -> RotaryPlan:
    ropes = _rotary.configured_ropes(module, label)
    if (
        len(ropes) > 1
    ):  # transformers < 5: a module for each layer type, which does not know its own
        ropes = [rope for rope in ropes if _has_frequencies(buffer, rope)]
    if len(ropes) != 1:  # of one module for all layers, some may not rotate
        raise RopeError(f"its configuration has no RoPE for {label!r}")
    (rope,) = ropes
    if options.length is None and isinstance(rope.scaling, DynamicNTK):
        msg = (
            "the frequencies of DynamicNTK change while a context grows, and cached keys do not "
            "follow; fix them by patch(model, length=n)"
        )
        raise RopeError(msg)
    first, *rest = _rotary.regimes(rope)
    if not options.trusting:  # of either regime: the last call may have written to the buffer
        _check_frequencies([first, *rest], buffer)
    factor = _rotary.own_attention_factor(module, label)
    if abs(rope.attention_factor - factor) > _FREQUENCIES:
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
    if any(_has_frequencies(buffer, rope) for rope in ropes):
        return
    expected = torch.from_numpy(_rotary.series(ropes[-1], len(buffer)))
    msg = (
        f"its configuration says the frequencies {expected[:3].tolist()} ..., its buffer holds "
        f"{buffer[:3].tolist()} ..."
    )
    raise RopeError(msg)


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
    fresh = _with_series(module, label, _rotary.series(rope, size))
    named = _rotary.label_argument(label)

    def compute(dtype: torch.dtype) -> Tables:
        try:
            tables = type(module).forward(fresh, torch.zeros(1, dtype=dtype), positions, **named)
        except _rotary.FAILURES as error:
            msg = f"its forward fails for {_TOKENS} positions on a CPU: {error}"
            raise RopeError(msg) from error
        return tables if isinstance(tables, tuple) else (tables,)

    pairs, theirs = _rotary.rotated_pairs(rope, size), compute(torch.float32)
    ropes = [rope]
    if positions.ndim == 3:  # transformers < 5 has tables of each component to select from
        ropes.append(replace(rope, position_axes=None))
    candidates = [
        RotaryPlan(rope, None, 0, pairs, form, leading)
        for rope, form, leading in itertools.product(ropes, _formats.FORMATS, (False, True))
    ]
    errors = [_largest_error(p.tables(positions, torch.float32), theirs) for p in candidates]
    error, plan = min(zip(errors, candidates, strict=True), key=lambda candidate: candidate[0])
    if error > (_TABLES if options.strict else sys.float_info.max):
        raise RopeError(f"its tables are not those of {rope}")
    if options.rotation:
        return plan
    follows = compute(torch.bfloat16)[0].dtype == torch.bfloat16
    return replace(plan, rounding="as x" if follows else "float32")


def _with_series(
    module: torch.nn.Module, label: str | None, frequencies: NDArray[np.float64]
) -> torch.nn.Module:
    """Return a copy of a module on the CPU with these frequencies in float32."""
    copied, buffers = copy.copy(module), dict(module.named_buffers(recurse=False))
    for key in buffers:
        if key.endswith("inv_freq") and _rotary.layer_type(key) == label:
            buffers[key] = torch.from_numpy(frequencies).float()
    vars(copied)["_buffers"] = {k: b if b.is_meta else b.cpu() for k, b in buffers.items()}
    return copied


def _largest_error(ours: Tables, theirs: Tables) -> float:
    """Return the largest difference of tables; infinity if shapes differ or there is a NaN."""
    if [table.shape for table in ours] != [table.shape for table in theirs]:
        return math.inf
    error = max(float((a - b).abs().max()) for a, b in zip(ours, theirs, strict=True))
    return math.inf if math.isnan(error) else error
