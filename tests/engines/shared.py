"""What adapters share: the forms of positions that engines take, and options of scalings."""

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import HEAD_DIM, Rotation

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, LongRoPE, YaRN


def both(rotate: Callable[..., Any], axes: str = "bhsd") -> Rotation:
    """Return the rotation of q and k by rotate(x, positions), of arrays with some axes."""
    if axes == "bhsd":
        return lambda q, k, p: (rotate(q, p), rotate(k, p))
    return lambda q, k, p: tuple(rotate(x.swapaxes(1, 2), p).swapaxes(1, 2) for x in (q, k))


def get_starts(p: np.ndarray) -> np.ndarray:
    """Return the first positions of batch entries, after a check that all others follow."""
    if (p - p[:, :1] != np.arange(p.shape[1])).any():
        raise ValueError("it takes an offset, and positions are consecutive")
    return p[:, 0]


def flatten(call: Callable[..., Any]) -> Rotation:
    """Return the rotation by call(q, k, positions), of arrays (tokens, heads, head_dim)."""
    import torch

    def rotate(q: Any, k: Any, p: np.ndarray) -> Any:
        flat = (x.swapaxes(1, 2).flatten(0, 1) for x in (q, k))
        results = call(*flat, torch.as_tensor(p).flatten())
        return [y.reshape(len(q), q.shape[2], -1, HEAD_DIM).swapaxes(1, 2) for y in results]

    return rotate


def get_factor(rope: RoPE) -> float:
    return getattr(rope.scaling, "factor", 1.0)


_TYPES = {type(None): "default", Linear: "linear", Llama3: "llama3", YaRN: "yarn"}
_TYPES |= {LongRoPE: "longrope"}
_FIELDS = ("factor", "low_freq_factor", "high_freq_factor", "short_factor", "long_factor",
           "original_max_position_embeddings")  # fmt: skip


def describe(rope: RoPE) -> dict[str, Any]:
    """Return the rope_scaling of a configuration of Hugging Face."""
    values = {name: getattr(rope.scaling, name, None) for name in _FIELDS}
    values = {n: list(x) if isinstance(x, tuple) else x for n, x in values.items() if x is not None}
    return {"rope_type": _TYPES[type(rope.scaling)], **values}


def load_alone(name: str, **stubs: dict[str, Any]) -> Any:
    """Return a module of an installed package, without what its packages import.

    ``stubs`` are modules that it imports, "__" for a dot, with what it takes from them.
    """
    package, *parts = name.split(".")
    folder = next(
        p for p in map(Path, sys.path) if (p / name.replace(".", "/")).with_suffix(".py").exists()
    )
    for full in [".".join([package, *parts[:i]]) for i in range(len(parts))]:
        module = sys.modules.setdefault(full, types.ModuleType(full))
        module.__path__ = [str(folder / full.replace(".", "/"))]
    for stub, members in stubs.items():
        full = stub.replace("__", ".")
        for i in range(full.count(".") + 1):
            parent = ".".join(full.split(".")[: i + 1])
            sys.modules.setdefault(parent, types.ModuleType(parent)).__path__ = []
        vars(sys.modules[full]).update(members)
    return importlib.import_module(name)
