"""Call cache: skip validation and dispatch for signatures seen before.

A signature holds the rope and the class, dtype, shape, strides and device of every array. Its first
call takes the slow path: parsing, checks, dispatch. The path is then specialized for the signature
and cached. A cached call holds a plan and no arrays, and refers to tables weakly. It declines calls
that may be errors, such as results that may overlap: only the slow path raises.
"""

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from operator import is_
from typing import Any, NamedTuple, TypeAlias

from rope_xp._core.caches import BoundedCache
from rope_xp._core.call import Call, CosSin, RelativeAngles, TableLookup
from rope_xp._core.path import Path, PathUnavailable
from rope_xp._core.tables import DigitTables
from rope_xp._core.typing import Array
from rope_xp._dispatch import choose, find, heads
from rope_xp._dispatch.recent_calls import (
    RECENT,
    CallContext,
    GivenTables,
    describe_context,
    recall,
    remember,
)
from rope_xp._dispatch.rope_keys import find_key
from rope_xp._rotation import portable

Arrays: TypeAlias = tuple[Array, ...]


class CallSignature(NamedTuple):
    """The signature of a call, and its arrays."""

    key: Any
    """All that a cached call depends on: rope, context, and what the library says of arrays."""
    arrays: Arrays
    weights: Arrays
    """Those of the norm that are given."""
    angle_inputs: Arrays
    """Checked positions and their fractions, or cos and sin, as kernels read them."""
    out: Arrays | None


Launch: TypeAlias = Callable[[CallSignature, DigitTables | None], Arrays | None]
"""``launch(signature, tables)`` returns the results of a call whose signature has the same key, or
None, before it writes anything, to leave it to the slow path. It does so where a result may overlap
anything else that the call reads or writes."""


class _CachedCalls(BoundedCache):
    def cache_clear(self) -> None:
        """Evict all, and recent calls, which are some of them."""
        super().cache_clear()
        RECENT.cache_clear()


CALLS = _CachedCalls(f"{__name__}.CALLS", 512)


@dataclass(frozen=True, slots=True)
class CachedCall:
    """A launch, and the tables of its lookup; None where cos and sin are given."""

    launch: Launch
    tables: "weakref.ref[DigitTables] | None"

    def __call__(self, signature: CallSignature) -> Arrays | None:
        """Return results, None where the slow path must run."""
        tables = None
        if self.tables is not None:
            tables = self.tables()
            if tables is None:  # evicted
                return None
        return self.launch(signature, tables)


def guard_overlap(launch: Launch, are_disjoint: Callable[[Array, Array], bool]) -> Launch:
    """Return a launch that leaves calls to the slow path if a result may overlap anything else."""

    def run(signature: CallSignature, tables: DigitTables | None) -> Arrays | None:
        _, arrays, weights, angle_inputs, out = signature
        if out is not None:
            inputs = [x for x, y in zip(arrays, out, strict=True) if x is not y]
            inputs += weights + angle_inputs
            for i, y in enumerate(out):
                for other in (*out[:i], *inputs):
                    if other is y or not are_disjoint(other, y):
                        return None
        return launch(signature, tables)

    return run


def sign(
    rope: Hashable, context: CallContext, weights: Arrays, arrays: Arrays, angles: Any, out: Any
) -> CallSignature | None:
    """Return the signature of a call, None if it cannot be cached.

    ``angles`` are positions, or GivenTables, with which ``rope`` stands for all options of their
    rotation.
    """
    backend = find.by_type.get(type(arrays[0])) or find.find_backend(arrays[0])
    if backend is None:
        return None
    operands = arrays if out is None or all(map(is_, arrays, out)) else arrays + out
    given = (None, angles) if type(angles) is GivenTables else (angles, None)
    described = backend.describe_call(operands + weights, *given, writes=out is not None)
    if described is None:
        return None
    key, angle_inputs = described
    return CallSignature((rope, context, key), arrays, weights, angle_inputs, out)


def run(
    rope: Hashable,
    arrays: Arrays,
    angles: Any,
    axes: str | None,
    out: Any,
    inverse: bool,
    norm: Any,
    parse: Callable[..., Call],
    *arguments: Any,
) -> Arrays:
    """Run a cached call, or else the slow path, where ``parse`` builds a Call."""
    described = describe_context(arrays, axes, out, inverse, norm)
    signature = described and sign(find_key(rope), *described, arrays, angles, out)
    if signature is not None:
        try:
            cached = CALLS.get(signature.key)
        except TypeError:  # an unhashable argument, for which the slow path raises
            cached = signature = None
        if cached is not None and signature is not None:
            results: Arrays | None = cached(signature)
            if results is not None:
                _remember(signature, angles, cached)
                return results
    call = parse(*arguments)
    path, results = choose.run_on_path(call)
    if signature is not None:
        specialized = specialize(call, path, signature, results)
        if specialized is not None:
            CALLS.store(signature.key, specialized)
    return results


def run_apart(
    rope: Hashable,
    arrays: Arrays,
    positions: tuple[Any, Any],
    axes: str | None,
    parse: Callable[[], Call],
) -> Arrays:
    """Rotate q and k by positions of their own: in two cached calls, whose keys describe both."""
    backend = find.find_backend(arrays[0])
    described: list[Any] = [None]
    if backend is not None and not backend.is_compiling():
        described = [backend.describe_call((x,), None, None, writes=False) for x in arrays]
    if None in described:
        return choose.run(parse())
    key = run_apart, find_key(rope), *[key for key, _ in described]
    parts: list[Call] = []

    def parse_part(i: int) -> Call:
        parts.extend(() if parts else parse().split(one_dtype=False))
        return parts[i]

    results: Arrays = ()
    for i, x in enumerate(arrays):
        call = (*key, i), (x,), positions[i], axes, None, False, None
        results += recall(*call) or run(*call, parse_part, i)
    return results


def _remember(signature: CallSignature, angles: Any, cached: CachedCall) -> None:
    """Recognize later calls like one that was cached, if the library can."""
    recognize = getattr(cached.launch, "recognize", None)
    if recognize is not None:
        given = angles if type(angles) is GivenTables else () if angles is None else (angles,)
        launch = recognize(signature, given)
        if launch is not None:
            rope, context, _ = signature.key
            remember(rope, context, launch, cached.tables)


def specialize(
    call: Call, path: Path | None, signature: CallSignature, results: Arrays
) -> CachedCall | None:
    """Return the cached call of a signature, given a call that ran on a path."""
    if len(call.angles) != 1 or isinstance(call.angles[0], RelativeAngles):
        return None
    source = call.angles[0]
    run_path = portable.run if path is None else path.run
    launch = None
    if heads.differ_by_head(call):
        run_path = partial(heads.run_split, run_path)
    elif path is not None:
        launch = path.specialize(call, signature, results)
    if launch is None:
        if isinstance(source, CosSin) and source.cos.shape != signature.angle_inputs[0].shape:
            return None  # a view of some columns, which only a plan of a kernel holds
        launch = _make_generic_launch(call, run_path)
    tables = weakref.ref(source.tables) if isinstance(source, TableLookup) else None
    return CachedCall(launch, tables)


def _make_generic_launch(call: Call, run_path: Callable[[Call], Arrays]) -> Launch:
    """Return a launch that runs a path on calls like a checked one."""
    backend, spec, source = call.backend, call.spec, call.angles[0]
    has_weight = [w is not None for w in call.weights]
    has_lookup, has_components = isinstance(source, TableLookup), False
    fields: tuple[Any, ...] = ()
    if isinstance(source, TableLookup):
        fields = source.device, source.tokens, source.position_range, source.components
        has_components = source.components > 0

    def launch(signature: CallSignature, tables: DigitTables | None) -> Any:
        _, arrays, weights, angle_inputs, out = signature
        given = iter(weights)
        weights = tuple([next(given) if has else None for has in has_weight])
        angles: CosSin | TableLookup
        if not has_lookup:
            angles = CosSin(*angle_inputs)
        else:
            if angle_inputs and angle_inputs[0].ndim == has_components:  # no axis of tokens
                angle_inputs = tuple([row[..., None] for row in angle_inputs])
            angles = TableLookup(tables, *(*angle_inputs, None, None)[:2], *fields)  # type: ignore[arg-type]  # as a lookup has them
        try:
            return run_path(Call(backend, arrays, (angles,), out, spec, weights))
        except PathUnavailable:
            return None

    return guard_overlap(launch, backend.are_disjoint)
