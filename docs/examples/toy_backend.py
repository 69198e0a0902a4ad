"""A backend for a library outside the array API standard: toylib, whose arrays are numpy in a box.

A package registers its backend in pyproject.toml:

    [project.entry-points."rope_xp.backends"]
    toylib = "toy_backend:BACKEND"
"""

import sys
import tempfile
from dataclasses import replace
from pathlib import Path as File

import numpy as np

import rope_xp
from rope_xp.backend import Backend, Call, Path, run


class Array:
    """An array of toylib. It has a shape and a dtype, and no device and no namespace."""

    def __init__(self, data: np.ndarray) -> None:
        self.data, self.shape, self.dtype = data, data.shape, data.dtype


class Toylib(Backend):
    """Its tables, and integer positions, are plain numpy arrays."""

    numpy_dtypes = True  # x.dtype is a dtype of numpy
    runs_portable = False  # numpy's operations do not take the arrays
    out_refusal = "toylib cannot write into an array"

    def recognises(self, x: object) -> bool:
        return isinstance(x, Array)

    def device(self, x: Array) -> None:
        return None  # there is only one

    def asarray(self, host: np.ndarray, device: None) -> np.ndarray:
        return host

    def host_view(self, positions: Array) -> np.ndarray:
        return positions.data


class Unwrap(Path):
    """Takes the arrays out of their boxes, for the portable path to rotate with numpy."""

    name = "unwrap"
    normalizes = True  # it takes calls with norm=

    def run(self, call: Call) -> tuple[Array, ...]:
        arrays = tuple(x.data for x in call.arrays)
        weights = tuple(None if w is None else w.data for w in call.weights)
        return tuple(Array(y) for y in run(replace(call, arrays=arrays, weights=weights)))


BACKEND = Toylib("toylib", np, (Unwrap(),))


def register(folder: str) -> None:
    """Register the backend in this process, by the files that pip writes for a package."""
    info = File(folder) / "toylib-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: toylib\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rope_xp.backends]\ntoylib = {__name__}:BACKEND\n")
    sys.path.append(folder)


def main() -> None:
    rng = np.random.default_rng(0)
    q = rng.standard_normal((1, 6, 8, 64), dtype=np.float32)
    k = rng.standard_normal((1, 6, 2, 64), dtype=np.float32)
    positions = 1_000_000 + np.arange(6)
    rope = rope_xp.RoPE(layout="half")
    expected = rope.apply(q, k, positions)
    with tempfile.TemporaryDirectory() as folder:
        register(folder)
        rotated = rope.apply(Array(q), Array(k), Array(positions))
        sys.path.remove(folder)
    for y, whole in zip(rotated, expected, strict=True):
        np.testing.assert_allclose(y.data, whole, rtol=0, atol=1e-6)
    print(rope_xp.explain(Array(q), Array(k)))


if __name__ == "__main__":
    main()
