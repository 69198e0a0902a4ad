"""A module of torch that may learn frequencies; they start from those of a RoPE."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import torch

from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp._frequencies import apply_frequencies, initial_frequencies
from rope_xp.layers import _common
from rope_xp.rope import Positions, RoPE

Learn: TypeAlias = Literal["shared", "head"] | None
"""Whether frequencies are learned, one set for all heads or one for each."""


class LearnableRotary(torch.nn.Module):
    """A module with a RoPE, and perhaps a parameter that starts from its frequencies."""

    frequencies: torch.nn.Parameter | None

    def __init__(self, rope: RoPE, axes: str | None, learn: Learn, *sizes: int | None) -> None:
        super().__init__()
        self.rope, self.axes = _common.check_rope(rope), axes
        self.learn, self._sizes = learn, _check_sizes(learn, *sizes)
        # A plain None without learning: attributes are found faster than parameters.
        self.frequencies = None
        if learn is not None:
            self.frequencies = torch.nn.Parameter(
                self._initial_frequencies().to(torch.get_default_device())
            )

    def reset_parameters(self) -> None:
        """Start again from the RoPE, after ``to_empty`` too."""
        if self.frequencies is not None:
            with torch.no_grad():
                self.frequencies.copy_(self._initial_frequencies())

    def extra_repr(self) -> str:
        """Return what ``print(model)`` shows."""
        learned = f"learn={self.learn!r}, " if self.learn else ""
        return f"{learned}{_common.describe(self.rope, self.axes)}".removesuffix(", ")

    def _rotate(
        self, q: torch.Tensor, k: torch.Tensor, positions: Positions, k_positions: Positions
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if k_positions is not None:
            raise RopeError(
                "k_positions was given to a layer that learns its frequencies, which rotates q and "
                "k by the same positions; leave it out"
            )
        rope, frequencies = self.rope, self.frequencies
        return apply_frequencies(q, k, positions, frequencies, layout=rope.layout, axes=self.axes)

    def _initial_frequencies(self) -> torch.Tensor:
        head_dim, heads = self._sizes
        host = initial_frequencies(self.rope, head_dim, heads or 1)  # type: ignore[arg-type]  # checked
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


def _check_sizes(learn: Any, head_dim: Any, heads: Any) -> tuple[int | None, int | None]:
    """Check that the sizes that a layer learns by are given, and no others; return them."""
    if learn is not None:
        numbers.check_one_of("learn", learn, ("shared", "head"))
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
            raise RopeError(f"{name}={size!r} was given, and learn={learn!r} has no use for it")
    return (
        None if head_dim is None else numbers.check_positive_int("head_dim", head_dim),
        None if heads is None else numbers.check_positive_int("heads", heads),
    )
