"""What adapters share: the forms of positions that engines take, and options of scalings."""

import importlib
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measure import HEAD_DIM, NotOfferedError, Rotation

from rope_xp import RoPE
from rope_xp.scaling import Linear, Llama3, LongRoPE, YaRN


def both(rotate: Callable[..., Any], axes: str = "bhsd") -> Rotation:
    """Return the rotation of q and k by rotate(x, positions), of arrays with some axes."""
    if axes == "bhsd":
        return lambda q, k, p: (rotate(q, p), rotate(k, p))
    return lambda q, k, p: tuple(rotate(x.swapaxes(1, 2), p).swapaxes(1, 2) for x in (q, k))


def share(p: np.ndarray) -> np.ndarray:
    """Return the positions (tokens,) of all batch entries."""
    if (p != p[0]).any():
        raise NotOfferedError("batch entries share their positions")
    return p[0]


def get_starts(p: np.ndarray) -> np.ndarray:
    """Return the first positions of batch entries."""
    if (p - p[:, :1] != np.arange(p.shape[1])).any():
        raise NotOfferedError("it takes an offset, and positions are consecutive")
    return p[:, 0]


def get_start(p: np.ndarray) -> int:
    """Return the first position of all batch entries."""
    return int(get_starts(share(p)[None])[0])


def count_from_zero(p: np.ndarray) -> None:
    """Check that positions are 0, 1, 2, ..."""
    if (p != np.arange(p.shape[1])).any():
        raise NotOfferedError("positions are 0, 1, 2, ...")


def check(rope: RoPE, *scalings: type, partial: bool = False) -> RoPE:
    """Return a rope that an engine offers; NotOfferedError otherwise."""
    if rope.scaling is not None and not isinstance(rope.scaling, scalings):
        raise NotOfferedError("no such scaling")
    if not partial and rope.rotary_dim not in (None, HEAD_DIM):
        raise NotOfferedError("it rotates whole heads")
    return rope


def describe(rope: RoPE) -> dict[str, Any]:
    """Return the rope_scaling of a configuration of Hugging Face."""
    match rope.scaling:
        case None:
            return {"rope_type": "default"}
        case Linear(factor=factor):
            return {"rope_type": "linear", "factor": factor}
        case Llama3() as s:
            names = "factor", "low_freq_factor", "high_freq_factor"
            return {"rope_type": "llama3", **{name: getattr(s, name) for name in names},
                    "original_max_position_embeddings": 8192}  # fmt: skip
        case YaRN(factor=factor):
            return {"rope_type": "yarn", "factor": factor,
                    "original_max_position_embeddings": 4096}  # fmt: skip
        case LongRoPE() as s:
            return {"rope_type": "longrope", "short_factor": list(s.short_factor),
                    "long_factor": list(s.long_factor), "factor": 32.0,
                    "original_max_position_embeddings": 4096}  # fmt: skip
    raise NotOfferedError(f"no {type(rope.scaling).__name__}")


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
