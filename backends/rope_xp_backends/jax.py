"""jax: an eager call runs one cached jitted function; under a transformation it traces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from rope_xp import _angles, _portable, _validate
from rope_xp._contract import Backend, Call, Difference, Given, Lookup, numpy_name
from rope_xp.rope import RoPE

from . import _jax_gpu

# A call is a tree: its arrays are traced, the rest is static and part of jit's cache key.
jax.tree_util.register_dataclass(
    Call,
    data_fields=["arrays", "angles", "out"],
    meta_fields=["backend", "axes", "layout", "rotary_dim", "rotary_offset", "inverse"],
)
jax.tree_util.register_dataclass(
    Lookup,
    data_fields=["tables", "whole", "part"],
    meta_fields=["device", "tokens", "reach", "wide", "scale", "components"],
)
jax.tree_util.register_dataclass(Given, data_fields=["cos", "sin"], meta_fields=[])
jax.tree_util.register_dataclass(Difference, data_fields=["new", "old"], meta_fields=[])

_FLOAT32_MIN = float(np.finfo(np.float32).min)


class Jit:
    """The portable path, compiled. Inside another jit it is inlined."""

    name = "jit"

    def __init__(self) -> None:
        self._run: Callable[[Call], tuple[Any, ...]] = jax.jit(_portable.run)

    def declines(self, call: Call) -> str | None:
        """Decline nothing."""
        return None

    def defers(self, call: Call) -> str | None:
        """Defer to nothing."""
        return None

    def run(self, call: Call) -> tuple[Any, ...]:
        """Compile once for each signature."""
        return self._run(call)


class JitGpu(Jit):
    """The same, with the rotation spelled for GPUs."""

    name = "jit-gpu"

    def __init__(self) -> None:
        self._run = jax.jit(partial(_portable.run, rotate=_jax_gpu.rotate))

    def defers(self, call: Call) -> str | None:
        """Defer on other devices. That of a trace is only guessed, as numbers are the same."""
        device = call.backend.device(call.arrays[0])
        platform = jax.default_backend() if device is None else device.platform
        return (
            None if platform == "gpu" else f"it is spelled for GPUs, and this runs on a {platform}"
        )


class Jax(Backend):
    """The glue of jax."""

    out_refusal = (
        "jax arrays cannot be written to. Under jit, donate the inputs and XLA reuses their "
        "memory: jax.jit(..., donate_argnums=(0, 1))"
    )

    def dtype_name(self, x: jax.Array) -> str:
        """Jax dtypes are numpy's."""
        return numpy_name(x.dtype)

    def device(self, x: jax.Array) -> jax.Device | None:
        """Return the device that x is committed to, None for tracers and sharded arrays."""
        if isinstance(x, jax.core.Tracer) or not x.committed:
            return None
        devices = x.devices()
        return next(iter(devices)) if len(devices) == 1 else None

    def asarray(self, host: np.ndarray, device: jax.Device | None) -> jax.Array:
        """Place uncommitted where no device is named, so that jit may move it.

        jnp.asarray would tie it to the mesh in use, and trips jax_debug_nans on the tables' NaN.
        """
        return jax.device_put(host, device)  # type: ignore[no-any-return]  # of a tree, in general

    def arange(self, n: int, device: jax.Device | None) -> jax.Array:
        """Leave the device to jit."""
        return jnp.arange(n, dtype=jnp.int32)

    def product(self, a: jax.Array, b: jax.Array) -> jax.Array:
        """XLA fuses a * b + c, past optimization_barrier too; a maximum in between it cannot fold.

        With it the tables have the bits of all other libraries. float64 needs no such care.
        """
        return jnp.maximum(a * b, _FLOAT32_MIN) if a.dtype == jnp.float32 else a * b

    def rows(self, table: jax.Array, indices: jax.Array) -> jax.Array:
        """Index with all axes, as flat indices would have to be gathered from a mesh.

        Under explicit sharding the result lies as the indices do.
        """
        axes = jax.typeof(indices).sharding
        explicit = axes.mesh.axis_types and AxisType.Explicit in axes.mesh.axis_types
        spec = PartitionSpec(*axes.spec, None)  # type: ignore[no-untyped-call]  # jax leaves it so
        where = NamedSharding(axes.mesh, spec) if explicit else None
        return jnp.asarray(table).at[indices].get(mode="promise_in_bounds", out_sharding=where)

    def computed_once(self, cos: jax.Array, sin: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Write them to memory, where XLA on a CPU would fuse the lookup into the rotation.

        That takes 1.7 times as long in bfloat16. It fuses past optimization_barrier, but not past
        an update of part of an array. Numbers are the same, so the platform is only guessed.
        """
        if not isinstance(cos, jax.core.Tracer) or jax.default_backend() != "cpu":
            return cos, sin
        axis, pairs = cos.ndim - 1, cos.shape[-1]
        both = jnp.concatenate([cos, sin], axis)
        # New arrays belong to the mesh in use, which need not be the one that these lie on.
        with jax.sharding.use_abstract_mesh(jax.typeof(both).sharding.mesh):
            both = jnp.zeros_like(both)
        both = jax.lax.dynamic_update_slice_in_dim(both, cos, 0, axis)
        both = jax.lax.dynamic_update_slice_in_dim(both, sin, pairs, axis)
        return both[..., :pairs], both[..., pairs:]

    def tables(
        self, rope: RoPE, head_dim: int, inverse: bool, wide: bool, like: jax.Array
    ) -> tuple[tuple[Any, ...], ...]:
        """Return numpy tables to a trace, which makes constants of them; else arrays."""
        if wide and jax.dtypes.canonicalize_dtype(np.float64) != np.float64:
            raise _validate.no_float64(self)
        if isinstance(like, jax.core.Tracer):
            return _angles.host_tables(rope, head_dim, inverse, wide)
        # Another trace may be under way, whose tracers must not get into the cache.
        with jax.ensure_compile_time_eval():
            return super().tables(rope, head_dim, inverse, wide, like)


BACKEND = Jax("jax", jnp, (JitGpu(), Jit()))
