"""mlx: lazy arrays that belong to no device, as operations do and memory is shared."""

from typing import Any

import mlx.core as mx
import numpy as np

from rope_xp._core.versions import check_version
from rope_xp._dispatch.backend import Backend

check_version("mlx")


class _MlxNamespace:
    """mlx.core, which lacks some arguments of the standard."""

    __name__ = "mlx.core"

    def __getattr__(self, name: str) -> Any:
        return getattr(mx, name)

    @staticmethod
    def astype(x: mx.array, dtype: mx.Dtype, **_: Any) -> mx.array:
        """Ignore ``copy``: values never change."""
        return x.astype(dtype)

    @staticmethod
    def asarray(x: Any, *, dtype: Any = None, **_: Any) -> mx.array:
        """Keep the dtype of numpy arrays, float64 too, and take strides that are negative."""
        if isinstance(x, np.ndarray):
            x, dtype = x.copy("C"), dtype or getattr(mx, x.dtype.name)
        return mx.array(x, dtype)

    @staticmethod
    def full_like(x: mx.array, value: float) -> mx.array:
        """Fill as mlx below 0.32 does, which has no full_like."""
        return mx.full(x.shape, value, x.dtype)

    @staticmethod
    def searchsorted(x: mx.array, values: mx.array, *, side: str = "left") -> mx.array:
        """Count smaller numbers, as mlx below 0.32 has no searchsorted."""
        below = x <= values[..., None] if side == "right" else x < values[..., None]
        return below.sum(-1)

    @staticmethod
    def arange(n: int, *, dtype: mx.Dtype, **_: Any) -> mx.array:
        """Ignore ``device``."""
        return mx.arange(n, dtype=dtype)


class Mlx(Backend):
    """The glue of mlx."""

    out_refusal = "mlx arrays are values; use the result, mx.compile reuses the memory of inputs"

    def device(self, x: mx.array) -> None:
        """Return None, as arrays belong to no device."""

    def stop_gradient(self, x: mx.array) -> mx.array:
        """Stop derivatives."""
        return mx.stop_gradient(x)

    def has_float64(self, x: mx.array) -> bool:
        """Return whether operations run on a CPU; Apple's GPUs have no float64."""
        return mx.default_device().type == mx.DeviceType.cpu


BACKEND = Mlx("mlx", _MlxNamespace())
