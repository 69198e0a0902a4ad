"""From the configuration of a diffusion transformer to its RoPE and its positions."""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from rope_xp._contract.errors import RopeConfigError, RopeError
from rope_xp._contract.typing import Array, Device, Namespace
from rope_xp._dispatch import find
from rope_xp.hf import _keys
from rope_xp.integrations._diffusion.models import MODELS, UNSUPPORTED, Model
from rope_xp.integrations._diffusion.places import Grid
from rope_xp.rope import RoPE


class Rotary(NamedTuple):
    """The rotary embedding of a diffusion transformer."""

    rope: RoPE
    positions: "Positions"
    """Which makes the positions that ``rope`` takes."""


class Positions:
    """Makes the positions of a transformer's tokens, in the order of its attention."""

    def __init__(self, name: str, model: Model, config: Mapping[str, Any]) -> None:
        self._name, self._model, self._config = name, model, config

    def __repr__(self) -> str:
        return f"<positions of {self._name}>"

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
            Of the image or video, in patches. Of sound, ``width`` tokens of height 1.
        text : int, default 0
            Tokens of text that are rotated with them, where the model rotates text.
        fps : float, optional
            Frames a second, of a model that asks for it.
        xp, device : optional
            Library and device of the result; numpy by default.

        Returns
        -------
        array, (components, tokens), or (tokens,) of models of sound
            int64, or float64 where the model stretches its grid, of other libraries float32.

        Raises
        ------
        RopeError
            If a length is not positive, or one that the model does not have.
        """
        found = self._model.place(Grid(frames, height, width, text, fps), self._config)
        if xp is None:
            if device is not None:
                raise RopeError(f"device = {device!r} needs xp, the library whose device it is")
            return found
        narrow = found.astype("float32") if found.dtype == "float64" else found
        return find.backend_of_namespace(xp).asarray(narrow, device)


def from_config(config: object) -> Rotary:
    """Return what :func:`rope_xp.integrations.diffusers.from_config` promises."""
    name = None
    if not isinstance(config, Mapping | str | os.PathLike) and hasattr(config, "config"):
        name, config = type(config).__name__, config.config  # a model, and its dictionary
    given = _keys.read(config)
    name = given.get("_class_name", name)
    if not isinstance(name, str):
        msg = "_class_name is missing: the class of the model, which diffusers writes there"
        raise RopeConfigError(msg)
    if name in UNSUPPORTED:
        raise RopeConfigError(f"_class_name {name!r} has no RoPE: {UNSUPPORTED[name]}")
    if name not in MODELS:
        msg = (
            f"_class_name {name!r} is not known, or does not rotate; known are "
            f"{', '.join(sorted(MODELS))}"
        )
        raise RopeConfigError(msg)
    model = MODELS[name]
    filled = {**model.defaults, **given}
    try:
        rope = _rope(model, filled)
    except (RopeError, TypeError, ValueError, KeyError, ArithmeticError) as error:
        raise RopeConfigError(f"config of {name}: {error}") from error
    return Rotary(rope, Positions(name, model, filled))


def _rope(model: Model, config: Mapping[str, Any]) -> RoPE:
    base = float(config.get(model.base_key) or model.base)
    sections = model.sections(config)
    if model.order is not None:
        (rotary_dim,) = sections
        axes = model.order(config)
        return RoPE(base=base, layout=model.layout, rotary_dim=rotary_dim, position_axes=axes)
    if len(sections) == 1:
        return RoPE(base=base, layout=model.layout, rotary_dim=sections[0])
    bases = None if model.bases is None else model.bases(config, sections)
    return RoPE.axial(sections, bases=bases, base=base, layout=model.layout)
