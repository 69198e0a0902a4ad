"""The kernel of rotate.cu, compiled by cupy: once from 14.2 on, before in each process."""

from pathlib import Path

import cupy

from rope_xp_backends.gpu.capture import relaxed_capture

SOURCE = (Path(__file__).parents[1] / "gpu" / "rotate.cu").read_text()
OPTIONS = ("--std=c++17", "--fmad=false")


def compile_kernel(expression: str) -> cupy.RawKernel:
    """Compile an instance of the kernel's template, and load it on the current device."""
    module = cupy.RawModule(code=SOURCE, options=OPTIONS, name_expressions=(expression,))
    with relaxed_capture():
        return module.get_function(expression).kernel
