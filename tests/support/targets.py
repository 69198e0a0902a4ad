"""The one table of tested backends: how to make their arrays, run on them and read them back."""

import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pytest
from rope_xp_backends import numpy as numpy_glue

import rope_xp
from rope_xp._bench import targets
from rope_xp._core.path import Path
from support import cuda_on_cpu

ALL_FLOATS = ("float16", "bfloat16", "float32", "float64")


def numpy_dtype(name: str) -> np.dtype:
    """Return a dtype by name; bfloat16 is ml_dtypes'."""
    if name == "bfloat16":
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16)
    return np.dtype(name)


def _run_compiled(function: Callable[..., Any], *arrays: Any, backend: str = "aot_eager") -> Any:
    torch = importlib.import_module("torch")
    # Each case tests tracing; code generation has tests of its own, as it is slow.
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)(*arrays)


def _run_jitted(function: Callable[..., Any], *arrays: Any) -> Any:
    return importlib.import_module("jax").jit(function)(*arrays)


def _put_mlx(x: np.ndarray) -> Any:
    mx = importlib.import_module("mlx.core")
    if x.dtype.name == "bfloat16":  # of ml_dtypes, which mlx does not read
        return mx.array(x.astype(np.float32)).astype(mx.bfloat16)
    return mx.array(x.copy(), getattr(mx, x.dtype.name.replace("bool", "bool_")))


def _fetch_mlx(x: Any) -> np.ndarray:
    mx = importlib.import_module("mlx.core")
    if x.dtype == mx.bfloat16:
        return np.asarray(x.astype(mx.float32)).astype(numpy_dtype("bfloat16"))
    return np.array(x)


def _list_mlx_floats() -> tuple[str, ...]:
    """Leave out float64, whose constants mlx before 0.32.4 rounds to float32."""
    if importlib.util.find_spec("mlx") is None:
        return ALL_FLOATS
    version = [int(n) for n in importlib.metadata.version("mlx").split(".")[:3]]
    return tuple(n for n in ALL_FLOATS if n != "float64" or version >= [0, 32, 4])


def _put_read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.setflags(write=False)
    return x


def _fetch_strict(x: Any) -> np.ndarray:
    xp = importlib.import_module("array_api_strict")
    return np.asarray(x.to_device(xp.Device("CPU_DEVICE")))


def _strict(device: str) -> dict[str, Any]:
    def put(x: np.ndarray) -> Any:
        xp = importlib.import_module("array_api_strict")
        return xp.asarray(x.copy(), device=xp.Device(device))

    return {"module": "array_api_strict", "put": put, "fetch": _fetch_strict, "floats": STRICT}


@dataclass(frozen=True)
class Target:
    """One row: a library, its device, a path, and how far its results may lie from numpy's."""

    name: str
    module: str  # the library, which must be importable
    on: str = ""  # its target in rope_xp._bench.targets, unless it has put and fetch
    put: Callable[[np.ndarray], Any] | None = None
    fetch: Callable[[Any], np.ndarray] = np.asarray
    run: Callable[..., Any] = lambda function, *arrays: function(*arrays)  # or jits, compiles
    floats: tuple[str, ...] = ALL_FLOATS
    ulps: int = 0  # distance to numpy's result, in ulp of max(|x1|, |x2|)
    gpu: bool = False
    path: str | None = None  # which is forced in all calls of a test but those of truth
    needs: str | None = None  # a second module that must be importable
    lent: Path | None = None  # the path, where numpy has it for the tests alone
    decline_reason: Callable[[], str | None] = lambda: None
    set_up: Callable[[], AbstractContextManager[Any]] = nullcontext  # of each test
    compiles: bool = False  # each case anew, so that the short suite runs some of them
    truncates: bool = False  # bfloat16 by the interpreter, which is one step away at most

    def __str__(self) -> str:
        return self.name

    def make(self, x: np.ndarray) -> Any:
        """Return a numpy array as one of the target."""
        return self.put(x) if self.put else targets.find(self.on).put(x)

    def back(self, x: Any) -> np.ndarray:
        """Return an array of the target as one of numpy."""
        return self.fetch(x) if self.put else targets.find(self.on).fetch(x)


# XLA and the compilers of GPUs fuse x1 * cos - x2 * sin into one multiply-add, which rounds once
# less than numpy: at most one step, of 2 ulp where the result lies in the next binade.
FUSED = 2

CUPY_FLOATS = ("float16", "float32", "float64")
STRICT = ("float32", "float64")  # the standard has neither 16-bit float


def _forbid_rank_promotion() -> AbstractContextManager[Any]:
    """Have jax refuse what programs may have it refuse: axes that broadcast implicitly."""
    return importlib.import_module("jax").numpy_rank_promotion("raise")


JAX = {
    "floats": ("float16", "bfloat16", "float32"),  # without x64
    "ulps": FUSED,
    "set_up": _forbid_rank_promotion,
    "compiles": True,
}
NATIVE_MODULE = "rope_xp_backends.cpu._native"
NATIVE = {"path": "native", "needs": NATIVE_MODULE}
TRITON = {"path": "triton", "needs": "triton"}
CUDA = {"lent": cuda_on_cpu.PATH, "decline_reason": cuda_on_cpu.decline_reason}
COMPILED = {"run": _run_compiled, "compiles": True}
# Of plain operations, aot_eager tests torch alone.
TRACED = {"run": partial(_run_compiled, backend="eager"), "compiles": True}
GPU = {"ulps": FUSED, "gpu": True}

TARGETS = (
    Target("numpy", "numpy", put=_put_read_only),
    Target("numpy-portable", "numpy", put=np.copy, path="portable"),
    Target("numpy-chunked", "numpy", put=np.copy, path="chunked"),
    Target("numpy-native", "numpy", put=np.copy, **NATIVE),
    Target("numpy-cuda", "numpy", put=np.copy, path="cuda", needs="nvidia", **CUDA),
    Target("array-api-strict", **_strict("CPU_DEVICE")),
    Target("array-api-strict:device1", **_strict("device1")),
    Target("torch", "torch", "torch:cpu", path="portable"),
    Target("torch-native", "torch", "torch:cpu", **NATIVE),
    Target("torch-compile", "torch", "torch:cpu", path="portable", **TRACED),
    Target("torch-compile-native", "torch", "torch:cpu", **COMPILED, **NATIVE),
    Target("jax", "jax", "jax:cpu", **JAX),
    Target("jax-jit", "jax", "jax:cpu", run=_run_jitted, **JAX),
    Target("mlx", "mlx", put=_put_mlx, fetch=_fetch_mlx, floats=_list_mlx_floats()),
    Target("dask", "dask", "dask:cpu", compiles=True),
    Target("dask-portable", "dask", "dask:cpu", path="portable", compiles=True),
    Target("torch:gpu", "torch", "torch:gpu", path="portable", **GPU),
    Target("torch-triton:gpu", "torch", "torch:gpu", **GPU, **TRITON),
    Target("jax:gpu", "jax", "jax:gpu", run=_run_jitted, **JAX | GPU),
    Target("cupy", "cupy", "cupy:gpu", path="cuda", **GPU),
    Target("cupy-portable", "cupy", "cupy:gpu", path="portable", **GPU, floats=CUPY_FLOATS),
)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
"""Whether this process tests Triton's kernel, and nothing else, interpreted by numpy."""

# The path of torch's operator around kernels in this process.
KERNELS, COMPILER = ("triton", "triton") if INTERPRETED else ("native", NATIVE_MODULE)

if INTERPRETED:
    TARGETS = (
        Target("torch-triton", "torch", "torch:cpu", truncates=True, compiles=True, **TRITON),
    )


def give_cpu_to_triton() -> None:
    """Have tensors of the CPU take the path of GPUs, for an interpreter or a stand-in to run."""
    from rope_xp_backends.torch import gpu as _gpu
    from rope_xp_backends.torch import library, op

    library.DEVICES.add("cpu")
    op.RUNS["cpu"] = _gpu.rotate_on_gpu


def truth(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what a function returns on the portable path, which others are tested against."""
    with rope_xp.use_path("portable"):
        return function(*arguments, **options)


@contextmanager
def lent(path: Path | None) -> Iterator[None]:
    """Have numpy offer a path besides its own."""
    with pytest.MonkeyPatch.context() as patch:
        if path:
            patch.setattr(numpy_glue.BACKEND, "paths", (*numpy_glue.BACKEND.paths, path))
        yield


def namespace(target: Target) -> Any:
    """Return the functions of the array API standard for arrays of a target."""
    spelled = {"jax": "jax.numpy", "mlx": "mlx.core"}
    return importlib.import_module(spelled.get(target.module, target.module))


@lru_cache
def missing(target: Target) -> str | None:
    """Return why a backend cannot be tested here, None if it can."""
    for module in (target.module, target.needs):
        if module is not None and importlib.util.find_spec(module) is None:
            return f"{module} is not installed"
    device = targets.find(target.on) if target.gpu else None
    return device if isinstance(device, str) else target.decline_reason()


def rows(names: tuple[str, ...] = ()) -> list[object]:
    """Return tested backends, those of the given names or all, as parameters of a test."""
    chosen = [t for t in TARGETS if not names or t.name in names]
    return [pytest.param(t, marks=[pytest.mark.gpu] if t.gpu else [], id=t.name) for t in chosen]
