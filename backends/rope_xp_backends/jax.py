"""jax: devices, shardings, and what XLA needs to compile the same numbers."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from rope_xp._core.caches import cached
from rope_xp._core.call import Call, CosSin, TableLookup
from rope_xp._core.errors import RopeError
from rope_xp._core.path import Path
from rope_xp._core.pytrees import PYTREE_CLASSES
from rope_xp._core.tables import DigitTables, TableKey
from rope_xp._core.versions import check_version
from rope_xp._dispatch.backend import Backend
from rope_xp._rotation import portable
from rope_xp._rotation.tables import host_tables

check_version("jax")

Arrays = tuple[jax.Array, ...]
_FLOAT32_MIN = float(np.finfo(np.float32).min)
_INTEGERS = (np.dtype(np.int32), np.dtype(np.int64))


class Jax(Backend):
    """The glue of jax."""

    numpy_dtypes = takes_calls_whole = True
    out_refusal = (
        "jax arrays cannot be written to. Under jit, donate the inputs and XLA reuses their "
        "memory: jax.jit(..., donate_argnums=(0, 1))"
    )

    def device(self, x: jax.Array) -> jax.Device | None:
        """Return the device that x is committed to, None for tracers and sharded arrays."""
        if isinstance(x, jax.core.Tracer) or not x.committed:
            return None
        devices = x.devices()
        return next(iter(devices)) if len(devices) == 1 else None

    def asarray(self, host: np.ndarray, device: jax.Device | None) -> jax.Array:
        """Leave arrays uncommitted without a device, so that jit may move them.

        jnp.asarray would tie them to the mesh in use, and trips jax_debug_nans on the tables' NaN.
        """
        return jax.device_put(host, device)  # type: ignore[no-any-return]  # of a tree, in general

    def arange(self, n: int, device: jax.Device | None) -> jax.Array:
        """Leave the device to jit."""
        return jnp.arange(n, dtype=jnp.int32)

    def multiply_exactly(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """Add a maximum, as XLA fuses a * b + c even past optimization_barrier.

        So cos and sin have the bits of all other libraries. float64 is not fused.
        """
        return jnp.maximum(a * b, _FLOAT32_MIN) if a.dtype == jnp.float32 else a * b

    def stop_gradient(self, x: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(x)

    def add_derivative(
        self, value: jax.Array, function: Callable[[jax.Array], jax.Array], x: jax.Array
    ) -> jax.Array:
        """Compute the function in derivatives alone."""
        follow = jax.custom_jvp(lambda value, _: value)
        follow.defjvp(lambda primals, tangents: (primals[0], function(tangents[1])))
        return follow(jax.lax.stop_gradient(value), x)  # type: ignore[no-any-return]  # as value

    def take_rows(self, table: jax.Array, indices: jax.Array) -> jax.Array:
        """Index with all axes, as flat indices would be gathered from a mesh.

        Explicit sharding is that of the indices.
        """
        options: dict[str, Any] = {}
        if (sharding := _find_explicit_sharding(indices)) is not None:
            spec = PartitionSpec(*sharding.spec, None)  # type: ignore[no-untyped-call]  # in jax
            options = {"out_sharding": NamedSharding(sharding.mesh, spec)}
        return jnp.asarray(table).at[indices].get(mode="promise_in_bounds", **options)

    def materialize(self, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Write them to memory where XLA on a CPU would fuse lookup and rotation.

        That takes 1.7 times as long in bfloat16. XLA fuses past optimization_barrier, but not past
        an update of a slice. The platform is a guess, as numbers are the same.
        """
        if not isinstance(cos, jax.core.Tracer) or jax.default_backend() != "cpu":
            return cos, sin
        axis, pairs = cos.ndim - 1, cos.shape[-1]
        both = jnp.concatenate([cos, sin], axis)
        # New arrays belong to the mesh in use, which may be another than that of these.
        mesh: AbstractContextManager[object] = nullcontext()
        if hasattr(jax.sharding, "use_abstract_mesh"):  # jax >= 0.8
            mesh = jax.sharding.use_abstract_mesh(jax.typeof(both).sharding.mesh)
        with mesh:
            both = jnp.zeros_like(both)
        both = jax.lax.dynamic_update_slice_in_dim(both, cos, 0, axis)
        both = jax.lax.dynamic_update_slice_in_dim(both, sin, pairs, axis)
        return both[..., :pairs], both[..., pairs:]

    def cos_sin(self, lookup: TableLookup) -> tuple[jax.Array, jax.Array]:
        """Compile the lookup: eager, its thirty operations take a hundred times as long."""
        return _compiled(self)(lookup)

    def has_float64(self, x: jax.Array) -> bool:
        """Return whether jax_enable_x64 is set."""
        return bool(jax.dtypes.canonicalize_dtype(np.float64) == np.float64)

    def is_sharded(self, x: jax.Array, axis: int) -> bool:
        sharding = _find_explicit_sharding(x)
        return sharding is not None and x.ndim > 0 and sharding.spec[axis] is not None

    def slots_refusal(self, x: jax.Array, axis: int) -> str | None:
        if not self.is_sharded(x, axis):
            return None
        return (
            "needs tokens and slots that are not sharded, on a mesh with explicit axes; shard "
            "batch, pages or heads, or write inside jax.shard_map"
        )

    def replace_slots(
        self, x: jax.Array, axis: int, slots: jax.Array, values: jax.Array
    ) -> jax.Array:
        """Scatter, in place where x is donated to jit."""

        def scatter(x: jax.Array, slots: jax.Array, values: jax.Array) -> jax.Array:
            slots = jnp.where(slots < 0, x.shape[axis], slots)  # they would count from the end
            return x.at[(*(slice(None),) * axis, slots)].set(values, mode="drop")

        sharding = _find_explicit_sharding(x, slots, values)
        if sharding is None:
            return scatter(x, slots, values)
        # Slots may lie in any shard, so no axis of a scatter has a sharding of its own.
        scatter = jax.sharding.auto_axes(scatter, out_sharding=sharding)
        return scatter(x, slots, values)

    def tables(self, table_key: TableKey, like: jax.Array) -> DigitTables:
        """Return numpy tables to a trace, as constants, else arrays."""
        if table_key.double and not self.has_float64(like):
            raise RopeError(
                f"dtype or an array requires float64 angles, and {self.name} computes "
                "in float32 as it is configured; set jax_enable_x64, or convert to float32"
            )
        if isinstance(like, jax.core.Tracer):
            return host_tables(table_key)
        # Tracers of another trace in progress must not get into the cache.
        with jax.ensure_compile_time_eval():
            return super().tables(table_key, like)


def _find_explicit_sharding(*arrays: jax.Array) -> Any:
    """Return the sharding of the first array if any lies on a mesh with explicit axes, or None."""
    if not hasattr(jax, "typeof"):  # jax >= 0.5.3 has explicit sharding
        return None
    shardings = [jax.typeof(x).sharding for x in arrays]
    explicit = jax.sharding.AxisType.Explicit
    if not any(explicit in (sharding.mesh.axis_types or ()) for sharding in shardings):
        return None
    return shardings[0]


@cached(8)
def _compiled(library: Jax) -> Callable[[TableLookup], tuple[jax.Array, jax.Array]]:
    return jax.jit(super(Jax, library).cos_sin)


# A call is a pytree: arrays are traced, the rest is static and part of jit's cache key. Table keys
# are dropped, so that ropes that differ in numbers alone share compiled functions.
_LOOKUP = ["device", "tokens", "position_range", "components"]
_DROPPED: Any = ["table_key", ("table_key",)]  # jax < 0.10 takes each item for a set of names
for kind, arrays, plain, dropped in (
    (Call, ["arrays", "angles", "out", "weights", "slots"], ["backend", "spec"], []),
    (TableLookup, ["tables", "whole", "part"], _LOOKUP, _DROPPED),
    (DigitTables, [*DigitTables.__match_args__], [], ["handle", ("handle",)]),
    (CosSin, ["cos", "sin"], [], []),
    *((kind, [*arrays], [*plain], []) for kind, arrays, plain in PYTREE_CLASSES),
):
    jax.tree_util.register_dataclass(kind, arrays, plain, dropped)


class Jit(Path):
    """The portable path, compiled."""

    name = "jit"
    normalizes = True

    def __init__(self) -> None:
        self._run: Callable[[Call], tuple[Any, ...]] = jax.jit(portable.run)

    def run(self, call: Call) -> tuple[Any, ...]:
        return self._run(call)


BACKEND = Jax("jax", jnp, (Jit(),))
