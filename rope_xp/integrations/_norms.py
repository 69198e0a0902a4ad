"""RMSNorms of q and k in patched models, which the rotation that follows computes."""

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp._dispatch.norm import QKNorm
from rope_xp.integrations import _classes, _formats, _methods, _rotary

_NAME = re.compile(r"(q|k|query|key)_(layer)?norm|norm_(added_)?[qk]")


class Unnormalized(NamedTuple):
    """What a norm returns for the rotation. Other functions must normalize it."""

    x: torch.Tensor
    norm: QKNorm

    def transpose(self, *axes: int) -> "Unnormalized":
        return self._replace(x=self.x.transpose(*axes))

    def normalize(self) -> torch.Tensor:
        dtype, norm = torch.promote_types(self.x.dtype, torch.float32), self.norm
        x, weight = self.x.to(dtype), norm.q_weight.to(dtype) + norm.offset
        return torch.nn.functional.rms_norm(x, weight.shape, weight, norm.eps).to(self.x.dtype)


def normalize(arrays: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([x.normalize() if isinstance(x, Unnormalized) else x for x in arrays])


def split_norm(arrays: Sequence[Any]) -> tuple[tuple[Any, ...], QKNorm | None]:
    """Return one tensor or two to rotate, and the norm that the rotation computes."""
    norms = [x.norm for x in arrays if type(x) is Unnormalized]
    if len(norms) < len(arrays) or len({(norm.eps, norm.offset) for norm in norms}) != 1:
        return normalize(arrays), None
    return tuple([x.x for x in arrays]), replace(norms[0], k_weight=norms[-1].q_weight)


def find_norms(model: torch.nn.Module, includes: Callable[..., Any]) -> dict[str, type]:
    """Return classes for norms of q and k, by name, where ``includes(name, parent)`` is true."""
    norms, modules = {}, dict(model.named_modules())
    for path, norm in modules.items():
        parent = modules[path.rpartition(".")[0]]
        if _NAME.fullmatch(path.rpartition(".")[2]) and includes(path, parent):
            try:
                _methods.check_order(type(parent), _NAME)
                norms[path] = load_norm(type(norm), *_read_norm(parent, norm))
            except _rotary.FAILURES as error:
                msg = f"cannot fuse {path} ({type(norm).__name__}) with the rotation: {error}"
                raise RopeError(f"{msg}; use norm=False") from error
    if not norms:
        raise RopeError(f"norm: no layer of {type(model).__name__} normalizes what rope_xp rotates")
    return norms


def _read_norm(parent: Any, norm: Any) -> tuple[float, float]:
    """Return the eps of an RMSNorm of a head, and what is added to its weight."""
    head_dim = getattr(parent, "head_dim", None) or parent.inner_dim // parent.heads
    shape, twin = tuple(norm.weight.shape), copy.copy(norm)
    if shape != (head_dim,):
        raise RopeError(f"the norm spans heads: its weight has shape {shape}, not ({head_dim},)")
    x, weight = torch.randn(2, head_dim, generator=torch.Generator().manual_seed(0))
    vars(twin)["_parameters"] = {name: weight for name, _ in norm.named_parameters()}
    eps = float(getattr(norm, "variance_epsilon", None) or norm.eps)
    for offset in (0.0, 1.0):
        ours = Unnormalized(x, QKNorm(weight, eps=eps, offset=offset)).normalize()
        if _formats.scaled_error(ours, type(norm).forward(twin, x)) <= 1:
            return eps, offset
    raise RopeError("it is no RMSNorm")


@cached(256)
def load_norm(kind: type, eps: float, offset: float) -> type:
    def forward(self: Any, x: torch.Tensor) -> Unnormalized:
        return Unnormalized(x, QKNorm(self.weight, eps=eps, offset=offset))

    return _classes.build_subclass(kind, {"forward": forward}, load_norm, (kind, eps, offset))
