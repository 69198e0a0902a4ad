"""Find the part of a configuration that is read, in the spellings of other repositories too."""

from collections.abc import Mapping
from typing import Any

from rope_xp._core.errors import RopeConfigError
from rope_xp.hf import _keys
from rope_xp.hf._keys import Part
from rope_xp.hf._models import MODELS, get_row

# The language model within a configuration of several parts.
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_LATENT = ("qk_rope_head_dim", "qk_nope_head_dim")
_OF_ATTENTION = (*_keys.BASE, "kv_n_heads", "alibi")
"""Keys that DBRX and MPT have in ``attn_config``."""


def find_part(config: Part) -> Part:
    """Return the part of a configuration that is read: a language model, or what was passed."""
    for name in PARTS:
        if isinstance(config.get(name), Mapping):
            # A part without a type has that of the whole.
            return find_part({"model_type": config.get("model_type"), **config[name]})
    return _name_vision_tower(_spell_scaling(_lift_attention(_drop_zeros(config))))


def _drop_zeros(part: Part) -> Part:
    """Return a part where 0 for a size of latent attention, which a model lacks, is null."""
    if part.get("kv_lora_rank"):
        return part
    return {k: None if k in _LATENT and v == 0 else v for k, v in part.items()}


def _lift_attention(part: Part) -> Part:
    """Return a part with the rotary keys of its ``attn_config``."""
    inner = part.get("attn_config")
    if not isinstance(inner, Mapping):
        return part
    if inner.get("rope") is False:
        raise RopeConfigError("attn_config.rope is false: the model has no rotary embedding")
    lifted: dict[str, Any] = {key: inner[key] for key in _OF_ATTENTION if key in inner}
    scaling = inner.get("rope_hf_config")
    if inner.get("rope_impl") == "hf" and isinstance(scaling, Mapping):
        lifted["rope_scaling"] = None if scaling.get("type") == "no_scaling" else scaling
    return {**lifted, **part}


def _spell_scaling(part: Part) -> Part:
    """Return a part with the scaling that StripedHyena (Evo 2) has in two keys of its own."""
    if not part.get("use_interpolated_rotary_pos_emb") or part.get("rope_scaling"):
        return part
    factor = part.get("rotary_emb_scaling_factor", 1.0)
    rest = ("use_interpolated_rotary_pos_emb", "rotary_emb_scaling_factor")
    scaling = {"rope_type": "linear", "factor": factor}
    return {**{k: v for k, v in part.items() if k not in rest}, "rope_scaling": scaling}


def _name_vision_tower(part: Part) -> Part:
    """Return a part with its own type: files of vision towers may have that of the whole model."""
    kind = part.get("model_type")
    row, names = get_row(kind), [f"{kind}_vision", f"{kind}_vision_encoder"]
    has_tower = row is not None and (row.sections or any(name in MODELS for name in names))
    sees = "patch_size" in part or ("spatial_merge_size" in part and "vocab_size" not in part)
    if not (has_tower and sees) or "vision_config" in part:
        return part
    if "vocab_size" in part:
        raise RopeConfigError(
            f"the configuration of model_type {kind!r} has keys of a language model, vocab_size, "
            f"and of a vision tower, patch_size; pass one of them, the tower as {names[0]!r}"
        )
    return {**part, "model_type": next((name for name in names if name in MODELS), names[0])}
