"""mlx: lazy arrays that belong to no device, as operations do and memory is shared."""

from typing import Any

import mlx.core as mx
import numpy as np

from rope_xp._core.versions import check_version
from rope_xp._dispatch.backend import Backend

check_version("mlx")
_TENTH = mx.multiply(mx.array(1.0, mx.float64), 0.1, stream=mx.cpu)
_HAS_EXACT_CONSTANTS: bool = _TENTH.item() == 0.1


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
            x, dtype = x.copy("C"), dtype or getattr(mx, x.dtype.name.replace("bool", "bool_"))
        return mx.array(x, dtype)

    @staticmethod
    def full_like(x: mx.array, value: float) -> mx.array:
        """Fill as mlx below 0.32 does, which has no full_like."""
        return mx.full(x.shape, value, x.dtype)

    @staticmethod
    def trunc(x: mx.array) -> mx.array:
        """Round towards zero, for which older versions have no function."""
        return mx.where(x < 0, mx.ceil(x), mx.floor(x))

    @staticmethod
    def searchsorted(x: mx.array, values: mx.array, *, side: str = "left") -> mx.array:
        """Count smaller numbers where mlx is older than 0.32.1 and has no searchsorted."""
        if hasattr(mx, "searchsorted"):
            return mx.searchsorted(x, values, side=side)
        below = x <= values[..., None] if side == "right" else x < values[..., None]
        return below.sum(-1)

    @staticmethod
    def arange(
        start: int, stop: int | None = None, step: int = 1, *, dtype: mx.Dtype = mx.int32, **_: Any
    ) -> mx.array:
        """Ignore ``device``."""
        start, stop = (0, start) if stop is None else (start, stop)
        return mx.arange(start, stop, step, dtype=dtype)


class Mlx(Backend):
    """The glue of mlx."""

    out_refusal = "mlx arrays are values; use the result, mx.compile reuses the memory of inputs"

    def device(self, x: mx.array) -> None:
        """Return None, as arrays belong to no device."""

    def dtype_name(self, x: mx.array) -> str:
        """Return no known name for float64 where its constants are rounded to float32."""
        name = super().dtype_name(x)
        return name if name != "float64" or _HAS_EXACT_CONSTANTS else "float64, not exact"

    def unreadable_reason(self, x: mx.array) -> str | None:
        if x.dtype != mx.float64:
            return None
        return "float64, whose constants this mlx rounds to float32; update mlx to 0.32.4"

    def cumulative_sum(self, x: mx.array, axis: int) -> mx.array:
        return mx.cumsum(x, axis=axis)

    def take_rows(self, table: mx.array, indices: mx.array) -> mx.array:
        """Stop derivatives at indices, where those of mlx are an error."""
        return super().take_rows(table, mx.stop_gradient(indices))  # type: ignore[no-any-return]  # as table

    def stop_gradient(self, x: mx.array) -> mx.array:
        return mx.stop_gradient(x)

    def has_float64(self, x: mx.array) -> bool:
        """Return whether operations run on a CPU; Apple's GPUs have no float64."""
        return _HAS_EXACT_CONSTANTS and mx.default_device().type == mx.DeviceType.cpu


BACKEND = Mlx("mlx", _MlxNamespace())
