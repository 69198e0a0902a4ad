"""Few new keys, as of decoded tokens, in slots of a cache like one that keys went to before.

To check a cache takes far longer than to rotate a token. A plan holds what the checks found,
which depends on shapes, strides, dtypes, devices and names of axes alone. Slots and memory are
checked in each call, and only the slow path raises.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import numpy as np

from rope_xp._core.caches import BoundedCache
from rope_xp._core.memory import Ints
from rope_xp._core.typing import Array
from rope_xp._dispatch.backend import Backend
from rope_xp._dispatch.find import by_type, find_backend

FEW = 64
"""Slots that Python compares in less time than numpy."""
PLANS = BoundedCache(f"{__name__}.PLANS", 128)


class SlotPlan(NamedTuple):
    """How keys lie in k and in a cache."""

    backend: Backend
    order: Ints
    """Axes of k, batch and tokens first."""
    rows: Ints
    """Lengths of batch and tokens."""
    head: tuple[int, int]
    """Heads, and head_dim."""
    cache_order: Ints
    """Axes of the cache: sequences or pages, slots, heads, head_dim."""
    has_heads: bool
    """Whether the cache has an axis of heads."""
    is_flat: bool
    """Whether slots have one axis in a view."""
    limit: int
    """Slots, of each sequence if there are ``starts``."""
    starts: np.ndarray | None
    """The first slots of sequences, (batch..., 1), if the cache has an axis of them."""


def describe_caches(
    q: Array, k: Array, axes: str | None, cache_axes: str | None, out: Any
) -> Hashable:
    """Return the key of a plan, None where there can be none."""
    kind, backend = type(k), by_type.get(type(k)) or find_backend(k)
    if backend is None or not backend.assigns_by_index or backend.is_compiling():
        return None
    if type(out) is not tuple or [*map(type, (q, *out[1:]))] != [kind, kind]:
        return None
    described = backend.describe_caches((q, k, out[1]))
    return described and (backend.name, axes, cache_axes, described)


def find_slots(
    key: Hashable, q: Array, k: Array, slots: Any, out: tuple[Any, Array]
) -> tuple[SlotPlan, np.ndarray, Array | None] | None:
    """Return the plan of a call, and slots numbered through all sequences; None if any is amiss.

    They are returned as an array of the library too, if they were given as one.
    """
    q_out, cache = out
    try:
        plan: SlotPlan | None = PLANS.get(key)
    except TypeError:  # names of axes that have no hash, for which the slow path raises
        return None
    others = q_out, None if type(slots) is list else slots
    inputs = [q, k, *(x for x in others if x is not None and x is not q)]
    if plan is None or any(type(x) is not type(k) for x in inputs):
        return None
    numbered = _number_slots(plan, slots)
    if numbered is None or not all(plan.backend.are_disjoint(x, cache) for x in inputs):
        return None
    indices = plan.backend.xp.int32, plan.backend.xp.int64
    is_index = plan.starts is None and type(slots) is not list and slots.dtype in indices
    return plan, numbered, slots.reshape(-1) if is_index else None


def _number_slots(plan: SlotPlan, slots: Any) -> np.ndarray | None:
    """Return slots numbered through all sequences; None unless they are right, few and on a CPU."""
    host = np.asarray(slots) if type(slots) is list else plan.backend.host_view(slots)
    if host is None or not 0 < host.size <= FEW or host.dtype.kind not in "iu":
        return None
    may_share = plan.starts is not None or all(n == 1 for n in plan.rows[:-1])
    if host.shape != plan.rows and not (may_share and host.shape == plan.rows[-1:]):
        return None
    host = host.astype(np.int64, copy=False)
    numbers = host.reshape(-1).tolist()
    if min(numbers) < 0 or max(numbers) >= plan.limit:
        return None
    if plan.starts is not None:
        host = host + plan.starts
        numbers = host.reshape(-1).tolist()
    return host.reshape(-1) if len({*numbers}) == len(numbers) else None


def write_few(
    q: Array,
    k: Array,
    out: tuple[Array | None, Array],
    plan: SlotPlan,
    slots: np.ndarray,
    index: Array | None,
    rotate: Callable[..., tuple[Array, Array]],
) -> tuple[Array, Array]:
    """Return q rotated, and the cache with k in checked slots, of which ``index`` is an array."""
    backend, (q_out, cache) = plan.backend, out
    xp = backend.xp
    q_out = xp.empty_like(q) if q_out is None else q_out  # so that out= refuses what learns
    view = xp.permute_dims(cache, plan.cache_order)
    view = view if plan.has_heads else xp.expand_dims(view, axis=-2)
    view = xp.reshape(view, (-1, *plan.head)) if plan.is_flat else view
    if slots.size == 1:
        row = view[int(slots[0])] if plan.is_flat else view[divmod(int(slots[0]), view.shape[1])]
        return rotate(out=(q_out, xp.reshape(row, tuple(k.shape))))[0], cache
    q_out, keys = rotate(out=(q_out, xp.empty_like(k)))
    keys = xp.reshape(xp.permute_dims(keys, plan.order), (slots.size, *plan.head))
    index = backend.asarray(slots, backend.device(cache)) if index is None else index
    assign_slots(view, index, keys)
    return q_out, cache


def assign_slots(cache: Array, slots: Array, keys: Array) -> None:
    """Write n keys to n slots of a cache (..., slots, heads, head_dim)."""
    page = cache.shape[1]
    cache[slots if len(cache.shape) == 3 else (slots // page, slots % page)] = keys
