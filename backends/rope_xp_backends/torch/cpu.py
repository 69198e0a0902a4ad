"""torch's operator on CPUs: from tensors to kernels on their own memory."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from rope_xp._core.library import DigitTables
from rope_xp._core.memory import StridedLayout
from rope_xp._dispatch.call_cache import CALLS
from rope_xp_backends.cpu import launch, threads
from rope_xp_backends.cpu.compiled import KERNELS
from rope_xp_backends.cpu.launch import CpuLaunch
from rope_xp_backends.cpu.plan import AngleLayouts, InOut, build_plan

from .library import NAMES
from .op_args import OpArgs
from .results import bump_versions, like, new, usual
from .signature import Tensors

_PLAIN = OpArgs._fields.index("axes")
"""From here on the operator's arguments are plain values."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Runs a kernel by the plan of a signature, on tensors that lie alike.

    Parameters
    ----------
    run : CpuLaunch
        The kernel and its parameters.
    new : callable
        From a tensor to memory for its result.
    """

    run: CpuLaunch
    new: Callable[[torch.Tensor], torch.Tensor]

    def __call__(
        self,
        arrays: Tensors,
        out: Tensors | None,
        angle_inputs: Sequence[torch.Tensor],
        _tables: DigitTables | None = None,
    ) -> Tensors:
        """Return results."""
        results = tuple([self.new(x) for x in arrays]) if out is None else out
        a = angle_inputs[0].data_ptr() if angle_inputs else 0
        b = angle_inputs[1].data_ptr() if len(angle_inputs) > 1 else 0
        q, q_out = arrays[0].data_ptr(), results[0].data_ptr()
        k = k_out = 0
        if len(arrays) > 1:
            k, k_out = arrays[1].data_ptr(), results[1].data_ptr()
        self.run(q, q_out, k, k_out, a, b, limit=limit)
        if out is not None:
            bump_versions(out)
        return results


def rotate(out: Tensors | None, arrays: Tensors, op_args: OpArgs) -> Tensors:
    """Rotate arrays into out, or raise Unavailable before anything is written."""
    arrays = tuple([x if x.stride(-1) == 1 else x.contiguous() for x in arrays])
    angle_inputs = angle_inputs_of(op_args, arrays[0].dtype)
    key: list[Hashable] = [rotate, op_args[_PLAIN:], len(arrays)]
    for x in (*arrays, *angle_inputs, *(out or ())):
        key += x.dtype, x.shape, x.stride()
    if op_args.table_3 is not None:  # the plan has the addresses of tables
        key += [0 if x is None else x.data_ptr() for x in op_args.tables]
    run = CALLS.get(tuple(key))
    if run is None:
        run = prepare(out or tuple(map(like, arrays)), arrays, op_args, angle_inputs)
        CALLS.store(tuple(key), run)
    return run(arrays, out, angle_inputs)


def prepare(
    out: Tensors, arrays: Tensors, op_args: OpArgs, angle_inputs: Sequence[torch.Tensor]
) -> KernelLaunch:
    """Return what rotates all tensors that lie as these, by angles that lie as these rows."""
    (key,) = launch.get_kernel_keys(op_args.spec, [NAMES[arrays[0].dtype]])
    kernel = KERNELS.get(key)
    pairs = [InOut(_laid(x), _laid(y)) for x, y in zip(arrays, out, strict=True)]
    last = [_laid(a) for a in angle_inputs]
    if op_args.table_3 is None:
        angles = AngleLayouts(angle_inputs[0].shape[-1], tuple(last), ())
    else:
        component = ()
        if op_args.components is not None and op_args.positions is not None:
            component = tuple(op_args.components.tolist())
        else:
            last = [StridedLayout((*a.shape, 1), (*a.strides, 0)) for a in last]
        addresses = tuple(0 if t is None else t.data_ptr() for t in op_args.tables)
        angles = AngleLayouts(op_args.table.shape[-1] // 2, tuple(last), addresses, component)
    plan = build_plan(pairs, angles, op_args.spec, arrays[0].element_size())
    return KernelLaunch(
        CpuLaunch(kernel, plan), torch.empty_like if all(map(usual, arrays)) else new
    )


def angle_inputs_of(op_args: OpArgs, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return positions and their fractions, or cos and sin, as kernels read them."""
    compute_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    if op_args.table_3 is None:
        return [op_args.table.to(compute_dtype), op_args.table_2.to(compute_dtype)]
    if op_args.positions is None:
        return []
    whole = op_args.positions
    if whole.dtype is not torch.int64:
        whole = whole.to(torch.int64)
    return [whole] if op_args.part is None else [whole, op_args.part.to(compute_dtype)]


def limit() -> int:
    """Return how many threads may work: torch's own limit holds too, which obeys OpenMP's."""
    return min(threads.limit(openmp=False), torch.get_num_threads())


def _laid(x: torch.Tensor) -> StridedLayout:
    size = x.element_size()
    return StridedLayout(tuple(x.shape), tuple([n * size for n in x.stride()]))
