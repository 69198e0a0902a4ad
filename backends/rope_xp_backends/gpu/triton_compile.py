"""Compiles and loads the Triton kernel, without fused multiply-add: its bits are numpy's."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, CompiledKernel
from triton.runtime import driver

from rope_xp._core.dtypes import FLOATS
from rope_xp._core.memory import ACCESS

from . import relaxed_capture
from .triton_kernel import rotate
from .triton_plan import THREADS, KernelVariant

_TYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_WEIGHTS = ("q_weight", "k_weight")
_ARRAYS = ("q", "q_out", "k", "k_out")
_TABLES = ("table", "table_2", "table_3")
_NUMBERS = ("eps", "weight_offset")

RunKernel: TypeAlias = Callable[[tuple[int, int, int], Sequence[Any], Sequence[int]], None]
"""``run(grid, tensors, numbers)``, weights first, on the current stream of the current device."""


def build_source(variant: KernelVariant) -> ASTSource:
    """Return what Triton compiles: types, alignments of pointers, and constants."""
    float64 = variant.dtype == "float64"
    positions = "*i32" if variant.position_dtype == "int32" else "*i64"
    types = {"tokens": "i32", "q_heads": "i32", "k_heads": "i32", "positions": positions}
    types |= {"components": "*i32"}
    types |= dict.fromkeys(_ARRAYS, f"*{_TYPES[variant.dtype]}")
    types |= dict.fromkeys(_TABLES, "*fp64" if float64 else "*fp32")
    # torch allocates digit tables at multiples of 256 bytes or more.
    table_alignment = variant.table_unit * (8 if float64 else 4)
    alignments = dict.fromkeys(_ARRAYS, variant.unit * FLOATS[variant.dtype])
    alignments |= dict.fromkeys(_TABLES, table_alignment if variant.angles == "tables" else ACCESS)
    constants = select_constants(variant)
    if variant.norm.weight_dtype:
        types |= dict.fromkeys(_WEIGHTS, f"*{_TYPES[variant.norm.weight_dtype]}")
        alignments |= dict.fromkeys(_WEIGHTS, variant.norm.weight_alignment)
    else:
        constants |= dict.fromkeys(_WEIGHTS)
    types |= dict.fromkeys(_NUMBERS, "i64")
    constants |= {} if variant.norm.normalized else dict.fromkeys(_NUMBERS)
    types |= dict.fromkeys(constants, "constexpr")
    names, number = rotate.arg_names, "i64" if variant.int64_offsets else "i32"
    return ASTSource(
        fn=rotate,
        signature={name: types.get(name, number) for name in names},
        constexprs=constants,
        attrs={(names.index(n),): [["tt.divisibility", m]] for n, m in alignments.items()},
    )


def select_constants(variant: KernelVariant) -> dict[str, Any]:
    """Return the compile-time arguments of a kernel."""
    fields = variant._asdict() | variant.norm._asdict()
    return {k: v for k, v in fields.items() if k in rotate.arg_names}


def compile_kernel(variant: KernelVariant, target: GPUTarget) -> CompiledKernel:
    """Compile a kernel for a GPU, which need not be there."""
    options = {"num_warps": THREADS // target.warp_size, "enable_fp_fusion": False}
    return triton.compile(build_source(variant), target=target, options=options)


def load_kernel(variant: KernelVariant) -> RunKernel:
    """Compile and load a kernel on the current device, and return what launches it."""
    constants = select_constants(variant)
    absent = () if variant.norm.weight_dtype else (None, None)
    absent_numbers = () if variant.norm.normalized else (None, None)
    if not isinstance(rotate, triton.JITFunction):

        def interpret(grid, tensors, numbers):
            rotate[grid](*absent, *tensors, *numbers, *absent_numbers, **constants)

        return interpret

    kernel = compile_kernel(variant, driver.active.get_current_target())
    with relaxed_capture():
        _ = kernel.run  # this attribute loads the kernel when it is first read
    values = *absent_numbers, *constants.values()

    def launch(grid, tensors, numbers):
        # Given tensors, the launcher would query the driver for each address.
        kernel[grid](*absent, *[t.data_ptr() for t in tensors], *numbers, *values)

    return launch
