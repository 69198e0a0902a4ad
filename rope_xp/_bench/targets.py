"""Find the libraries and devices that info, demo and benchmarks run on.

A *target* is spelled "library:device", as in "torch:cpu" or "jax:gpu". "gpu" stands for whatever
accelerator the library calls its current one. Importing this module imports no framework.
"""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import Library

NAMES = ("numpy:cpu", "torch:cpu", "torch:gpu", "jax:cpu", "jax:gpu", "cupy:gpu", "dask:cpu")
"""The targets of asv's history, whatever is installed."""
ALL_NAMES = (*NAMES, "mlx:cpu", "mlx:gpu")
_NO_ACCELERATOR = "no accelerator found"
Result = TypeVar("Result")


@dataclass(frozen=True)
class Target:
    """A library on one device."""

    name: str
    backend: Backend
    put: Callable[[np.ndarray], Array]  # copies an array of numpy to the device
    fetch: Callable[[Array], np.ndarray]  # copies one back
    copy: Callable[[Array], Array]  # makes a new array of the library
    wait: Callable[[Array], object]  # returns once an array has been computed

    @property
    def library(self) -> str:
        return self.name.partition(":")[0]


def load(library: Library) -> Backend | str:
    """Return the backend of a library, or why there is none."""
    if importlib.util.find_spec(library.name) is None:
        return f"not installed (pip install {library.extra})"
    return _attempt(library.load)


def find(name: str) -> Target | str:
    """Return a target by its name, or why there is none."""
    # Imported late: asv_benchmarks may first put an older library's table in its place.
    from rope_xp._dispatch.find import libraries

    library_name = name.partition(":")[0]
    library = next((library for library in libraries if library.name == library_name), None)
    if library is None:  # the table of an older rope_xp is shorter
        return f"this rope_xp has no backend for {library_name}"
    backend = load(library)
    if isinstance(backend, str):
        return backend
    return _attempt(lambda: _BUILDERS[library_name](name, backend))


def list_devices(library: Library) -> list[str] | str:
    """Return the devices of a library by its own names, or why there is none."""
    return _attempt(lambda: _name_devices(library.name) or "no device found")


def _attempt(action: Callable[[], Result]) -> Result | str:
    """Return the result, or why a library that is installed does not work."""
    # A missing shared library raises OSError, a driver or a jaxlib of another version RuntimeError,
    # and jax an AssertionError without a message where JAX_PLATFORMS names a missing platform.
    try:
        return action()
    except (ImportError, OSError, RuntimeError, AssertionError) as error:
        return f"broken: {' '.join(str(error).split()) or type(error).__name__}"


def _build_torch(name: str, backend: Backend) -> Target | str:
    torch = importlib.import_module("torch")
    device = torch.device("cpu")
    if name.endswith(":gpu"):
        if not torch.accelerator.is_available():
            return _NO_ACCELERATOR
        device = torch.accelerator.current_accelerator()

    def wait(x: Array) -> object:
        return x if x.device.type == "cpu" else torch.accelerator.synchronize(x.device)

    def put(host: np.ndarray) -> Array:
        if host.dtype.name == "bfloat16":
            # torch cannot read ml_dtypes, but has the same bits.
            return torch.tensor(host.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.tensor(np.ascontiguousarray(host), device=device)

    def fetch(x: Array) -> np.ndarray:
        x = x.detach().cpu().contiguous()
        if x.dtype == torch.bfloat16:
            bfloat16 = importlib.import_module("ml_dtypes").bfloat16
            return np.asarray(x.view(torch.int16).numpy().view(bfloat16))
        return np.asarray(x.numpy())

    return Target(name, backend, put, fetch, torch.clone, wait)


def _build_jax(name: str, backend: Backend) -> Target | str:
    jax = importlib.import_module("jax")
    device = jax.devices("cpu" if name.endswith(":cpu") else None)[0]
    if name.endswith(":gpu") and device.platform == "cpu":
        return _NO_ACCELERATOR
    put = partial(jax.device_put, device=device)
    return Target(name, backend, put, np.asarray, jax.numpy.copy, jax.block_until_ready)


def _build_cupy(name: str, backend: Backend) -> Target | str:
    cupy = importlib.import_module("cupy")
    if not cupy.cuda.is_available():
        return _NO_ACCELERATOR
    methods = (cupy.asarray, cupy.asnumpy, cupy.copy)
    return Target(name, backend, *methods, lambda _: cupy.cuda.get_current_stream().synchronize())


def _build_dask(name: str, backend: Backend) -> Target:
    da = importlib.import_module("dask.array")

    def put(host: np.ndarray) -> Array:
        # Tokens are the first or second axis: split either into two unequal chunks.
        chunks = tuple(max(2 * n // 3, 1) for n in host.shape[:2])
        return da.from_array(host, chunks=chunks + (-1,) * len(host.shape[2:]))

    def compute(x: Array) -> np.ndarray:
        return np.asarray(x.compute())

    return Target(name, backend, put, compute, lambda x: x.map_blocks(np.copy), compute)


def _build_mlx(name: str, backend: Backend) -> Target | str:
    mx = importlib.import_module("mlx.core")
    kind = mx.default_device().type.name
    if name != f"mlx:{kind}":
        return _NO_ACCELERATOR if kind == "cpu" else "not mlx's default device"
    return Target(name, backend, backend.xp.asarray, np.asarray, mx.abs, mx.eval)


_BUILDERS: dict[str, Callable[[str, Backend], Target | str]] = {
    "numpy": lambda name, b: Target(name, b, np.asarray, np.asarray, np.copy, lambda x: x),
    "torch": _build_torch,
    "jax": _build_jax,
    "cupy": _build_cupy,
    "dask": _build_dask,
    "mlx": _build_mlx,
}


def _name_devices(library: str) -> list[str]:
    module = importlib.import_module(library)
    if library == "jax":
        return [f"{d.platform}:{d.id} ({d.device_kind})" for d in module.devices()]
    if library == "cupy":
        count = module.cuda.runtime.getDeviceCount() if module.cuda.is_available() else 0
        return [f"cuda:{i}" for i in range(count)]
    if library != "torch" or not module.accelerator.is_available():
        return ["cpu"]
    kind = module.accelerator.current_accelerator().type
    return ["cpu", *(f"{kind}:{i}" for i in range(module.accelerator.device_count()))]
