"""Check the rotary modules of a model: their buffers, and their tables of positions."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from rope_xp._core.errors import RopeError
from rope_xp.integrations import _formats, _plans, _rotary
from rope_xp.integrations._check_config import POSITIONS, Finding, compute_effect
from rope_xp.rope import RoPE
from rope_xp.testing import _rounding, _rules
from rope_xp.testing._box import Complex, Floats

_FIX = (
    "Load the model again if its configuration is wrong; else give it to "
    "patch(model, trust='config'), which rebuilds them"
)
_TABLES = ("cos_cached", "sin_cached", "cos_sin_cache", "freqs_cis", "cos", "sin")
# transformers computes powers, quotients and products in float32: a few units of 6e-8.
_CLOSE = 2e-6


def check_rotary_modules(model: torch.nn.Module) -> Iterator[Finding]:
    for name, module in model.named_modules():
        yield from _check_tables(name, module)
        if hasattr(module, _plans.PLANS):  # patched: it does not read its buffers
            continue
        buffers = _rotary.named_frequencies(module)
        findings = [f for key, b in buffers.items() for f in _check_buffer(name, module, key, b)]
        yield from findings
        if buffers and not findings:
            yield from _check_attention_factor(name, module)
            yield from _check_forward(name, module)


def _configured_ropes(module: torch.nn.Module, label: str | None) -> list[RoPE]:
    """Return the ropes of a layer type; none if the configuration cannot be read."""
    try:
        return _rotary.configured_ropes(module, label)
    except RopeError:
        return []


def _expected_frequencies(module: torch.nn.Module, key: str, size: int) -> list[Floats]:
    """Return the frequencies that a buffer may hold: the configuration's and a new module's."""
    expected: list[Floats] = []
    for rope in _configured_ropes(module, _rotary.layer_type(key)):
        with contextlib.suppress(RopeError):  # such as lists of LongRoPE for another head
            expected += [_rotary.series(regime, size) for regime in _rotary.regimes(rope)]
    # The class may need other arguments, or may not compute on a CPU.
    with contextlib.suppress(*_rotary.FAILURES), torch.device("cpu"):
        new: Any = type(module)
        buffer = getattr(new(module.config), key)
        if not buffer.is_meta and buffer.shape == (size,):
            expected.append(_to_numpy(buffer))
    return expected


def _to_numpy(x: torch.Tensor) -> Floats:
    return np.asarray(x.detach().double().cpu())


def _check_buffer(
    name: str, module: torch.nn.Module, key: str, buffer: torch.Tensor
) -> Iterator[Finding]:
    """Yield the first finding of a buffer."""
    path = f"{name}.{key}" if name else key
    if buffer.is_meta:
        what = "it is on the meta device: no file holds it, and to_empty does not initialise it"
        fix = "Rebuild the module after to_empty, or patch the model with trust='config'"
        yield Finding("warning", path, "meta", what, None, fix)
        return
    expected = _expected_frequencies(module, key, buffer.shape[-1]) if buffer.ndim == 1 else []
    values = _to_numpy(buffer)
    if fault := next(_find_faults(values, buffer.dtype, expected), None):
        effect = compute_effect(values, expected[0]) if expected else None
        fix = _FIX if expected else "Set it to base ** (-2 i / r) in float32"
        yield Finding("error", path, *fault, effect, fix)


def _find_faults(
    values: Floats, dtype: torch.dtype, expected: list[Floats]
) -> Iterator[tuple[str, str]]:
    """Yield the kind of a buffer's fault, and a sentence; the first is the cause."""
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
    if not np.isfinite(values).all():
        yield "not finite", "it holds numbers that are not finite"
    if not values.any() and all(right.any() for right in expected):
        yield "zero", "it holds zeros, so nothing is rotated"
    if eps > 1e-6 and any(_is_near(values, right, 4 * eps) for right in expected or [values]):
        yield "cast", f"it was cast to {_name_dtype(dtype)}"
    if any(_is_near(values, right, _CLOSE) for right in expected):
        return
    for name, cast in _rounding.NARROW.items():
        if expected and _is_near(values, cast(expected[0]), _CLOSE):
            yield "rounded", f"it is rounded to {name}, as if the model had once been cast to it"
    shown = f"[{', '.join(f'{v:.4g}' for v in values[:3])}, ...]"
    if (values < 0).any() or (values > 100).any() or values.max() < 1e-20:
        yield "uninitialised", f"it holds numbers that cannot be frequencies: {shown}"
    if expected:
        series = _rules.FrequencySeries(values, np.zeros_like(values))
        if known := _rules.find_nearest(series, plain=True):
            base, scaling = known
            shown = f"the frequencies of base {base:g}" + (f" and {scaling}" if scaling else "")
        right = ", ".join(f"{v:.4g}" for v in expected[0][:3])
        what = f"it holds {shown}, but the configuration says [{right}, ...]"
        yield "unlike the configuration", what


def _is_near(values: Floats, expected: Floats, close: float) -> bool:
    return values.shape == expected.shape and np.allclose(values, expected, rtol=close, atol=1e-12)


def _name_dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _check_tables(name: str, module: torch.nn.Module) -> Iterator[Finding]:
    """Yield findings of tables of cos and sin: in 16 bits, or not finite."""
    for path, table in module.named_buffers(name, recurse=False):
        if not path.endswith(_TABLES) or table.is_meta:
            continue
        if table.dtype in (torch.bfloat16, torch.float16):
            rounding = float(torch.finfo(table.dtype).eps) / 2
            what = f"the table was cast to {_name_dtype(table.dtype)}, which rounds cos and sin"
            effect = dict.fromkeys(POSITIONS, rounding)
            yield Finding("warning", path, "tables cast", what, effect, "Keep it in float32")
        elif not torch.isfinite(table).all():
            what = "the table holds numbers that are not finite"
            effect = dict.fromkeys(POSITIONS, 2.0)
            yield Finding("error", path, "not finite", what, effect, "Build it again")


def _check_attention_factor(name: str, module: torch.nn.Module) -> Iterator[Finding]:
    for label in _rotary.frequency_buffers(module):
        ropes = _configured_ropes(module, label)
        own_factor = _rotary.own_attention_factor(module, label)
        if len(ropes) != 1 or not isinstance(own_factor, float | int):
            continue
        factor = ropes[0].attention_factor
        if (error := abs(factor - own_factor)) > 1e-5:
            what = f"its attention_scaling is {own_factor:g}, but the configuration says {factor:g}"
            effect = dict.fromkeys(POSITIONS, error)
            yield Finding("error", name, "attention factor", what, effect, _FIX)


def _check_forward(name: str, module: torch.nn.Module) -> Iterator[Finding]:
    """Yield findings of cos and sin at large positions, as the module computes them here."""
    with torch.device("cpu"):
        try:
            plans = _plans.build_plans(name, module, _plans.PatchOptions(strict=False))
        except RopeError:  # its tables have no format that is known here
            return
    copied = copy.deepcopy(module)  # as scaling that depends on the length writes to buffers
    device = next(module.buffers()).device
    for label, plan in plans.items():
        for is_autocast in (False, True):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=is_autocast):
                cause, effect = _compare_tables(copied, plan, label, device)
            if cause and is_autocast:
                what = f"autocast to bfloat16 reaches the angles: {cause}"
                fix = "Disable autocast in its forward, or patch the model"
                yield Finding("warning", name, "autocast", what, effect, fix)
            elif cause:
                what = f"angles are wrong on {device} as computed here: {cause}"
                fix = "Compute them in float32, without TF32 and outside autocast, or patch it"
                yield Finding("error", name, "angles", what, effect, fix)
                break


def _compare_tables(
    module: Any, plan: _plans.RotaryPlan, label: str | None, device: torch.device
) -> tuple[str, dict[int, float]]:
    """Return why tables are off by more than float32 explains, "" if they are not, and how far."""
    numbers = sorted({0, 1, 257, 1023, *(POSITIONS if plan.beyond is None else ())})
    ids = _rotary.probe_positions(plan.rope, numbers, step=0)

    def read(tables: Any) -> Complex:
        cos, sin = _formats.read(tables if isinstance(tables, tuple) else (tables,), plan.form)
        turns = _to_numpy(cos) + 1j * _to_numpy(sin)
        return np.asarray(turns.reshape(-1, len(numbers), turns.shape[-1])[0])

    try:
        with torch.no_grad():
            x = torch.zeros(1, device=device)
            turns = read(module(x, ids.to(device), **_rotary.label_argument(label)))
        exact = read(plan.tables(ids, torch.float64))
    except (RopeError, *_rotary.FAILURES):  # what cannot be compared is not off
        return "", {}
    positions, frequencies = np.array(numbers, float), plan.rope.frequencies(2 * plan.pairs)
    if not turns.shape == exact.shape == (len(numbers), len(frequencies)):
        return "", {}
    errors = np.abs(turns - exact)
    angles = np.abs(np.multiply.outer(positions, frequencies))
    beyond = ~(errors <= 1e-5 + _rounding.PRODUCT * angles)
    largest = np.nan_to_num(errors, nan=2.0).max(axis=1)
    effect = {p: float(e) for p, e in zip(numbers, largest, strict=True) if p in POSITIONS}
    if not beyond.any():
        return "", effect
    cause = _rounding.find_cause(turns, positions, frequencies, plan.rope.attention_factor, beyond)
    first = int(positions[beyond.any(axis=1)][0])
    return cause or f"off from position {first} on", effect
