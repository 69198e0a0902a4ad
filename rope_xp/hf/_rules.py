"""From the parameters in a Hugging Face configuration to a scaling rule."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from rope_xp import scaling
from rope_xp._core import numbers
from rope_xp._core.errors import RopeConfigError
from rope_xp.hf import _keys
from rope_xp.hf._model import Model, Parameters
from rope_xp.scaling._rule import Scaling

TRAINED = "original_max_position_embeddings"


@dataclass(frozen=True)
class Source:
    """What a rule is made from."""

    config: Mapping[str, Any]
    model: Model
    parameters: Parameters
    where: str
    """How messages call the parameters, such as ``rope_parameters.full_attention``."""

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value of the parameters; the default where it is missing or None."""
        value = self.parameters.get(name)
        return default if value is None else value

    def need(self, name: str) -> Any:
        """Return a value of the parameters that must be there."""
        value = self.parameters.get(name)
        if value is None:
            rope_type = self.parameters["rope_type"]
            msg = f"{self.where}.{name} is missing; rope_type {rope_type!r} needs it"
            raise RopeConfigError(msg)
        return value

    @property
    def extended(self) -> Any:
        """Tokens of the whole context."""
        name = "max_position_embeddings"
        length = self.config.get(name)
        return self.get(name) if length is None else length

    @property
    def original(self) -> Any:
        """Tokens of the context before it was extended, None where nothing says so."""
        length = None if self.where.count(".") else self.config.get(TRAINED)
        return self.get(TRAINED) if length is None else length

    @property
    def trained(self) -> Any:
        """Tokens of the context before it was extended; the whole where nothing says so."""
        length = self.extended if self.original is None else self.original
        if length is None:
            msg = f"{self.where}.{TRAINED} is missing, and so is max_position_embeddings"
            raise RopeConfigError(msg)
        numbers.check_positive_int(TRAINED, length)
        return length


def _linear(source: Source) -> Scaling:
    return scaling.Linear(source.need("factor"))


def _dynamic(source: Source) -> Scaling:
    if source.get("alpha"):  # Hunyuan's name for a factor that does not depend on the length
        return scaling.NTK(source.get("alpha"))
    if source.extended is None:
        msg = "max_position_embeddings is missing; rope_type 'dynamic' needs it"
        raise RopeConfigError(msg)
    return scaling.DynamicNTK(source.need("factor"), source.extended)


def _yarn(source: Source) -> Scaling:
    trained = source.trained
    factor = source.get("factor")
    rule = scaling.YaRN(
        _ratio(source, trained) if factor is None else factor,
        trained,
        beta_fast=source.get("beta_fast") or 32.0,  # in configurations 0 stands for the default
        beta_slow=source.get("beta_slow") or 1.0,
        attention_factor=source.get("attention_factor"),
        mscale=source.get("mscale"),
        mscale_all_dim=source.get("mscale_all_dim"),
        truncate=source.get("truncate", True),
    )
    if source.config.get("qk_rope_head_dim") is None and rule.mscale_all_dim is not None:
        # Only models with latent attention correct their softmax; the attention factor stays.
        factor = rule.effective_attention_factor
        return replace(rule, mscale=None, mscale_all_dim=None, attention_factor=factor)
    return rule


def _longrope(source: Source) -> Scaling:
    trained = source.trained
    factor = source.get("factor")
    attention_factor = source.get("attention_factor")
    short, long = source.get("short_mscale"), source.get("long_mscale")
    if short != long:
        msg = (
            f"{source.where}.short_mscale = {short!r} and long_mscale = {long!r} differ; an "
            "attention factor that changes with the length of the context is not supported"
        )
        raise RopeConfigError(msg)
    return scaling.LongRoPE(
        source.need("short_factor"),
        source.need("long_factor"),
        trained,
        factor=factor,
        attention_factor=attention_factor if short is None else short,
        max_position_embeddings=source.extended,
    )


def _llama3(source: Source) -> Scaling:
    return scaling.Llama3(
        source.need("factor"),
        source.need("low_freq_factor"),
        source.need("high_freq_factor"),
        source.trained,
    )


def _proportional(source: Source) -> Scaling:
    return scaling.Proportional(source.get("partial_rotary_factor"), source.get("factor", 1.0))


def _axial(source: Source) -> Scaling:
    return scaling.Axial(len(source.model.components), source.model.axial or "blocks")


def _ratio(source: Source, trained: Any) -> float:
    for name, value in ((TRAINED, source.original), ("max_position_embeddings", source.extended)):
        if value is None:
            msg = (
                f"{source.where}.factor is missing, and so is {name}; the factor of rope_type "
                "'yarn' is max_position_embeddings / original_max_position_embeddings"
            )
            raise RopeConfigError(msg)
    numbers.check_positive_int("max_position_embeddings", source.extended)
    return float(source.extended / trained)


RULES: dict[str, Callable[[Source], Scaling] | None] = {
    "default": None,
    "mrope": None,  # older Qwen2-VL: what mrope_section says
    "linear": _linear,
    "dynamic": _dynamic,
    "xdrope": _dynamic,  # older Hunyuan-VL
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # older Phi-3
    "llama3": _llama3,
    "proportional": _proportional,
    "axial": _axial,
}


def read_scaling(source: Source) -> Scaling | None:
    """Return the scaling rule of the parameters."""
    rope_type = source.parameters["rope_type"]
    if not isinstance(rope_type, str) or rope_type not in RULES:
        msg = (
            f"{source.where}.rope_type {rope_type!r} is not known; known are "
            f"{', '.join(map(repr, RULES))}"
        )
        raise RopeConfigError(msg)
    make = RULES[rope_type]
    if rope_type == "yarn" and _keys.first_value(source.parameters, "short_factor") is not None:
        make = _longrope  # as early files of Phi-3 have it
    return None if make is None else make(source)
