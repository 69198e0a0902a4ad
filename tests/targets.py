"""The one table of tested backends: how to make their arrays, run on them and read them back."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ALL_FLOATS = ("float16", "bfloat16", "float32", "float64")


def numpy_dtype(name: str) -> np.dtype:
    """Return a dtype by name; bfloat16 is ml_dtypes'."""
    if name == "bfloat16":
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return np.dtype(name)


def _eager(function: Callable[..., Any], *arrays: Any) -> Any:
    return function(*arrays)


def _same(x: np.ndarray) -> np.ndarray:
    return x.copy()


def _read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.setflags(write=False)
    return x


def _strict(x: np.ndarray, device: str = "CPU_DEVICE") -> Any:
    xp = importlib.import_module("array_api_strict")
    return xp.asarray(x.copy(), device=xp.Device(device))


def _strict_back(x: Any) -> np.ndarray:
    xp = importlib.import_module("array_api_strict")
    return np.asarray(x.to_device(xp.Device("CPU_DEVICE")))


def _torch(x: np.ndarray, device: str = "cpu") -> Any:
    torch = importlib.import_module("torch")
    if x.dtype.name == "bfloat16":
        # torch reads no ml_dtypes; the bits are the same.
        return torch.tensor(x.view(np.int16)).view(torch.bfloat16).to(device)
    return torch.tensor(np.ascontiguousarray(x), device=device)


def _torch_back(x: Any) -> np.ndarray:
    torch = importlib.import_module("torch")
    x = x.detach().cpu()
    if x.dtype == torch.bfloat16:
        return x.contiguous().view(torch.int16).numpy().view(numpy_dtype("bfloat16"))
    return x.numpy()


def _torch_compiled(function: Callable[..., Any], *arrays: Any) -> Any:
    torch = importlib.import_module("torch")
    # Tracing is what is tested in every case; code generation has tests of its own, as it is slow.
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")(*arrays)


def _jax(x: np.ndarray) -> Any:
    return importlib.import_module("jax.numpy").asarray(x)


def _jitted(function: Callable[..., Any], *arrays: Any) -> Any:
    return importlib.import_module("jax").jit(function)(*arrays)


def _cupy(x: np.ndarray) -> Any:
    return importlib.import_module("cupy").asarray(x)


def _cupy_back(x: Any) -> np.ndarray:
    return importlib.import_module("cupy").asnumpy(x)


@dataclass(frozen=True)
class Target:
    """One row."""

    name: str
    module: str
    """What must be importable."""
    make: Callable[[np.ndarray], Any]
    back: Callable[[Any], np.ndarray] = np.asarray
    run: Callable[..., Any] = _eager
    """Calls a function of arrays: plainly, jitted or compiled."""
    floats: tuple[str, ...] = ALL_FLOATS
    ulps: int = 0
    """Distance to numpy's result, in ulp of max(|x1|, |x2|). 0: the same bits."""
    writes: bool = True
    """Whether out= works."""
    gpu: bool = False
    marks: tuple[Any, ...] = field(default=())

    def __str__(self) -> str:
        return self.name


# XLA fuses x1 * cos - x2 * sin into one multiply-add, which rounds once less than numpy.
FUSED = 2

# The standard knows neither 16-bit float.
_STRICT_FLOATS = ("float32", "float64")

TARGETS = (
    Target("numpy", "numpy", _same),
    Target("numpy-readonly", "numpy", _read_only, writes=False),
    Target(
        "array-api-strict",
        "array_api_strict",
        _strict,
        _strict_back,
        floats=_STRICT_FLOATS,
    ),
    Target(
        "array-api-strict:device1",
        "array_api_strict",
        lambda x: _strict(x, "device1"),
        _strict_back,
        floats=_STRICT_FLOATS,
    ),
    Target("torch", "torch", _torch, _torch_back),
    Target("torch-compile", "torch", _torch, _torch_back, _torch_compiled),
    # Without x64, jax has no float64 to speak of.
    Target("jax", "jax", _jax, floats=ALL_FLOATS[:3], ulps=FUSED, writes=False),
    Target("jax-jit", "jax", _jax, np.asarray, _jitted, ALL_FLOATS[:3], FUSED, writes=False),
    # A GPU fuses multiply-add, as its compilers like.
    Target("torch:cuda", "torch", lambda x: _torch(x, "cuda"), _torch_back, ulps=FUSED, gpu=True),
    Target("jax:gpu", "jax", _jax, np.asarray, _jitted, ALL_FLOATS[:3], FUSED, False, gpu=True),
    Target(
        "cupy",
        "cupy",
        _cupy,
        _cupy_back,
        floats=("float16", "float32", "float64"),
        ulps=FUSED,
        gpu=True,
    ),
)


def missing(target: Target) -> str | None:
    """Return why a backend cannot be tested here, None if it can."""
    if importlib.util.find_spec(target.module) is None:
        return f"{target.module} is not installed"
    if target.gpu and not _has_gpu(target.module):
        return f"{target.module} finds no GPU"
    return None


def _has_gpu(module: str) -> bool:
    library = importlib.import_module(module)
    if module == "torch":
        return bool(library.cuda.is_available())
    if module == "cupy":
        return bool(library.is_available())
    return any(device.platform in ("gpu", "cuda", "rocm") for device in library.devices())
