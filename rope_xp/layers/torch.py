"""A RoPE as a module of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Literal, TypeAlias

import torch

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._frequencies import initial_frequencies
from rope_xp._functions import apply_frequencies
from rope_xp.angles import Angles
from rope_xp.layers import _common
from rope_xp.norm import QKNorm
from rope_xp.rope import Positions, RoPE
from rope_xp.scaling import DynamicNTK, LongRoPE

Learn: TypeAlias = Literal["shared", "head"] | None

_RTOL = 1e-6
"""float32 powers and quotients differ by a few units of 6e-8."""


class Rotary(torch.nn.Module):
    """Rotates queries and keys by their positions, as :meth:`rope_xp.RoPE.apply` does.

    Without ``learn`` it has no parameters and no buffers. So angles stay exact when a model is
    cast, and there is nothing to shard, to save, or to initialise after ``to_empty``. A checkpoint
    with ``inv_freq`` from another module loads if these are the frequencies of the RoPE.

    Parameters
    ----------
    rope : RoPE
        For example from :func:`rope_xp.from_hf_config`.
    axes : str, optional
        Names of the axes of q and k; see :func:`rope_xp.apply`.
    learn : {"shared", "head"}, optional
        Make the frequencies a parameter: one set, or one for each head. It starts from the RoPE,
        stays float32 when the model is cast, and is used by :func:`rope_xp.apply_frequencies`.
    head_dim, heads : int, optional
        For ``learn``: components of a head; for "head" also the heads of k.

    Examples
    --------
    >>> import torch
    >>> import rope_xp
    >>> from rope_xp.layers.torch import Rotary
    >>> rotary = Rotary(rope_xp.RoPE(base=5e5, layout="half"), axes="bhsd")
    >>> rotary
    Rotary(base=500000.0, layout='half', axes='bhsd')
    >>> q, k = torch.ones(1, 8, 5, 64), torch.ones(1, 2, 5, 64)
    >>> q_rotated, k_rotated = rotary(q, k, 1000 + torch.arange(5))
    """

    frequencies: torch.nn.Parameter | None

    def __init__(
        self,
        rope: RoPE,
        *,
        axes: str | None = None,
        learn: Learn = None,
        head_dim: int | None = None,
        heads: int | None = None,
    ) -> None:
        super().__init__()
        self.rope, self.axes = _common.check_rope(rope), axes
        self.learn, self._sizes = learn, _check_sizes(learn, head_dim, heads)
        # A plain None without learning: attributes are found faster than parameters.
        self.frequencies = None
        if learn is not None:
            initial = self._initial_frequencies().to(torch.get_default_device())
            self.frequencies = torch.nn.Parameter(initial)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        positions: Positions = None,
        *,
        k_positions: Positions = None,
        out: tuple[torch.Tensor | None, torch.Tensor] | None = None,
        slots: Any = None,
        cache_axes: str | None = None,
        norm: QKNorm | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotate queries and keys; see :func:`rope_xp.apply`."""
        if self.learn is None:
            options = {"k_positions": k_positions, "slots": slots, "cache_axes": cache_axes}
            return self.rope.apply(q, k, positions, axes=self.axes, out=out, norm=norm, **options)
        if any(option is not None for option in (k_positions, slots, norm)):
            raise RopeError(
                "k_positions, slots or norm was given, but a layer that learns its frequencies "
                "rotates q and k by the same positions, to new arrays or out=, and normalizes "
                "neither; leave it out"
            )
        learned: dict[str, Any] = {"layout": self.rope.layout, "axes": self.axes, "out": out}
        return apply_frequencies(q, k, positions, self.frequencies, **learned)

    def at(
        self, positions: Positions, *, like: torch.Tensor, head_dim: int | None = None
    ) -> Angles:
        """Return angles for all layers of a forward pass; see :meth:`rope_xp.RoPE.at`."""
        if self.learn is not None:
            raise RopeError(
                "at computes angles for all layers of a forward pass, but a layer that learns its "
                "frequencies has its own; call the layer: rotary(q, k, positions)"
            )
        return self.rope.at(positions, like=like, head_dim=head_dim)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        *_, errors = rest
        key = f"{prefix}inv_freq"  # a buffer of other modules, which the RoPE determines here
        if (saved := state_dict.pop(key, None)) is not None:
            errors.extend(_find_mismatches(self.rope, key, saved))
            if self.learn is not None:  # the other module learned none: start from the RoPE's
                state_dict.setdefault(f"{prefix}frequencies", self._initial_frequencies())
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def reset_parameters(self) -> None:
        """Set learned frequencies to those of the RoPE, also after ``to_empty``."""
        if self.frequencies is not None:
            with torch.no_grad():
                self.frequencies.copy_(self._initial_frequencies())

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows: the fields that differ from their defaults."""
        options = [(f.name, getattr(self.rope, f.name), f.default) for f in fields(self.rope)]
        options = [("learn", self.learn, None), *options, ("axes", self.axes, None)]
        return ", ".join(f"{n}={value!r}" for n, value, default in options if value != default)

    def _initial_frequencies(self) -> torch.Tensor:
        head_dim, heads = self._sizes
        host = initial_frequencies(self.rope, head_dim, heads or 1)  # type: ignore[arg-type]  # the class of rope was checked
        initial, like = torch.from_numpy(host).float(), self.frequencies
        if like is None or not hasattr(like, "device_mesh"):
            return initial
        from torch.distributed.tensor import distribute_tensor  # exists, as like is a DTensor

        return distribute_tensor(initial.to(like.device), like.device_mesh, like.placements)  # type: ignore[attr-defined]  # checked above

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        # Positions multiply the error of a frequency: of one rounded to bfloat16, angles are off by
        # up to 2 radians at position 1,000. So a cast moves parameters, and leaves them float32.
        def move(x: torch.Tensor) -> torch.Tensor:
            moved = fn(x)
            return moved if moved.dtype == x.dtype else x.to(moved.device)

        return super()._apply(move if self.learn else fn, *args, **kwargs)  # type: ignore[no-untyped-call]  # torch leaves it so


def _check_sizes(learn: Any, head_dim: Any, heads: Any) -> list[int | None]:
    """Check that the sizes that a layer learns by are given, and no others; return them."""
    if learn is not None:
        numbers.check_one_of("learn", learn, ("shared", "head"))
    sizes = []
    for name, size, is_needed, meaning in (
        ("head_dim", head_dim, learn is not None, "components of a head"),
        ("heads", heads, learn == "head", "heads of k"),
    ):
        if size is None and is_needed:
            raise RopeError(
                f"learn={learn!r} needs {name}=, {meaning}: learned frequencies are created before "
                "the layer sees q and k"
            )
        if size is not None and not is_needed:
            raise RopeError(f"{name}={size!r} was given, but learn={learn!r} does not use it")
        sizes.append(None if size is None else numbers.check_positive_int(name, size))
    return sizes


def _find_mismatches(rope: RoPE, key: str, saved: torch.Tensor) -> Iterator[str]:
    """Yield the errors of a checkpoint whose frequencies are not those of a RoPE."""
    if saved.device.type == "meta":  # has no values
        return
    values = saved.detach().to("cpu", torch.float64)
    # Casts of a model round its buffers.
    rtol = max(_RTOL, 2 * torch.finfo(saved.dtype).eps) if saved.is_floating_point() else _RTOL
    head_dim = rope.rotary_dim or 2 * values.numel()
    scaling, lengths = rope.scaling, [1]  # each with frequencies that a module may have saved
    if isinstance(scaling, (DynamicNTK, LongRoPE)) and scaling.length is not None:
        lengths.append(scaling.length)
    if isinstance(scaling, LongRoPE):
        lengths.append(scaling.original_max_position_embeddings + 1)
    try:
        regimes = [rope.for_length(length).frequencies(head_dim) for length in lengths]
        candidates = [torch.from_numpy(frequencies) for frequencies in regimes]
    except RopeError as error:
        yield f"{key} has shape {tuple(values.shape)}, which does not fit the RoPE: {error}"
        return
    if any(values.shape == c.shape and torch.allclose(values, c, rtol, 0.0) for c in candidates):
        return
    listed = ", ".join(f"{c[:3].tolist()} ... ({len(c)})" for c in candidates)
    yield (
        f"{key} holds the frequencies {values.flatten()[:3].tolist()} ... ({values.numel()}), but "
        f"the RoPE of this Rotary has {listed}. Build it from the checkpoint's configuration with "
        "rope_xp.from_hf_config, or remove the key if the checkpoint is wrong"
    )
