"""torch's operator on CPUs: from tensors to kernels on their own memory."""

from collections.abc import Sequence

import torch

from rope_xp._contract.caches import Latest
from rope_xp._contract.memory import Laid
from rope_xp_backends.cpu import launch, threads
from rope_xp_backends.cpu.compiled import KERNELS
from rope_xp_backends.cpu.plan import Angles, Pair

from .arguments import How, Tensors
from .library import NAMES

_PLAIN = How._fields.index("axes")
"""From here on the operator's arguments are plain values."""
_launches = Latest(f"{__name__}._launches", 512)


def rotate(out: Tensors, arrays: Tensors, how: How) -> None:
    """Rotate arrays into out, or raise Unavailable before anything is written."""
    arrays = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in arrays)
    rows = rows_of(how, arrays[0].dtype)
    # Addresses of tables are those that are kept, so that no others can come to lie there.
    tables = () if how.table_3 is None else _tables(how)
    key = (
        *(how[_PLAIN:], len(arrays), *(0 if x is None else x.data_ptr() for x in tables)),
        *((x.dtype, x.shape, x.stride()) for x in (*arrays, *out, *rows)),
    )
    made = _launches.get(key)
    if made is None:
        made = prepare(out, arrays, how, rows)
        _launches.keep(key, made)
    made(*addresses(out, arrays, rows), limit=limit)


def prepare(out: Tensors, arrays: Tensors, how: How, rows: Sequence[torch.Tensor]) -> launch.Launch:
    """Return what rotates all tensors that lie as these, by angles that lie as these rows."""
    (key,) = launch.keys(how.turn, [NAMES[arrays[0].dtype]])
    kernel = KERNELS.get(key)
    pairs = [Pair(_laid(x), _laid(y)) for x, y in zip(arrays, out, strict=True)]
    last = [_laid(a) for a in rows]
    if how.table_3 is None:
        angles, kept = Angles(rows[0].shape[-1], tuple(last), ()), None
    else:
        kept = _tables(how)
        component = ()
        if how.components is not None and how.positions is not None:
            component = tuple(how.components.tolist())
        else:
            last = [Laid((*a.shape, 1), (*a.strides, 0)) for a in last]
        tables = tuple(0 if t is None else t.data_ptr() for t in kept)
        angles = Angles(how.table.shape[-1] // 2, tuple(last), tables, component)
    return launch.prepare(
        kernel, pairs, angles, how.turn, arrays[0].element_size(), kept, boxed=False
    )


def _tables(how: How) -> tuple[torch.Tensor | None, ...]:
    return how.table, how.table_2, how.table_3, how.frequencies, how.components


def rows_of(how: How, dtype: torch.dtype) -> list[torch.Tensor]:
    """Return positions and what they have after the point, or cos and sin, as kernels read them."""
    compute = torch.float64 if dtype == torch.float64 else torch.float32
    if how.table_3 is None:
        return [how.table.to(compute), how.table_2.to(compute)]
    if how.positions is None:
        return []
    whole = how.positions.to(torch.int64)
    return [whole] if how.part is None else [whole, how.part.to(compute)]


def addresses(out: Tensors, arrays: Tensors, rows: Sequence[torch.Tensor]) -> list[int]:
    """Return where elements are; their tensors must be kept meanwhile."""
    given = [x.data_ptr() for each in zip(arrays, out, strict=True) for x in each]
    given += [0] * (4 - len(given)) + [a.data_ptr() for a in rows]
    return given + [0] * (6 - len(given))


def limit() -> int:
    """Return how many threads may work: torch's own limit holds too."""
    return min(threads.limit(), torch.get_num_threads())


def _laid(x: torch.Tensor) -> Laid:
    size = x.element_size()
    return Laid(tuple(x.shape), tuple([n * size for n in x.stride()]))
