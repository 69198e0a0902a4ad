"""torch's operator on CPUs: from tensors to kernels on their own memory."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import torch

from rope_xp._contract.library import DigitTables
from rope_xp._contract.memory import StridedLayout
from rope_xp._dispatch.call_cache import CALLS
from rope_xp_backends.cpu import launch, threads
from rope_xp_backends.cpu.compiled import KERNELS
from rope_xp_backends.cpu.launch import Launch
from rope_xp_backends.cpu.plan import Angles, Pair

from .arguments import OpArgs
from .library import NAMES
from .results import like, new, usual, written
from .signature import Tensors

_PLAIN = OpArgs._fields.index("axes")
"""From here on the operator's arguments are plain values."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """Runs a kernel by the plan of a signature, on tensors that lie alike.

    Parameters
    ----------
    run : Launch
        The kernel and its parameters.
    new : callable
        From a tensor to memory for its result.
    """

    run: Launch
    new: Callable[[torch.Tensor], torch.Tensor]

    def __call__(
        self,
        arrays: Tensors,
        out: Tensors | None,
        rows: Sequence[torch.Tensor],
        _tables: DigitTables | None = None,
    ) -> Tensors:
        """Return results."""
        results = tuple([self.new(x) for x in arrays]) if out is None else out
        a = rows[0].data_ptr() if rows else 0
        b = rows[1].data_ptr() if len(rows) > 1 else 0
        q, q_out = arrays[0].data_ptr(), results[0].data_ptr()
        k = k_out = 0
        if len(arrays) > 1:
            k, k_out = arrays[1].data_ptr(), results[1].data_ptr()
        self.run(q, q_out, k, k_out, a, b, limit=limit)
        if out is not None:
            written(out)
        return results


def rotate(out: Tensors | None, arrays: Tensors, how: OpArgs) -> Tensors:
    """Rotate arrays into out, or raise Unavailable before anything is written."""
    arrays = tuple([x if x.stride(-1) == 1 else x.contiguous() for x in arrays])
    rows = rows_of(how, arrays[0].dtype)
    key: list[Hashable] = [rotate, how[_PLAIN:], len(arrays)]
    for x in (*arrays, *rows, *(out or ())):
        key += x.dtype, x.shape, x.stride()
    if how.table_3 is not None:  # the plan has the addresses of tables
        key += [0 if x is None else x.data_ptr() for x in how.tables]
    run = CALLS.get(tuple(key))
    if run is None:
        run = prepare(out or tuple(map(like, arrays)), arrays, how, rows)
        CALLS.store(tuple(key), run)
    return run(arrays, out, rows)


def prepare(
    out: Tensors, arrays: Tensors, how: OpArgs, rows: Sequence[torch.Tensor]
) -> KernelLaunch:
    """Return what rotates all tensors that lie as these, by angles that lie as these rows."""
    (key,) = launch.keys(how.turn, [NAMES[arrays[0].dtype]])
    kernel = KERNELS.get(key)
    pairs = [Pair(_laid(x), _laid(y)) for x, y in zip(arrays, out, strict=True)]
    last = [_laid(a) for a in rows]
    if how.table_3 is None:
        angles = Angles(rows[0].shape[-1], tuple(last), ())
    else:
        component = ()
        if how.components is not None and how.positions is not None:
            component = tuple(how.components.tolist())
        else:
            last = [StridedLayout((*a.shape, 1), (*a.strides, 0)) for a in last]
        addresses = tuple(0 if t is None else t.data_ptr() for t in how.tables)
        angles = Angles(how.table.shape[-1] // 2, tuple(last), addresses, component)
    run = launch.prepare(kernel, pairs, angles, how.turn, arrays[0].element_size())
    return KernelLaunch(run, torch.empty_like if all(map(usual, arrays)) else new)


def rows_of(how: OpArgs, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return positions and their fractions, or cos and sin, as kernels read them."""
    compute_dtype = torch.float64 if dtype == torch.float64 else torch.float32
    if how.table_3 is None:
        return [how.table.to(compute_dtype), how.table_2.to(compute_dtype)]
    if how.positions is None:
        return []
    whole = how.positions
    if whole.dtype is not torch.int64:
        whole = whole.to(torch.int64)
    return [whole] if how.part is None else [whole, how.part.to(compute_dtype)]


def limit() -> int:
    """Return how many threads may work: torch's own limit holds too, which obeys OpenMP's."""
    return min(threads.limit(openmp=False), torch.get_num_threads())


def _laid(x: torch.Tensor) -> StridedLayout:
    size = x.element_size()
    return StridedLayout(tuple(x.shape), tuple([n * size for n in x.stride()]))
