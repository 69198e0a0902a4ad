"""Read the RoPE and the positions of a diffusion transformer from its configuration."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from rope_xp import positions
from rope_xp._core.errors import RopeConfigError, RopeError, rewording
from rope_xp._core.typing import Array, Device, Namespace
from rope_xp.hf import _files
from rope_xp.integrations._diffusion.grids import Grid
from rope_xp.integrations._diffusion.models import MODELS, UNSUPPORTED, ModelRow
from rope_xp.positions import _values
from rope_xp.rope import RoPE


class RotaryConfig(NamedTuple):
    """The rotary embedding of a diffusion transformer."""

    rope: RoPE
    positions: "Positions"


class Positions:
    """Positions of a transformer's tokens, in the order of its attention."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self._name, self._config = name, dict(config)

    def __repr__(self) -> str:
        return f"<positions of {self._name}>"

    def lines(self, grid: Grid) -> list[Any]:
        """Return the positions along each axis of a grid."""
        return MODELS[self._name].lines(grid, self._config)

    def __call__(
        self,
        height: int,
        width: int,
        *,
        frames: int = 1,
        text: int = 0,
        fps: float | None = None,
        xp: Namespace | None = None,
        device: Device | None = None,
    ) -> Array:
        """Return positions, (components, tokens).

        Parameters
        ----------
        height, width, frames : int
            Size of the image or video, in patches. For sound, ``width`` tokens of height 1.
        text : int, default 0
            Text tokens in the same sequence, if the model rotates text.
        fps : float, optional
            Frames per second, if the model uses them.
        xp, device : optional
            Library and device of the result; numpy by default.

        Returns
        -------
        array, (components, tokens), or (tokens,) for sound
            int64. If the model stretches its grid: float64, in libraries other than numpy float32.

        Raises
        ------
        RopeError
            If a length is not positive, or if the model has no such axis.
        """
        sizes = {"frames": frames, "height": height, "width": width}
        frames, height, width = (_values.check_count(name, n) for name, n in sizes.items())
        grid = Grid(frames, height, width, _values.check_count("text", text, 0), fps)
        row = MODELS[self._name].text
        if grid.text and row is None:
            raise RopeError(f"text = {text}: this model does not rotate its text; leave text out")
        lines = np.meshgrid(*self.lines(grid), indexing="ij")
        tokens = np.stack([line.ravel() for line in lines])
        if row is not None:
            start = row.start(grid) if callable(row.start) else row.start
            text_tokens = positions.text(grid.text, len(lines), start=start, along=row.along)
            parts = [text_tokens, tokens] if row.first else [tokens, text_tokens]
            tokens = np.concatenate(parts, axis=1)
        return _values.to_library(tokens if len(lines) > 1 else tokens[0], xp, device)


def from_config(config: object) -> RotaryConfig:
    """Return the RoPE of a diffusion transformer, and a function that computes its positions.

    Parameters
    ----------
    config : dict, path or object
        The transformer's config.json: its contents, its path or that of its folder; or a model.

    Returns
    -------
    RotaryConfig
        A named tuple of ``rope``, a :class:`rope_xp.RoPE`, and ``positions``, see
        :meth:`Positions.__call__`. Positions have the order of tokens in the model's attention.
        Their leading axis holds the components, in most models (frame, row, column).

    Raises
    ------
    RopeConfigError
        If ``_class_name`` is missing, unknown, or names a model that no RoPE can express; if a
        value is invalid.
    TypeError
        If config has another type.
    FileNotFoundError
        If there is no such file.

    Examples
    --------
    >>> from rope_xp.integrations.diffusers import from_config
    >>> rope, positions = from_config({"_class_name": "FluxTransformer2DModel"})
    >>> rope.scaling.sections, rope.base
    ((16, 56, 56), 10000.0)
    >>> positions(2, 2, text=1).tolist()  # a token of text, and four patches
    [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 1, 0, 1]]
    """
    name = None
    if not isinstance(config, Mapping | str | os.PathLike) and hasattr(config, "config"):
        name, config = type(config).__name__, config.config  # a model and its configuration
    values = _files.read_mapping(config)
    name = values.get("_class_name", name)
    if not isinstance(name, str):
        raise RopeConfigError("_class_name is missing: the model's class, which diffusers writes")
    if name in UNSUPPORTED:
        raise RopeConfigError(f"_class_name {name!r} has no RoPE: {UNSUPPORTED[name]}")
    if name not in MODELS:
        known = ", ".join(sorted(MODELS))
        raise RopeConfigError(f"_class_name {name!r} is unknown or does not rotate; known: {known}")
    invalid = TypeError, ValueError, KeyError, ArithmeticError
    with rewording(invalid, f"config of {name}: ", into=RopeConfigError):
        rope = _build_rope(MODELS[name], values)
    return RotaryConfig(rope, Positions(name, values))


def _build_rope(model: ModelRow, config: Mapping[str, Any]) -> RoPE:
    base = float(config.get(model.base_key) or model.base)
    sections = model.sections(config)
    if len(sections) == 1:
        axes = None if model.position_axes is None else model.position_axes(config)
        return RoPE(base=base, layout=model.layout, rotary_dim=sections[0], position_axes=axes)
    used = [axis for axis, n in enumerate(sections) if n]  # Bria's first may have no pairs
    bases = None if model.bases is None else model.bases(config, sections)
    rope = RoPE.axial([sections[i] for i in used], bases=bases, base=base, layout=model.layout)
    return replace(rope, position_axes=tuple(used[axis] for axis in rope.position_axes or ()))
