"""Loading kernels while this thread captures a CUDA graph."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_RELAXED = 2
"""CU_STREAM_CAPTURE_MODE_RELAXED."""


@contextmanager
def relaxed_capture() -> Iterator[None]:
    """Let the driver load a module, which it refuses in any other capture mode.

    Loading touches no stream, so the graph stays whole; torch allocates in captures the same way.
    """
    try:
        exchange = ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode
    except OSError:  # ROCm, Windows or no GPU: a capture there takes kernels that are loaded
        yield
        return
    mode = ctypes.c_int(_RELAXED)
    exchanged = exchange(ctypes.byref(mode)) == 0
    try:
        yield
    finally:
        if exchanged:
            exchange(ctypes.byref(mode))
