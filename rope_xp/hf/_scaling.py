"""Build the scaling of a Hugging Face configuration."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from rope_xp import scaling
from rope_xp._core import numbers
from rope_xp._core.errors import RopeError
from rope_xp.hf._keys import EXTENDED, TRAINED, Model, Parameters, find_value


class Source(NamedTuple):
    """The parts of a configuration that describe the rotation of one layer type."""

    config: Mapping[str, Any]
    model: Model
    parameters: Parameters
    where: str  # such as "rope_parameters.full_attention"

    def need(self, name: str) -> Any:
        value = self.extended if name == EXTENDED else self.parameters.get(name)
        if value is None:
            rope_type = self.parameters["rope_type"]
            raise RopeError(f"{name} is missing; rope_type {rope_type!r} needs it")
        return value

    @property
    def extended(self) -> Any:
        """Tokens of the extended context; None if they are missing."""
        length = find_value(self.config, EXTENDED)
        return self.parameters.get(EXTENDED) if length is None else length

    @property
    def original(self) -> Any:
        """Tokens of the trained context; None if they are missing."""
        length = None if "." in self.where else self.config.get(TRAINED)
        return self.parameters.get(TRAINED) if length is None else length

    @property
    def trained(self) -> int:
        """Tokens of the trained context, by default those of the extended one."""
        length = self.extended if self.original is None else self.original
        if length is None:
            raise RopeError(f"{TRAINED} is missing, and so is {EXTENDED}")
        return numbers.check_positive_int(TRAINED, length)


def _dynamic(source: Source) -> scaling.Scaling:
    if alpha := source.parameters.get("alpha"):  # Hunyuan's name for a factor at every length
        return scaling.NTK(alpha)
    return scaling.DynamicNTK(source.need("factor"), source.need(EXTENDED))


def _yarn(source: Source) -> scaling.Scaling:
    parameters = source.parameters
    if "short_factor" in parameters:
        return _longrope(source)  # early files of Phi-3 call it yarn
    trained, factor = source.trained, parameters.get("factor")
    if factor is None:
        if source.original is None or source.extended is None:
            missing = TRAINED if source.original is None else EXTENDED
            raise RopeError(f"factor is missing, and so is {missing} to compute it from")
        factor = numbers.check_positive_int(EXTENDED, source.extended) / trained
    names = ("attention_factor", "mscale", "mscale_all_dim", "truncate", "beta_fast", "beta_slow")
    options = {name: parameters[name] for name in names if name in parameters}
    options = {n: v for n, v in options.items() if v or "beta" not in n}  # 0: the default
    yarn = scaling.YaRN(factor, trained, **options)
    if source.config.get("qk_rope_head_dim") is None and yarn.mscale_all_dim is not None:
        # Only models with latent attention scale their softmax; the attention factor stays.
        factor = yarn.effective_attention_factor
        return replace(yarn, mscale=None, mscale_all_dim=None, attention_factor=factor)
    return yarn


def _longrope(source: Source) -> scaling.Scaling:
    parameters = source.parameters
    short, long = parameters.get("short_mscale"), parameters.get("long_mscale")
    if short != long:
        raise RopeError(
            f"short_mscale = {short!r} and long_mscale = {long!r} differ; an attention factor that "
            "changes with the length of the context is not supported"
        )
    return scaling.LongRoPE(
        source.need("short_factor"),
        source.need("long_factor"),
        source.trained,
        factor=parameters.get("factor"),
        attention_factor=parameters.get("attention_factor") if short is None else short,
        max_position_embeddings=source.extended,
    )


BUILDERS: dict[str, Callable[[Source], scaling.Scaling | None]] = {
    "default": lambda _: None,
    "mrope": lambda _: None,  # older Qwen2-VL, with mrope_section
    "linear": lambda source: scaling.Linear(source.need("factor")),
    "dynamic": _dynamic,
    "xdrope": _dynamic,  # older Hunyuan-VL
    "yarn": _yarn,
    "deepseek_yarn": _yarn,  # older Sarvam
    "longrope": _longrope,
    "su": _longrope,  # older Phi-3
    "llama3": lambda source: scaling.Llama3(
        *(source.need("factor"), source.need("low_freq_factor"), source.need("high_freq_factor")),
        source.trained,
    ),
    "proportional": lambda source: scaling.Proportional(
        source.parameters["partial_rotary_factor"], source.parameters.get("factor", 1.0)
    ),
    "axial": lambda s: scaling.Axial(len(s.model.components), s.model.axial or "blocks"),
}


def read_scaling(source: Source) -> scaling.Scaling | None:
    rope_type = source.parameters["rope_type"]
    if not isinstance(rope_type, str) or rope_type not in BUILDERS:
        known = ", ".join(map(repr, BUILDERS))
        raise RopeError(f"rope_type {rope_type!r} is not known; known are {known}")
    return BUILDERS[rope_type](source)
