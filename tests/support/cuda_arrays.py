"""Arrays that the kernel for GPUs rotates on the CPU, and what was launched for them."""

import numpy as np
from rope_xp_backends.gpu.cuda_plan import CudaKey

from support import cuda_on_cpu
from support.targets import numpy_dtype


def sample(rng: np.random.Generator, *shape: int, dtype: str = "float32") -> np.ndarray:
    return rng.standard_normal(shape).astype(numpy_dtype(dtype))


def placed(x: np.ndarray, alignment: int) -> np.ndarray:
    """Return a copy whose address this power of two divides, and no greater one."""
    buffer = np.empty(x.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 32 + alignment
    copy = buffer[start : start + x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


def keys_of_last_call() -> list[CudaKey]:
    return [launch.key for launch in cuda_on_cpu.PATH.ran]
