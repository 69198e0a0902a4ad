"""The kernel of rotate.cu, compiled by cupy, which keeps what NVRTC made on disk."""

from pathlib import Path

import cupy

SOURCE = (Path(__file__).parents[1] / "gpu" / "rotate.cu").read_text()
OPTIONS = ("--std=c++17", "--fmad=false")


def compiled(expression: str) -> cupy.RawKernel:
    """Return an instance of the kernel's template, compiled for the current device."""
    module = cupy.RawModule(code=SOURCE, options=OPTIONS, name_expressions=(expression,))
    return module.get_function(expression).kernel
