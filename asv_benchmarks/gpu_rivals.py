"""The contenders of gpu_report in each library: functions of arrays and positions.

Those called "usual" compute their angles by the float32 formula in each call, as rope_xp computes
its own. All other rivals are handed cos and sin, made beforehand, as their models make them. The
packages are optional: what cannot be imported is missing by name, with what to carry there.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import rope_xp
from rope_xp._bench import formulas
from rope_xp._bench.inputs import BASE
from rope_xp._bench.targets import Target
from rope_xp._core.typing import Array

from .gpu_attempt import Failed, attempt

Arrays = tuple[Array, ...]
Function = Callable[[Arrays, Array], Arrays]
"""From q and k, or one array alone, and positions."""
Maker = Callable[[Array, Arrays], Function]
"""Makes a function for some positions and arrays. What it computes beforehand is not timed."""
ROPE = rope_xp.RoPE(base=BASE, layout="half")

US, IN_PLACE, ANGLES, IN_JIT, COMPILED = (
    *("rope_xp", "rope_xp in place", "rope_xp given angles"),
    *("rope_xp in jit", "rope_xp compiled"),
)
OURS = (US, IN_PLACE, ANGLES, IN_JIT, COMPILED)
USUAL, USUAL_COMPILED = "usual", "usual compiled"
APPLY, APPLY_COMPILED = "HF apply", "HF apply compiled"
LIGER, FLASH, QUACK, FLASHINFER, ROTARY_EMB = (
    *("liger", "flash-attn", "quack"),
    "flashinfer",
    "rotary_emb",
)


class Contender(NamedTuple):
    """A function that rotates, and what it can do."""

    make: Maker
    alone: bool = False
    """Whether it takes one array as well as two."""
    in_place: bool = False
    gradient: bool = True


class Rival(NamedTuple):
    """Somebody else's function, in a package that may be absent."""

    module: str
    name: str
    adapt: Callable[[Any, Target, Array, Arrays], Function]
    carry: str
    in_place: bool = False
    gradient: bool = True


def ours(target: Target) -> dict[str, Contender]:
    """Return the ways to call rope_xp, none of which needs a package besides the library."""
    found = {US: Contender(lambda *_: _ours, alone=True)}
    if target.library == "jax":
        found[IN_JIT] = Contender(lambda *_: _in_jit(), alone=True)
    else:
        found[IN_PLACE] = Contender(lambda *_: _ours_in_place, True, in_place=True, gradient=False)
        found[ANGLES] = Contender(_given_angles, alone=True)
    return found


def contenders(target: Target, compile_too: bool) -> tuple[dict[str, Contender], dict[str, str]]:
    """Return ours and what others run on a target, and why the rest is missing."""
    found = ours(target) | {USUAL: Contender(lambda *_: _usual(target), alone=True)}
    missing: dict[str, str] = {}
    if target.library != "torch":
        return found, missing
    for name, rival in RIVALS.items():
        function = attempt(lambda r=rival: getattr(importlib.import_module(r.module), r.name))
        if isinstance(function, Failed):
            missing[name] = f"{function}; carry {rival.carry}"
        else:
            found[name] = Contender(
                lambda p, a, rival=rival, function=function: rival.adapt(function, target, p, a),
                in_place=rival.in_place,
                gradient=rival.gradient,
            )
    for name, of in ((COMPILED, US), (USUAL_COMPILED, USUAL), (APPLY_COMPILED, APPLY)):
        if not compile_too:
            missing[name] = "left out by --no-compile"
        elif of in found:
            found[name] = found[of]._replace(make=_compiled(found[of].make))
    return found, missing


# --- rope_xp -------------------------------------------------------------------------------------


def _ours(arrays: Arrays, positions: Array) -> Arrays:
    if len(arrays) == 1:
        return (ROPE.rotate(arrays[0], positions),)
    return ROPE.apply(*arrays, positions)


def _ours_in_place(arrays: Arrays, positions: Array) -> Arrays:
    if len(arrays) == 1:
        return (ROPE.rotate(arrays[0], positions, out=arrays[0]),)
    return ROPE.apply(*arrays, positions, out=arrays)


def _given_angles(positions: Array, arrays: Arrays) -> Function:
    angles = ROPE.at(positions, like=arrays[0])

    def function(arrays: Arrays, _: Array) -> Arrays:
        return (angles.rotate(*arrays),) if len(arrays) == 1 else angles.apply(*arrays)

    return function


def _in_jit() -> Function:
    return importlib.import_module("jax").jit(_ours)


# --- what others run -----------------------------------------------------------------------------


def _usual(target: Target) -> Function:
    xp = target.backend.xp

    def function(arrays: Arrays, positions: Array) -> Arrays:
        cos, sin = formulas.usual_cos_sin(xp, positions, arrays[0].shape[-1], BASE)
        return tuple(formulas.usual_apply_tables(xp, x, cos, sin) for x in arrays)

    return importlib.import_module("jax").jit(function) if target.library == "jax" else function


def _compiled(make: Maker) -> Maker:
    def compiled(positions: Array, arrays: Arrays) -> Function:
        torch = importlib.import_module("torch")
        return torch.compile(make(positions, arrays), dynamic=False)

    return compiled


def forget_compiled(target: Target) -> None:
    """Forget what was compiled for other shapes, as torch keeps eight of a function.

    Once for all contenders: none may throw away what another has compiled for the same shapes.
    """
    if target.library == "torch":
        importlib.import_module("torch").compiler.reset()


def tables(target: Target, positions: Array, arrays: Arrays) -> tuple[Array, Array]:
    """Return cos and sin as models hand them on: (batch, tokens, head_dim), in the dtype of q."""
    xp = target.backend.xp
    found = formulas.usual_cos_sin(xp, positions, arrays[0].shape[-1], BASE)
    cos, sin = (xp.astype(x, arrays[0].dtype) for x in found)
    return cos, sin


def _apply(rotate: Any, target: Target, positions: Array, arrays: Arrays) -> Function:
    cos, sin = tables(target, positions, arrays)
    return lambda arrays, _: tuple(rotate(*arrays, cos, sin, unsqueeze_dim=2))


def _liger(rotate: Any, target: Target, positions: Array, arrays: Arrays) -> Function:
    cos, sin = tables(target, positions, arrays)

    def function(arrays: Arrays, _: Array) -> Arrays:
        # Heads first by name and last in memory, which is what it takes without a copy.
        turned = rotate(*(x.transpose(1, 2) for x in arrays), cos, sin)
        return tuple(x.transpose(1, 2) for x in turned)

    return function


def _halves(target: Target, positions: Array, arrays: Arrays) -> tuple[Array, Array]:
    """Return cos and sin, (tokens, head_dim / 2): of one sequence, as all count alike here."""
    half = arrays[0].shape[-1] // 2
    cos, sin = (x[0, :, :half].contiguous() for x in tables(target, positions, arrays))
    return cos, sin


def _each(rotate: Any, target: Target, positions: Array, arrays: Arrays) -> Function:
    """Hand over q, then k: flash-attn and quack take one array a launch."""
    cos, sin = _halves(target, positions, arrays)
    return lambda arrays, _: tuple(rotate(x, cos, sin) for x in arrays)


def _rotary_emb(rotate: Any, target: Target, positions: Array, arrays: Arrays) -> Function:
    """Hand over halves of x and of its result, which it fills."""
    torch = importlib.import_module("torch")
    cos, sin = (x[:, None] for x in _halves(target, positions, arrays))
    half = cos.shape[-1]

    def one(x: Array) -> Array:
        out = torch.empty_like(x)
        ends = x[..., :half], x[..., half:], cos, sin, out[..., :half], out[..., half:]
        rotate(*ends, False)  # no conjugate
        return out

    return lambda arrays, _: tuple(one(x) for x in arrays)


def _flashinfer(rotate: Any, target: Target, positions: Array, arrays: Arrays) -> Function:
    """Hand over packed tokens, rows of a cache in float32, and which row each token reads."""
    torch = importlib.import_module("torch")
    head_dim = arrays[0].shape[-1]
    cos, sin = formulas.usual_cos_sin(target.backend.xp, positions[0], head_dim, BASE)
    half = head_dim // 2
    cache = torch.cat([cos[:, :half], sin[:, :half]], dim=-1)
    rows = torch.arange(positions.shape[1], dtype=torch.int32, device=positions.device)
    rows = rows.repeat(positions.shape[0])

    def function(arrays: Arrays, _: Array) -> Arrays:
        packed = (x.flatten(0, 1).flatten(1) for x in arrays)
        turned = rotate(rows, *packed, head_dim, cache)  # of halves, unless told otherwise
        return tuple(y.view(x.shape) for x, y in zip(arrays, turned, strict=True))

    return function


RIVALS = {
    APPLY: Rival(
        *("transformers.models.llama.modeling_llama", "apply_rotary_pos_emb", _apply),
        "the wheel of transformers",
    ),
    LIGER: Rival(
        *("liger_kernel.transformers.rope", "liger_rotary_pos_emb", _liger),
        "the wheel of liger-kernel, which needs nothing else",
        in_place=True,
    ),
    FLASH: Rival(
        *("flash_attn.layers.rotary", "apply_rotary_emb", _each),
        "flash_attn/layers and flash_attn/ops of its repository, without flash_attn/__init__.py",
    ),
    QUACK: Rival(
        *("quack.rotary", "apply_rotary_emb", _each),
        "the wheels of quack-kernels, nvidia-cutlass-dsl, apache-tvm-ffi and torch-c-dlpack-ext",
    ),
    FLASHINFER: Rival(
        *("flashinfer.rope", "apply_rope_with_cos_sin_cache", _flashinfer),
        "the wheels of flashinfer-python 0.5.3 and apache-tvm-ffi; nvcc and ninja build the rest",
        gradient=False,
    ),
    ROTARY_EMB: Rival(
        *("rotary_emb", "apply_rotary", _rotary_emb),
        "csrc/rotary of flash-attn 2, which kernels-community/rotary began as, and build it there",
        gradient=False,
    ),
}


# --- what they are measured against --------------------------------------------------------------


def flat_copy(target: Target, arrays: Arrays) -> Callable[[], Arrays]:
    """Return one copy of as many bytes, side by side in memory: the most that a device can do."""
    xp = target.backend.xp
    return copies(target, (xp.concat([xp.reshape(x, (-1,)) for x in arrays]),))


def copies(target: Target, arrays: Arrays) -> Callable[[], Arrays]:
    """Return a copy of arrays into given memory, in jax into new memory."""
    if target.library == "jax":
        copy_all = importlib.import_module("jax").jit(lambda xs: tuple(target.copy(x) for x in xs))
        return lambda: copy_all(arrays)
    out = tuple(target.copy(x) for x in arrays)

    def copy() -> Arrays:
        for to, x in zip(out, arrays, strict=True):
            target.backend.write(to, x)
        return out

    return copy


def forward_and_backward(
    target: Target, function: Function, arrays: Arrays, positions: Array
) -> Callable[[], Arrays] | None:
    """Return a call forward and its gradient in the arrays, None where a library has none."""
    if target.library == "torch":
        torch = importlib.import_module("torch")
        own = tuple(x.detach().clone().requires_grad_() for x in arrays)
        given = tuple(map(target.copy, arrays))  # Liger writes over gradients too

        def call() -> Arrays:
            return torch.autograd.grad(function(own, positions), own, given)

        return call
    if target.library != "jax":
        return None
    jax = importlib.import_module("jax")

    @jax.jit
    def both(arrays: Arrays, positions: Array) -> Arrays:
        results, pull = jax.vjp(lambda arrays: function(arrays, positions), arrays)
        return (*results, *pull(arrays)[0])

    return lambda: both(arrays, positions)
