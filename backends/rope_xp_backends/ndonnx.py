"""ndonnx, whose arrays build an ONNX graph: lengths and values may be unknown until it runs."""

from typing import Any

import ndonnx
import numpy as np
from spox.opset.ai.onnx import v21 as op

from rope_xp._core.versions import check_version
from rope_xp._dispatch.backend import Backend

check_version("ndonnx")


class _Namespace:
    """ndonnx, with a reshape that takes axes of unknown length."""

    __name__ = "ndonnx"

    def __getattr__(self, name: str) -> Any:
        return getattr(ndonnx, name)

    @staticmethod
    def reshape(x: ndonnx.Array, shape: tuple[int | None, ...]) -> ndonnx.Array:
        """Accept None for an axis that keeps its length, which is 0 in ONNX."""
        known = tuple(n for n in shape if n is not None)
        if len(known) == len(shape):
            return ndonnx.reshape(x, known)
        lengths = op.const(np.array([0 if n is None else n for n in shape], np.int64))
        return ndonnx.asarray(op.reshape(x.unwrap_spox(), lengths))


class Ndonnx(Backend):
    """The glue of ndonnx. It has one device, and indices of 64 bits alone."""

    out_refusal = "an array of ndonnx is a value in a graph, and no memory; use what is returned"

    def device(self, x: ndonnx.Array) -> None:
        """Return None, as there is only one."""

    def asarray(self, host: np.ndarray, device: None) -> ndonnx.Array:
        return ndonnx.asarray(host)

    def slots_refusal(self, x: ndonnx.Array, axis: int) -> str | None:
        return "is not for graphs of ndonnx; rotate k, and write it by ONNX's TensorScatter"

    def axis_length(self, x: ndonnx.Array, axis: int) -> ndonnx.Array:
        return x.dynamic_shape[axis]

    def arange(self, n: int | ndonnx.Array, device: None) -> ndonnx.Array:
        return ndonnx.arange(n, dtype=ndonnx.int64)

    def take_rows(self, table: ndonnx.Array, indices: ndonnx.Array) -> ndonnx.Array:
        """Gather without a reshape, which could not split an unknown length again."""
        indices = ndonnx.astype(indices, ndonnx.int64, copy=False)
        rows = op.gather(table.unwrap_spox(), indices.unwrap_spox(), axis=0)  # type: ignore[attr-defined]  # spox has it, and does not say so
        return ndonnx.asarray(rows)


BACKEND = Ndonnx("ndonnx", _Namespace())
