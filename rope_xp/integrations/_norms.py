"""RMSNorms of q and k in patched models, which the rotation that follows computes."""

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from rope_xp._core.caches import cached
from rope_xp._core.errors import RopeError, rewording
from rope_xp.integrations import _classes, _formats, _methods, _rotary
from rope_xp.norm import QKNorm

_NAME = re.compile(r"(q|k|query|key)_(layer)?norm|norm_(added_)?[qk]")


class Unnormalized:
    """What a norm returns for the rotation that follows. Any other use of it normalizes it."""

    def __init__(self, x: torch.Tensor, norm: QKNorm) -> None:
        self.x, self.norm = x, norm

    def transpose(self, *axes: int) -> "Unnormalized":
        return Unnormalized(self.x.transpose(*axes), self.norm)

    def normalize(self) -> torch.Tensor:
        dtype, norm = torch.promote_types(self.x.dtype, torch.float32), self.norm
        x, weight = self.x.to(dtype), norm.q_weight.to(dtype) + norm.offset
        return torch.nn.functional.rms_norm(x, weight.shape, weight, norm.eps).to(self.x.dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # which copies and pickles look up before there is an x
            raise AttributeError(name)
        return getattr(self.normalize(), name)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.normalize()[index]

    def __mul__(self, other: Any) -> torch.Tensor:
        return torch.mul(self.normalize(), other)

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], _: Any, arguments: Any = (), named: Any = None
    ) -> Any:
        named = {name: normalize(x) for name, x in (named or {}).items()}
        return function(*normalize(arguments), **named)


def normalize(x: Any) -> Any:
    """Compute the norm of an array, and those among arrays in lists and tuples."""
    if isinstance(x, Unnormalized):
        return x.normalize()
    return tuple([normalize(y) for y in x]) if type(x) in (list, tuple) else x


def split_norm(arrays: Sequence[Any]) -> tuple[tuple[Any, ...], QKNorm | None]:
    """Return one tensor or two to rotate, and the norm that the rotation computes."""
    norms = [x.norm for x in arrays if type(x) is Unnormalized]
    if len(norms) < len(arrays) or len({(norm.eps, norm.offset) for norm in norms}) != 1:
        return tuple([normalize(x) for x in arrays]), None
    return tuple([x.x for x in arrays]), replace(norms[0], k_weight=norms[-1].q_weight)


def find_norms(model: torch.nn.Module, includes: Callable[..., Any]) -> dict[str, type]:
    """Return classes for norms of q and k, by name, where ``includes(name, parent)`` is true."""
    modules = dict(model.named_modules())
    names = [path for path in modules if _NAME.fullmatch(path.rpartition(".")[2])]
    norms = {}
    for path in names:
        norm, parent = modules[path], modules[path.rpartition(".")[0]]
        if includes(path, parent):
            what = f"cannot fuse {path} ({type(norm).__name__}) with the rotation: "
            with rewording(_rotary.FAILURES, what, "; use norm=False"):
                _methods.check_order(type(parent), _NAME)
                norms[path] = load_norm(type(norm), *_read_norm(parent, norm))
    if not norms:
        reason = "no layer normalizes q and k before rotating them"
        if names:
            reason = f"rope_xp does not know what happens between {names[0]} and the rotation"
        raise RopeError(f"cannot fuse a norm of {type(model).__name__}: {reason}; use norm=False")
    return norms


def _read_norm(parent: Any, norm: Any) -> tuple[str, float]:
    """Return the attribute that holds eps, and what is added to weights, of a head's RMSNorm."""
    if any(True for _ in norm.children()):
        raise RopeError(
            "it contains other modules, as those of peft and parametrized ones do; patch the model "
            "before they are added"
        )
    head_dim = getattr(parent, "head_dim", None) or parent.inner_dim // parent.heads
    shape, twin = tuple(norm.weight.shape), copy.copy(norm)
    if shape != (head_dim,):
        raise RopeError(f"the norm spans heads: its weight has shape {shape}, not ({head_dim},)")
    x, weight = torch.randn(2, head_dim, generator=torch.Generator().manual_seed(0))
    vars(twin)["_parameters"] = {name: weight for name, _ in norm.named_parameters()}
    eps = "variance_epsilon" if hasattr(norm, "variance_epsilon") else "eps"
    for offset in (0.0, 1.0):
        ours = Unnormalized(x, QKNorm(weight, eps=getattr(norm, eps), offset=offset)).normalize()
        if _formats.scaled_error(ours, type(norm).forward(twin, x)) <= 1:
            return eps, offset
    raise RopeError("it is no RMSNorm")


@cached(256)
def load_norm(kind: type, eps: str, offset: float) -> type:
    def forward(self: Any, x: torch.Tensor) -> Unnormalized:
        # A view keeps the weight, which sharding may free at the end of this module's forward.
        weight = self.weight.view_as(self.weight)
        return Unnormalized(x, QKNorm(weight, eps=getattr(self, eps), offset=offset))

    return _classes.build_subclass(kind, {"forward": forward}, load_norm, (kind, eps, offset))
