"""The table of libraries, which alone names backends.

Loaders are spelled as import statements, which torch.compile can trace.
"""

from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import Library


def _numpy() -> Backend:
    from rope_xp_backends import numpy as glue

    return glue.BACKEND


def _torch() -> Backend:
    from rope_xp_backends import torch as glue

    return glue.BACKEND


def _dtensor() -> Backend:
    from rope_xp_backends.torch import dtensor as glue

    return glue.BACKEND


def _jax() -> Backend:
    from rope_xp_backends import jax as glue

    return glue.BACKEND


def _cupy() -> Backend:
    from rope_xp_backends import cupy as glue

    return glue.BACKEND


def _ndonnx() -> Backend:
    from rope_xp_backends import ndonnx as glue

    return glue.BACKEND


def _dask() -> Backend:
    from rope_xp_backends import dask as glue

    return glue.BACKEND


def _mlx() -> Backend:
    from rope_xp_backends import mlx as glue

    return glue.BACKEND


LIBRARIES = (
    Library("numpy", (("generic", _numpy), ("ndarray", _numpy)), "", ("llvm", "chunked")),
    Library(
        "torch",
        (("distributed.tensor.DTensor", _dtensor), ("Tensor", _torch)),
        "torch",
        ("triton", "llvm"),
    ),
    Library("jax", (("Array", _jax),), "jax", ("jit-gpu", "jit")),
    Library("cupy", (("ndarray", _cupy),), "cupy-cuda13x", ("cuda",)),
    Library("mlx", (("core.array", _mlx),), "mlx", ()),
    Library("ndonnx", (("Array", _ndonnx),), "ndonnx", ()),
    Library("dask", (("array.Array", _dask),), "dask", ("blockwise",)),
)
