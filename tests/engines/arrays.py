"""Arrays of the libraries that engines compute with, from and to numpy."""

from collections.abc import Callable
from typing import Any

import numpy as np


def put(library: str, x: np.ndarray, dtype: str) -> Any:
    """Return an array of a library."""
    match library:
        case "torch":
            import torch

            return torch.tensor(x, dtype=getattr(torch, dtype))
        case "jax":
            import jax.numpy as jnp

            return jnp.asarray(x, dtype)
        case "mlx":
            import mlx.core as mx

            return mx.array(x.astype(np.float32)).astype(getattr(mx, dtype))
    if dtype != "float32":
        raise TypeError(f"numpy has no {dtype}")
    return x.astype(np.float32)


def read(x: Any) -> np.ndarray:
    """Return the values of an array in float64."""
    if hasattr(x, "detach") and hasattr(x, "cpu"):
        return x.detach().double().numpy()
    if type(x).__module__.startswith("mlx"):
        import mlx.core as mx

        return np.asarray(x.astype(mx.float32), np.float64)
    return np.asarray(x, np.float64)


def differentiate(
    library: str, rotate: Callable[..., Any], given: list[Any], weights: list[np.ndarray]
) -> list[np.ndarray] | None:
    """Return the gradients of sum(weight * result); None if a library has none."""
    cotangents = [put(library, w, "float32") for w in weights]
    match library:
        case "torch":
            inputs = [x.requires_grad_() for x in given]
            # A copy, as some rotate in place, which a leaf forbids.
            results = rotate(*(x.clone() for x in inputs))
            if not all(y.requires_grad for y in results):
                return None
            sum((y * w).sum() for y, w in zip(results, cotangents, strict=True)).backward()
            return [read(x.grad) for x in inputs]
        case "jax":
            import jax

            return [read(g) for g in jax.vjp(rotate, *given)[1](tuple(cotangents))]
        case "mlx":
            import mlx.core as mx

            return [read(g) for g in mx.vjp(rotate, given, cotangents)[1]]
    return None
