"""Build the scaling of a Hugging Face configuration."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rope_xp import scaling
from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError, RopeError
from rope_xp.hf._model import Model, Parameters

TRAINED = "original_max_position_embeddings"
EXTENDED = "max_position_embeddings"


@dataclass(frozen=True)
class Source:
    """The parts of a configuration that describe the scaling of one layer type."""

    config: Mapping[str, Any]
    model: Model
    parameters: Parameters
    where: str
    """The place of the parameters, such as ``rope_parameters.full_attention``."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value of the parameters; the default if it is missing or None."""
        value = self.parameters.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        """Return a value of the parameters that must be there."""
        value = self.get(name)
        if value is None:
            rope_type = self.parameters["rope_type"]
            raise RopeError(f"{name} is missing; rope_type {rope_type!r} needs it")
        return value

    @property
    def extended(self) -> Any:
        """Tokens of the extended context; None if they are missing."""
        length = self.config.get(EXTENDED)
        return self.get(EXTENDED) if length is None else length

    @property
    def original(self) -> Any:
        """Tokens of the trained context; None if they are missing."""
        length = None if "." in self.where else self.config.get(TRAINED)
        return self.get(TRAINED) if length is None else length

    @property
    def trained(self) -> int:
        """Tokens of the trained context, by default those of the extended one."""
        length = self.extended if self.original is None else self.original
        if length is None:
            raise RopeError(f"{TRAINED} is missing, and so is {EXTENDED}")
        return numbers.check_positive_int(TRAINED, length)


def _dynamic(source: Source) -> scaling.Scaling:
    if source.get("alpha"):  # Hunyuan's name for a factor that does not depend on the length
        return scaling.NTK(source.get("alpha"))
    if source.extended is None:
        raise RopeConfigError(f"{EXTENDED} is missing; rope_type 'dynamic' needs it")
    return scaling.DynamicNTK(source.need("factor"), source.extended)


def _yarn(source: Source) -> scaling.Scaling:
    if source.get("short_factor") is not None:
        return _longrope(source)  # early files of Phi-3 call it yarn
    trained, factor = source.trained, source.get("factor")
    if factor is None:
        for name, length in ((TRAINED, source.original), (EXTENDED, source.extended)):
            if length is None:
                raise RopeError(
                    f"factor is missing, and so is {name}; the factor of rope_type 'yarn' is "
                    f"{EXTENDED} / {TRAINED}"
                )
        factor = numbers.check_positive_int(EXTENDED, source.extended) / trained
    yarn = scaling.YaRN(
        factor,
        trained,
        beta_fast=source.get("beta_fast") or 32.0,  # in configurations 0 stands for the default
        beta_slow=source.get("beta_slow") or 1.0,
        attention_factor=source.get("attention_factor"),
        mscale=source.get("mscale"),
        mscale_all_dim=source.get("mscale_all_dim"),
        truncate=source.get("truncate", True),
    )
    if source.config.get("qk_rope_head_dim") is None and yarn.mscale_all_dim is not None:
        # Only models with latent attention scale their softmax; the attention factor stays.
        factor = yarn.effective_attention_factor
        return replace(yarn, mscale=None, mscale_all_dim=None, attention_factor=factor)
    return yarn


def _longrope(source: Source) -> scaling.Scaling:
    short, long = source.get("short_mscale"), source.get("long_mscale")
    if short != long:
        raise RopeError(
            f"short_mscale = {short!r} and long_mscale = {long!r} differ; an attention factor that "
            "changes with the length of the context is not supported"
        )
    return scaling.LongRoPE(
        source.need("short_factor"),
        source.need("long_factor"),
        source.trained,
        factor=source.get("factor"),
        attention_factor=source.get("attention_factor") if short is None else short,
        max_position_embeddings=source.extended,
    )


def _llama3(source: Source) -> scaling.Scaling:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    factors = {name: source.need(name) for name in names}
    return scaling.Llama3(**factors, original_max_position_embeddings=source.trained)


_BUILDERS: dict[str, Callable[[Source], scaling.Scaling] | None] = {
    "default": None,
    "mrope": None,  # older Qwen2-VL, with mrope_section
    "linear": lambda source: scaling.Linear(source.need("factor")),
    "dynamic": _dynamic,
    "xdrope": _dynamic,  # older Hunyuan-VL
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # older Phi-3
    "llama3": _llama3,
    "proportional": lambda source: scaling.Proportional(
        source.get("partial_rotary_factor"), source.get("factor", 1.0)
    ),
    "axial": lambda source: scaling.Axial(
        len(source.model.components), source.model.axial or "blocks"
    ),
}


def read_scaling(source: Source) -> scaling.Scaling | None:
    """Return the scaling of the parameters."""
    rope_type = source.parameters["rope_type"]
    if not isinstance(rope_type, str) or rope_type not in _BUILDERS:
        known = ", ".join(map(repr, _BUILDERS))
        raise RopeError(f"rope_type {rope_type!r} is not known; known are {known}")
    build = _BUILDERS[rope_type]
    return None if build is None else build(source)
