"""The kernel of rotate.cu, compiled by cupy, device by device, when it is first launched there.

cupy keeps what NVRTC made, by source, options and device, and loads it once on each device.
"""

from __future__ import annotations

from pathlib import Path

import cupy

SOURCE = Path(__file__).with_name("rotate.cu").read_text()
OPTIONS = ("--std=c++17", "--fmad=false")


def compiled(expression: str) -> cupy.RawKernel:
    """Return an instance of the kernel's template, compiled for the current device.

    On another device it is compiled or loaded when it is first launched there.
    """
    module = cupy.RawModule(code=SOURCE, options=OPTIONS, name_expressions=(expression,))
    return module.get_function(expression)
