"""torch's operator on GPUs: from tensors to launches of Triton's kernel.

Nothing is read from the device and nothing is waited for, so a CUDA graph can record it all.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from rope_xp._core.caches import cached, pin
from rope_xp._core.library import DigitTables
from rope_xp._core.memory import alignment
from rope_xp._dispatch.kernels import Kernels
from rope_xp_backends.gpu.triton_plan import LARGEST_ROW, Angles, Operand, Plan, Variant, plan

from . import streams
from .library import NAMES
from .op_args import OpArgs
from .results import bump_versions, new
from .signature import Tensors

DEVICES = {"cuda"}
"""Kinds of devices whose tensors are taken. ROCm's are called cuda too."""

Run: TypeAlias = Callable[..., None]


def _load() -> Callable[[tuple[Variant, int | None]], Run]:
    from rope_xp_backends.gpu import triton_kernel

    return lambda key: triton_kernel.load_kernel(key[0])


KERNELS: Kernels[tuple[Variant, int | None], Run] = Kernels("triton", _load)
"""By the number of their device too, which was current when they were loaded."""


def too_large(x: torch.Tensor) -> str | None:
    """Return why the rows of a tensor do not fit a kernel, or None."""
    if x.shape[-1] * x.itemsize <= LARGEST_ROW:
        return None
    return (
        f"a head of {x.shape[-1]} components is {x.shape[-1] * x.itemsize} bytes long, and its "
        f"kernel holds {LARGEST_ROW} in registers"
    )


def too_old(x: torch.Tensor) -> str | None:
    """Return why Triton does not know a tensor's device, or None."""
    if torch.compiler.is_compiling():  # which cannot look at devices; the operator will find out
        return None
    capability = _capability(x.device)
    if capability >= (8, 0):
        return None
    found = ".".join(map(str, capability))
    return f"its kernels need compute capability 8.0, and {x.device} has {found}"


@cached(64)
def _capability(device: torch.device) -> tuple[int, int]:
    if device.type != "cuda" or torch.version.hip:
        return (8, 0)
    return torch.cuda.get_device_capability(device)


def rotate(out: Tensors | None, arrays: Tensors, op_args: OpArgs) -> Tensors:
    """Rotate arrays into out, or raise Unavailable before anything is written."""
    results = tuple(map(new, arrays)) if out is None else out
    arrays = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in arrays)
    if is_current(arrays[0]):
        _rotate(results, arrays, op_args)
    else:
        with torch.cuda.device(arrays[0].device):
            _rotate(results, arrays, op_args)
    if out is not None:
        bump_versions(out)
    return results


def _rotate(out: Tensors, arrays: Tensors, op_args: OpArgs) -> None:
    launches = _launches(out, arrays, op_args)
    # The driver may load no kernel while a CUDA graph is captured, and loads it at other times.
    device = arrays[0].device
    capturing = streams.is_capturing(device)
    ready = [
        KERNELS.get((made.variant, device.index), give_up=not capturing) for made, _ in launches
    ]
    if capturing and op_args.table_3 is not None:  # of a compiled call, or saved for its gradient
        pin((op_args.table, op_args.table_2, op_args.table_3, op_args.components))
    for run, (made, tensors) in zip(ready, launches, strict=True):
        run(made.grid, tensors, made.numbers)


def _launches(out: Tensors, arrays: Tensors, op_args: OpArgs) -> list[tuple[Plan, Tensors]]:
    """Return what is launched, with the tensors of each launch."""
    if not any(x.numel() for x in arrays):
        return []
    positions, components = op_args.positions, op_args.components
    table, table_2, table_3 = op_args.table, op_args.table_2, op_args.table_3
    if table_3 is None:
        table, table_2, angles = _given(table, table_2)
    else:
        angles = _angles_of(positions, components)
    operands = tuple([_operand(x, y) for x, y in zip(arrays, out, strict=True)])
    made = plan(operands, angles, NAMES[arrays[0].dtype], op_args.spec)
    if made is None:
        return [launch for part in _split(out, arrays, op_args) for launch in _launches(*part)]
    # A kernel reads nothing from those that there are not, but wants an address.
    others = [table if x is None else x for x in (table_3, positions, components)]
    return [(made, (arrays[0], out[0], arrays[-1], out[-1], table, table_2, *others))]


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Launches a kernel by the plan of a signature.

    Parameters
    ----------
    run : callable
        The kernel, loaded on the device.
    plan : Plan
        Its grid and parameters.
    components : bool
        Whether it reads which component of positions each frequency takes.
    """

    run: Run
    plan: Plan
    components: bool

    def __call__(
        self, arrays: Tensors, out: Tensors | None, rows: Tensors, tables: DigitTables | None
    ) -> Tensors | None:
        """Return results, None where another device is current."""
        if not is_current(arrays[0]):
            return None
        results = tuple([new(x) for x in arrays]) if out is None else out
        # A kernel reads nothing from what there is not, but wants an address.
        if tables is None:
            read = (*rows, *(rows[0],) * 3)
        else:
            low = tables.low
            component: Any = tables.component if self.components else low
            read = (low, tables.middle, tables.high, rows[0] if rows else low, component)
        operands = arrays[0], results[0], arrays[-1], results[-1]
        self.run(self.plan.grid, (*operands, *read), self.plan.numbers)
        if out is not None:
            bump_versions(out)
        return results


def prepare(out: Tensors, arrays: Tensors, op_args: OpArgs) -> KernelLaunch | None:
    """Return what rotates all tensors that lie like these, None where one launch does not do."""
    if not is_current(arrays[0]) or (
        op_args.table_3 is None and not _read_in_place(op_args.table, op_args.table_2)
    ):
        return None
    launches = _launches(out, arrays, op_args)
    if len(launches) != 1:
        return None
    ((made, _),) = launches
    key = made.variant, arrays[0].device.index
    if not KERNELS.ready(key):
        return None
    return KernelLaunch(KERNELS.get(key), made, op_args.components is not None)


def is_current(x: torch.Tensor) -> bool:
    """Return whether a tensor lies on the device that is launched on."""
    return x.device.type != "cuda" or x.device.index == torch.cuda.current_device()


def _operand(x: torch.Tensor, out: torch.Tensor) -> Operand:
    at, to = x.data_ptr(), out.data_ptr()
    return Operand(x.shape, x.stride(), out.stride(), at == to, alignment(at, to))


_COUNTED = Angles("counted", (), (), "int64")


def _angles_of(positions: torch.Tensor | None, components: torch.Tensor | None) -> Angles:
    if positions is None:
        return _COUNTED
    if components is not None:
        name, steps = NAMES[positions.dtype], positions.stride()
        shape = positions.shape
        return Angles("components", shape[:-1], steps[:-1], name, 1, shape[-1], steps[-1])
    return Angles("positions", positions.shape, positions.stride(), NAMES[positions.dtype])


def _read_in_place(cos: torch.Tensor, sin: torch.Tensor) -> bool:
    """Return whether a kernel reads tables where they lie, else from copies."""
    return cos.stride() == sin.stride() and cos.stride(-1) == 1


def _given(cos: torch.Tensor, sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Angles]:
    if not _read_in_place(cos, sin):
        cos, sin = cos.contiguous(), sin.contiguous()
    aligned = alignment(cos.data_ptr(), sin.data_ptr())
    return cos, sin, Angles("tables", cos.shape[:-1], cos.stride()[:-1], "int64", aligned)


def _split(out: Tensors, arrays: Tensors, op_args: OpArgs) -> list[tuple[Tensors, Tensors, OpArgs]]:
    """Return one call for each index of the first batch axis."""
    where = op_args.spec.axes
    axis, ndim = where.batch[0], len(where.batch) + 1
    names = op_args.axes[:axis] + op_args.axes[axis + 1 :]
    looked_up = op_args.table_3 is not None
    own = ndim if op_args.components is None else ndim + 1
    return [
        (
            tuple([x.select(axis, i) for x in out]),
            tuple([x.select(axis, i) for x in arrays]),
            op_args._replace(
                axes=names,
                positions=None if op_args.positions is None else _at(i, op_args.positions, own),
                table=op_args.table if looked_up else _at(i, op_args.table, ndim + 1),
                table_2=op_args.table_2 if looked_up else _at(i, op_args.table_2, ndim + 1),
            ),
        )
        for i in range(arrays[0].shape[axis])
    ]


def _at(i: int, angles: torch.Tensor, ndim: int) -> torch.Tensor:
    """Return the angles of one index of the first axis, if they have it."""
    return angles[min(i, angles.shape[0] - 1)] if angles.ndim == ndim else angles
