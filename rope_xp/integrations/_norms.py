"""RMSNorms of q and k in patched models, which the rotation that follows computes."""

import copy
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError
from rope_xp._dispatch.norm import QKNorm
from rope_xp.integrations import _classes, _formats, _methods, _rotary

_NAME = re.compile(r"(q|k|query|key)_(layer)?norm|norm_(added_)?[qk]")


class DeferredNorm(NamedTuple):
    """What a norm returns for the rotation. Other functions must normalize it."""

    x: torch.Tensor
    weight: torch.Tensor
    eps: float
    offset: float

    def transpose(self, *axes: int) -> "DeferredNorm":
        return self._replace(x=self.x.transpose(*axes))

    def normalize(self) -> torch.Tensor:
        dtype = torch.promote_types(self.x.dtype, torch.float32)
        x, weight = self.x.to(dtype), self.weight.to(dtype) + self.offset
        return torch.nn.functional.rms_norm(x, weight.shape, weight, self.eps).to(self.x.dtype)


def normalize(arrays: Iterable[Any]) -> tuple[Any, ...]:
    return tuple([x.normalize() if isinstance(x, DeferredNorm) else x for x in arrays])


def split_norm(arrays: Sequence[Any]) -> tuple[tuple[Any, ...], QKNorm | None]:
    """Return one tensor or two to rotate, and the norm that the rotation computes."""
    if not all(type(x) is DeferredNorm and x[2:] == arrays[0][2:] for x in arrays) or not arrays:
        return normalize(arrays), None
    q, k = arrays[0], arrays[-1]
    return tuple([x.x for x in arrays]), QKNorm(q.weight, k.weight, q.eps, q.offset)


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
        ours = DeferredNorm(x, weight, eps, offset).normalize()
        if _formats.scaled_error(ours, type(norm).forward(twin, x)) <= 1:
            return eps, offset
    raise RopeError("it is no RMSNorm")


@cached(256)
def load_norm(kind: type, eps: float, offset: float) -> type:
    def forward(self: Any, x: torch.Tensor) -> DeferredNorm:
        return DeferredNorm(x, self.weight, eps, offset)

    return _classes.build_subclass(kind, {"forward": forward}, load_norm, (kind, eps, offset))
