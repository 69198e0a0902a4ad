"""Libraries and devices to run on: what info, demo and benchmarks need beside a backend.

A *target* is spelled "library:device", as in "torch:cpu" or "jax:gpu". "gpu" stands for whatever
accelerator the library calls its current one. Importing this module imports no framework.
"""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import Library

NAMES = ("numpy:cpu", "torch:cpu", "torch:gpu", "jax:cpu", "jax:gpu", "cupy:gpu", "dask:cpu")
"""Every target, whatever is installed."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class Target:
    """A library on one device."""

    name: str
    """As in :data:`NAMES`."""
    backend: Backend
    put: Callable[[np.ndarray], Array]
    """From a numpy array to an array of the library on the device."""
    fetch: Callable[[Array], np.ndarray]
    """From such an array to a numpy array."""
    copy: Callable[[Array], Array]
    """From such an array to a new one with the same elements."""
    wait: Callable[[Array], object]
    """Returns once an array given to it has been computed."""

    @property
    def library(self) -> str:
        """The part of the name before the colon."""
        return self.name.partition(":")[0]


def load(library: Library) -> Backend | str:
    """Return the backend of a library, or why there is none."""
    if importlib.util.find_spec(library.name) is None:
        return f"not installed (pip install 'rope-xp[{library.extra}]')"
    return _attempt(library.load)


def find(name: str) -> Target | str:
    """Return a target by its name, or why there is none."""
    # Here, where the benchmarks of this tree can have an older library's table in its place.
    from rope_xp._dispatch.find import libraries

    wanted = name.partition(":")[0]
    library = next((library for library in libraries if library.name == wanted), None)
    if library is None:  # of an older library, whose table is shorter
        return f"this rope_xp has no backend for {wanted}"
    backend = load(library)
    if isinstance(backend, str):
        return backend
    return _attempt(lambda: _MAKERS[name](name, backend))


def devices(library: Library) -> list[str] | str:
    """Return the devices that a library finds, in its own words, or why it finds none."""
    return _attempt(lambda: _devices(library.name) or "no device found")


def _attempt(action: Callable[[], Result]) -> Result | str:
    """Return the result, or what is wrong with a library that is installed but does not work.

    Besides ImportError that is OSError for a shared library that is absent, RuntimeError for a
    driver or a jaxlib that does not fit, and in jax an AssertionError without a message where
    JAX_PLATFORMS names a platform that is absent.
    """
    try:
        return action()
    except (ImportError, OSError, RuntimeError, AssertionError) as error:
        return f"broken: {' '.join(str(error).split()) or type(error).__name__}"


def _numpy(name: str, backend: Backend) -> Target:
    return Target(name, backend, np.asarray, np.asarray, np.copy, _return)


def _return(x: Array) -> Array:
    return x


def _torch(name: str, backend: Backend) -> Target | str:
    torch = importlib.import_module("torch")
    device = torch.device("cpu")
    wait: Callable[[Array], object] = _return
    if name.endswith(":gpu"):
        if not torch.accelerator.is_available():
            return "no accelerator found"
        device = torch.accelerator.current_accelerator()

        def wait(x: Array) -> object:
            return torch.accelerator.synchronize(x.device)

    def put(host: np.ndarray) -> Array:
        if host.dtype.name == "bfloat16":
            # torch reads no ml_dtypes; the bits are the same.
            return torch.tensor(host.view(np.int16)).view(torch.bfloat16).to(device)
        return torch.tensor(np.ascontiguousarray(host), device=device)

    def fetch(x: Array) -> np.ndarray:
        x = x.detach().cpu().contiguous()
        if x.dtype == torch.bfloat16:
            bfloat16 = importlib.import_module("ml_dtypes").bfloat16
            return np.asarray(x.view(torch.int16).numpy().view(bfloat16))
        return np.asarray(x.numpy())

    return Target(name, backend, put, fetch, torch.clone, wait)


def _jax(name: str, backend: Backend) -> Target | str:
    jax = importlib.import_module("jax")
    device = jax.devices()[0]
    if name.endswith(":cpu"):
        device = jax.devices("cpu")[0]
    elif device.platform == "cpu":
        return "no accelerator found"
    return Target(
        name,
        backend,
        lambda host: jax.device_put(host, device),
        np.asarray,
        jax.numpy.copy,
        jax.block_until_ready,
    )


def _cupy(name: str, backend: Backend) -> Target | str:
    cupy = importlib.import_module("cupy")
    if not cupy.cuda.is_available():
        return "no accelerator found"
    return Target(
        name,
        backend,
        cupy.asarray,
        cupy.asnumpy,
        cupy.copy,
        lambda _: cupy.cuda.get_current_stream().synchronize(),
    )


def _dask(name: str, backend: Backend) -> Target:
    da = importlib.import_module("dask.array")

    def put(host: np.ndarray) -> Array:
        # Tokens lie first or second: two chunks, of unequal lengths, along either.
        return da.from_array(
            host,
            chunks=tuple(max(2 * n // 3, 1) for n in host.shape[:2]) + (-1,) * len(host.shape[2:]),
        )

    def compute(x: Array) -> np.ndarray:
        return np.asarray(x.compute())

    return Target(name, backend, put, compute, lambda x: x.map_blocks(np.copy), compute)


_MAKERS: dict[str, Callable[[str, Backend], Target | str]] = {
    "numpy:cpu": _numpy,
    "torch:cpu": _torch,
    "torch:gpu": _torch,
    "jax:cpu": _jax,
    "jax:gpu": _jax,
    "cupy:gpu": _cupy,
    "dask:cpu": _dask,
}


def _devices(library: str) -> list[str]:
    module = importlib.import_module(library)
    if library == "torch":
        found = ["cpu"]
        if module.accelerator.is_available():
            kind = module.accelerator.current_accelerator().type
            found += [f"{kind}:{i}" for i in range(module.accelerator.device_count())]
        return found
    if library == "jax":
        return [f"{d.platform}:{d.id} ({d.device_kind})" for d in module.devices()]
    if library == "cupy":
        if not module.cuda.is_available():
            return []
        return [f"cuda:{i}" for i in range(module.cuda.runtime.getDeviceCount())]
    return ["cpu"]
