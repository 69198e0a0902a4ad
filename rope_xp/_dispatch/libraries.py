"""The table of libraries, which alone names backends."""

import sys

from rope_xp._dispatch import find
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import Library


def _load(name: str) -> Backend:
    """Import a backend, spelled as import statements, which torch.compile can trace."""
    BACKEND: Backend
    if name == "numpy":
        from rope_xp_backends.numpy import BACKEND
    elif name == "torch":
        from rope_xp_backends.torch import BACKEND
    elif name == "dtensor":
        from rope_xp_backends.torch.dtensor import BACKEND
    elif name == "jax":
        from rope_xp_backends.jax import BACKEND
    elif name == "cupy":
        from rope_xp_backends.cupy import BACKEND
    elif name == "mlx":
        from rope_xp_backends.mlx import BACKEND
    elif name == "ndonnx":
        from rope_xp_backends.ndonnx import BACKEND
    else:
        from rope_xp_backends.dask import BACKEND
    return BACKEND


_TORCH = (
    ("distributed.tensor.DTensor", lambda: _load("dtensor")),
    ("Tensor", lambda: _load("torch")),
)
_NUMPY = (("generic", lambda: _load("numpy")), ("ndarray", lambda: _load("numpy")))
LIBRARIES = (
    Library("numpy", _NUMPY, "", ("native", "chunked")),
    Library("torch", _TORCH, "torch", ("triton", "native")),
    Library("jax", (("Array", lambda: _load("jax")),), "jax", ("jit",), has_pytrees=True),
    Library("cupy", (("ndarray", lambda: _load("cupy")),), "cupy-cuda13x", ("cuda",)),
    Library("mlx", (("core.array", lambda: _load("mlx")),), "mlx", ()),
    Library("ndonnx", (("Array", lambda: _load("ndonnx")),), "ndonnx", ()),
    Library("dask", (("array.Array", lambda: _load("dask")),), "dask", ("blockwise",)),
)
find.libraries = LIBRARIES


def is_dynamo_compiling() -> bool:
    """Return whether torch.compile traces, perhaps before a tensor has loaded its backend."""
    is_compiling = find.get_attribute(sys.modules.get("torch"), "compiler.is_dynamo_compiling")
    return is_compiling is not None and is_compiling()
