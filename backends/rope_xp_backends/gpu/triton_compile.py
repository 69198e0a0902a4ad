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
_INTEGERS = {"int32": "*i32", "int64": "*i64", "": ""}
_WEIGHTS = ("q_weight", "k_weight")
_ARRAYS = ("q", "q_out", "k", "k_out")
_TABLES = ("table", "table_2", "table_3", "k_table", "k_table_2")
_NUMBERS = ("eps", "weight_offset")
_OF_K = ("k_rows", "k_tokens", "q_programs")
_ANGLES_OF_K = ("k_angle_batch", "k_angle_token", "k_angle_component")
_OF_SLOTS = ("slot_batch", "slot_token", "page", "limit", "page_step", "slot_step")

RunKernel: TypeAlias = Callable[[tuple[int, int, int], Sequence[Any], Sequence[int | None]], None]
"""``run(grid, tensors, numbers)``, on the current stream of the current device."""


def build_source(variant: KernelVariant) -> ASTSource:
    """Return what Triton compiles: types, alignments of pointers, and constants."""
    types = {"tokens": "i32", "components": "*i32"}
    types |= dict.fromkeys(("positions", "k_positions"), _INTEGERS[variant.position_dtype])
    types |= {"k_tokens": "i32", "q_programs": "i32", "slots": _INTEGERS[variant.slot_dtype]}
    types |= dict.fromkeys(_NUMBERS, "i64")
    types |= dict.fromkeys(_ARRAYS, f"*{_TYPES[variant.dtype]}")
    types |= dict.fromkeys(_TABLES, f"*{_TYPES[variant.table_dtype]}")
    types |= dict.fromkeys(_WEIGHTS, f"*{_TYPES.get(variant.weight_dtype)}")
    # torch allocates digit tables at multiples of 256 bytes or more.
    table_alignment = variant.table_unit * FLOATS[variant.table_dtype]
    alignments = dict.fromkeys(_ARRAYS, variant.unit * FLOATS[variant.dtype])
    alignments |= dict.fromkeys(_TABLES, table_alignment if variant.angles == "tables" else ACCESS)
    alignments |= dict.fromkeys(_WEIGHTS, variant.weight_alignment)
    constants = select_constants(variant)
    types |= dict.fromkeys(constants, "constexpr")
    names, number = rotate.arg_names, "i64" if variant.int64_offsets else "i32"
    return ASTSource(
        fn=rotate,
        signature={name: types.get(name, number) for name in names},
        constexprs=constants,
        attrs={
            (names.index(n),): [["tt.divisibility", m]]
            for n, m in alignments.items()
            if n not in constants
        },
    )


def select_constants(variant: KernelVariant) -> dict[str, Any]:
    """Return the compile-time arguments of a kernel, None for those that it has no use for."""
    fields = variant._asdict()
    absent: tuple[str, ...] = () if variant.weight_dtype else _WEIGHTS
    absent += () if variant.normalized else _NUMBERS
    absent += () if variant.slot_dtype else ("slots", *_OF_SLOTS)
    if not variant.apart:
        absent += ("k_table", "k_table_2", "k_positions", *_OF_K, *_ANGLES_OF_K)
    elif variant.angles == "tables":
        absent += ("k_positions",)
    else:
        absent += ("k_table", "k_table_2")
    return dict.fromkeys(absent) | {k: v for k, v in fields.items() if k in rotate.arg_names}


def compile_kernel(variant: KernelVariant, target: GPUTarget) -> CompiledKernel:
    """Compile a kernel for a GPU, which need not be there."""
    options = {"num_warps": THREADS // target.warp_size, "enable_fp_fusion": False}
    return triton.compile(build_source(variant), target=target, options=options)


def load_kernel(variant: KernelVariant) -> RunKernel:
    """Compile and load a kernel on the current device, and return what launches it."""
    constants = {k: v for k, v in select_constants(variant).items() if v is not None}
    if not isinstance(rotate, triton.JITFunction):

        def interpret(grid, tensors, numbers):
            rotate[grid](*tensors, *numbers, **constants)

        return interpret

    kernel = compile_kernel(variant, driver.active.get_current_target())
    with relaxed_capture():
        _ = kernel.run  # this attribute loads the kernel when it is first read
    values = tuple(constants.values())

    def launch(grid, tensors, numbers):
        # Given tensors, the launcher would query the driver for each address.
        pointers = [None if t is None else t.data_ptr() for t in tensors]
        kernel[grid](*pointers, *numbers, *values)

    return launch
