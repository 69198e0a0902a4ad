"""Check that a norm fits the arrays of a call."""

from typing import Any

from rope_xp._arguments import checks
from rope_xp._core.call import Axes, NormSpec
from rope_xp._core.errors import RopeError
from rope_xp._core.numbers import same_length
from rope_xp._core.typing import Array
from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp.norm import QKNorm

NAMES = ("norm.q_weight", "norm.k_weight")


def check_norm(
    backend: Backend, arrays: tuple[Array, ...], axes: Axes, rotary_dim: int, norm: Any
) -> tuple[NormSpec | None, tuple[Array | None, ...]]:
    """Return the norm of x, or of q and k, and weights that fit them."""
    if norm is None:
        return None, ()
    if not isinstance(norm, QKNorm):
        raise TypeError(f"norm must be a rope_xp.QKNorm; got {type(norm).__name__}")
    weights, lengths = (norm.q_weight, norm.k_weight)[: len(arrays)], {}
    argument = "x" if len(arrays) == 1 else "q"
    for name, x, weight in zip(NAMES, arrays, weights, strict=False):
        if weight is None:
            continue
        owner = find.require_backend(weight, name)
        checks.check_float(owner, name, weight)
        if not checks.check_same_library_and_device(backend, argument, x, owner, name, weight):
            raise checks.different_libraries(argument, backend, name, owner)
        heads = () if axes.heads is None else (x.shape[axes.heads],)
        shapes = [(*lead, n) for n in (x.shape[-1], rotary_dim) for lead in ((), heads)]
        # Spelled without "in", as lengths may be a compiler's symbols.
        if not any(
            len(shape) == len(weight.shape) and all(map(same_length, shape, weight.shape))
            for shape in shapes
        ):
            fitting = " or ".join(map(str, dict.fromkeys(shapes)))
            raise RopeError(f"{name} has shape {tuple(weight.shape)}; it must be {fitting}")
        lengths[name] = weight.shape[-1]
    if len(lengths) == 2 and not same_length(*lengths.values()):
        msg = f"weights must normalize the same components of q and k; their lengths are {lengths}"
        raise RopeError(msg)
    over_slice = any(not same_length(n, arrays[0].shape[-1]) for n in lengths.values())
    spec = NormSpec(float(norm.eps), float(norm.offset), norm.round_between, over_slice)
    return spec, weights
