"""The checks of a model's rotary modules: their buffers, and what they make of positions."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rope_xp._core.errors import RopeError
from rope_xp.integrations import _formats, _rotary
from rope_xp.integrations._findings import AT, Finding, effect
from rope_xp.rope import RoPE
from rope_xp.scaling import DynamicNTK, LongRoPE
from rope_xp.testing import _rounding, _rules
from rope_xp.testing._box import Floats

_MEND = "Give the model to patch(model, trust='config'), which makes them anew"
_TABLES = ("cos_cached", "sin_cached", "cos_sin_cache", "freqs_cis", "cos", "sin")
# transformers computes powers, quotients and products in float32: a few units of 6e-8.
_CLOSE = 2e-6


def check_rotary_modules(model: torch.nn.Module) -> Iterator[Finding]:
    """Yield what is wrong with each rotary module."""
    for name, module in model.named_modules():
        yield from _check_tables(name, module)
        if hasattr(module, _rotary.PLANS):  # patched, and its buffers are not read
            continue
        buffers = list(_frequency_buffers(module))
        wrong = [f for key, buffer in buffers for f in _check_buffer(name, module, key, buffer)]
        yield from wrong
        if buffers and not wrong:
            yield from _check_attention_factor(name, module)
            yield from _check_forward(name, module)


def _frequency_buffers(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the buffers of a module that hold frequencies, with their names."""
    for key, buffer in module.named_buffers(recurse=False):
        # The originals are read by rules that change with the length alone.
        if key.endswith("inv_freq") and ("original" not in key or _depends_on_length(module)):
            yield key, buffer


def _depends_on_length(module: torch.nn.Module) -> bool:
    return any(
        isinstance(rope.scaling, DynamicNTK | LongRoPE) for rope in _configured_ropes(module, None)
    )


def _configured_ropes(module: torch.nn.Module, label: str | None) -> list[RoPE]:
    """Return what the configuration of a module says of a layer type; nothing if it is not read."""
    try:
        return _rotary.configured_ropes(module, label)
    except RopeError:
        return []


def _expected_frequencies(module: torch.nn.Module, key: str, size: int) -> list[Floats]:
    """Return the frequencies that a buffer may hold: the configuration's, and its code's own."""
    every: list[Floats] = []
    for rope in _configured_ropes(module, _rotary.layer_type(key)):
        with contextlib.suppress(RopeError):  # such as lists of LongRoPE for another head
            every += [_rotary.series(regime, size) for regime in _rotary.regimes(rope)]
    own = _new_buffer(module, key)
    return [*every, own] if own is not None and own.shape == (size,) else every


def _new_buffer(module: torch.nn.Module, key: str) -> Floats | None:
    """Return what a new module of this class holds, None if it cannot be made."""
    config = getattr(module, "config", None)
    if config is None:
        return None
    try:
        with torch.device("cpu"):
            buffer = getattr(type(module)(config), key)
    except _rotary.FAILURES:
        return None
    return None if buffer.is_meta else _to_numpy(buffer)


def _to_numpy(x: torch.Tensor) -> Floats:
    return np.asarray(x.detach().double().cpu())


def _check_buffer(
    name: str, module: torch.nn.Module, key: str, buffer: torch.Tensor
) -> Iterator[Finding]:
    """Yield what is wrong with one buffer, at most one thing."""
    path = f"{name}.{key}" if name else key
    expected = _expected_frequencies(module, key, buffer.shape[-1]) if buffer.ndim == 1 else []
    mend = _MEND if expected else "Set it to base ** (-2 i / r) in float32"
    right = expected[0] if expected else None

    def finding(kind: str, what: str, held: Floats | None = None) -> Finding:
        effects = None if right is None or held is None else effect(held, right)
        return Finding("error", path, kind, what, effects, mend)

    if buffer.is_meta:
        what = "it is on the meta device: no file holds it, and to_empty leaves it uninitialised"
        cure = "Make the module anew after to_empty, or patch the model by trust='config'"
        yield Finding("warning", path, "meta", what, None, cure)
        return
    held = _to_numpy(buffer)
    eps = torch.finfo(buffer.dtype).eps if buffer.dtype.is_floating_point else 0.0
    if not np.isfinite(held).all():
        yield finding("not finite", "it holds numbers that are not finite", held)
    elif not held.any() and not any(not each.any() for each in expected):
        yield finding("zero", "it holds zeros, so that nothing turns", held)
    elif eps > 1e-6 and any(_is_near(held, each, 4 * eps) for each in expected or [held]):
        dtype = str(buffer.dtype).removeprefix("torch.")
        yield finding("cast", f"it was cast to {dtype}", held)
    elif expected and not any(_is_near(held, each, _CLOSE) for each in expected):
        yield finding(*_describe_mismatch(held, expected[0]), held)
    elif not expected and _is_garbage(held):
        yield finding("uninitialised", _describe_garbage(held))


def _is_near(held: Floats, expected: Floats, close: float) -> bool:
    return held.shape == expected.shape and bool(
        np.allclose(held, expected, rtol=close, atol=1e-12)
    )


def _is_garbage(held: Floats) -> bool:
    return bool((held < 0).any() or (held > 100).any() or held.max() < 1e-20)


def _describe_garbage(held: Floats) -> str:
    return f"it holds numbers that are no frequencies: {_format_values(held)}"


def _format_values(held: Floats) -> str:
    return f"[{', '.join(f'{v:.4g}' for v in held[:3])}, ...]"


def _describe_mismatch(held: Floats, expected: Floats) -> tuple[str, str]:
    """Return kind and words of frequencies that are not the expected ones."""
    for name, to in _rounding.NARROW.items():
        if _is_near(held, to(expected), _CLOSE):
            return "rounded", f"it is rounded to {name}, as if the model had been cast there once"
    if _is_garbage(held):
        return "uninitialised", _describe_garbage(held)
    known = _rules.find_nearest(_rules.FrequencySeries(held, np.zeros_like(held)), plain=True)
    if known is None:
        what = f"it holds {_format_values(held)}"
    else:
        base, rule = known
        what = f"it holds the frequencies of base {base:g}" + (f" and {rule}" if rule else "")
    return (
        "unlike the configuration",
        f"{what}, and the configuration says {_format_values(expected)}",
    )


def _check_tables(name: str, module: torch.nn.Module) -> Iterator[Finding]:
    """Yield tables of cos and sin that are of 16 bits, garbage, or on meta."""
    for key, table in module.named_buffers(recurse=False):
        if not key.endswith(_TABLES) or table.is_meta:
            continue
        path = f"{name}.{key}" if name else key
        if table.dtype in (torch.bfloat16, torch.float16):
            dtype = str(table.dtype).removeprefix("torch.")
            rounding = float(torch.finfo(table.dtype).eps) / 2
            what = f"the table was cast to {dtype}, which rounds cos and sin"
            effects = dict.fromkeys(AT, rounding)
            yield Finding("warning", path, "tables cast", what, effects, "Keep it in float32")
        elif table.numel() and not bool(
            torch.isfinite(torch.view_as_real(table) if table.is_complex() else table).all()
        ):
            what = "the table holds numbers that are not finite"
            yield Finding("error", path, "not finite", what, dict.fromkeys(AT, 2.0), "Make it anew")


def _check_attention_factor(name: str, module: torch.nn.Module) -> Iterator[Finding]:
    for label in _rotary.frequency_buffers(module):
        ropes = _configured_ropes(module, label)
        held = _rotary.held_attention_factor(module, label)
        if len(ropes) == 1 and isinstance(held, float | int):
            factor = ropes[0].attention_factor
            if abs(factor - held) > 1e-5:
                what = f"its attention_scaling is {held:g}, and the configuration says {factor:g}"
                off = dict.fromkeys(AT, abs(factor - held))
                mend = "Set it to what the configuration says, or correct that"
                yield Finding("error", name, "attention factor", what, off, mend)


# --- what forward makes --------------------------------------------------------------------------


def _check_forward(name: str, module: torch.nn.Module) -> Iterator[Finding]:
    """Yield what is wrong with cos and sin at large positions, as the module computes them here."""
    with torch.device("cpu"):
        try:
            plans = _rotary.plans(name, module, _rotary.Options(strict=False))
        except RopeError:  # its tables are of no form that is known here
            return
    copied = copy.deepcopy(module)  # as rules that depend on the length write to their buffers
    device = next(module.buffers()).device
    for label, plan in plans.items():
        plain = _compare_tables(copied, plan, label, device)
        if plain is None:
            continue
        if plain[0]:
            what = f"angles are wrong on {device} as computed here: {plain[0]}"
            mend = "Compute them in float32, without TF32 and outside of autocast, or patch"
            yield Finding("error", name, "angles", what, plain[1], mend)
            continue
        for dtype in (torch.bfloat16, torch.float16):
            with torch.autocast(device.type, dtype=dtype):
                cast = _compare_tables(copied, plan, label, device)
            if cast is not None and cast[0]:
                what = f"autocast to {str(dtype)[6:]} reaches the angles: {cast[0]}"
                mend = "Have its forward leave autocast, or patch the model"
                yield Finding("warning", name, "autocast", what, cast[1], mend)
                break


def _compare_tables(
    module: Any, plan: _rotary.Plan, label: str | None, device: torch.device
) -> tuple[str, dict[int, float]] | None:
    """Return why tables are off by more than float32 explains, "" if they are not, and how far."""
    more: dict[str, Any] = {} if label is None else {"layer_type": label}
    rows = sorted({0, 1, 257, 1023, *AT} if plan.beyond is None else {0, 1, 257, 1023})
    at = np.array(rows, float)
    positions = _rotary.probe_positions(plan.rope, rows, apart=0).to(device)
    try:
        with torch.no_grad():
            theirs = module(torch.zeros(1, device=device), positions, **more)
        theirs = theirs if isinstance(theirs, tuple) else (theirs,)
        cos, sin = (_to_numpy(t) for t in _formats.read(theirs, plan.form))
        right_cos, right_sin = (
            _to_numpy(t)
            for t in _formats.read(plan.tables(positions.cpu(), torch.float64), plan.form)
        )
    except (RopeError, *_rotary.FAILURES):
        return None
    if cos.shape != right_cos.shape:
        return None
    turns, right = (
        (c + 1j * s).reshape(-1, len(at), c.shape[-1])[0]
        for c, s in ((cos, sin), (right_cos, right_sin))
    )
    w = np.asarray(plan.rope.frequencies(2 * plan.pairs))
    if w.shape[0] != turns.shape[-1]:
        return None
    off = np.abs(turns - right)
    beyond = ~(off <= 1e-5 + _rounding.PRODUCT * np.abs(np.multiply.outer(at, w)))
    effects = {p: float(np.nan_to_num(off[rows.index(p)], nan=2.0).max()) for p in AT if p in rows}
    if not beyond.any():
        return "", effects
    factor = plan.rope.attention_factor
    why = _rounding.find_cause(turns, at, w, factor, beyond)
    return why or f"off from position {int(at[beyond.any(axis=1)][0])} on", effects
