"""Find the part of a configuration that is read, in the spellings of other repositories too."""

from collections.abc import Mapping

from rope_xp._core.errors import RopeConfigError
from rope_xp.hf import _keys
from rope_xp.hf._keys import Part
from rope_xp.hf._models import MODELS, get_row

# The language model within a configuration of several parts.
PARTS = ("text_config", "llm_config", "language_config", "thinker_config")
_LATENT = ("qk_rope_head_dim", "qk_nope_head_dim")
_OF_ATTENTION = (*_keys.BASE, "kv_n_heads", "alibi", "rope_hf_config")
"""Keys that DBRX and MPT have in ``attn_config``."""
_EVO = ("use_interpolated_rotary_pos_emb", "rotary_emb_scaling_factor")
"""How StripedHyena (Evo) spells a linear scaling: whether there is one, and its factor."""


def find_part(config: Part) -> Part:
    """Return the part of a configuration that is read: a language model, or what was passed."""
    for name in PARTS:
        if isinstance(config.get(name), Mapping):
            # A part without a type has that of the whole.
            return find_part({"model_type": config.get("model_type"), **config[name]})
    part = dict(config)
    if not part.get("kv_lora_rank"):  # 0 is for sizes of latent attention that a model lacks
        part |= {key: None for key in _LATENT if part.get(key) == 0}
    attention = part.get("attn_config")
    if isinstance(attention, Mapping):
        if attention.get("rope") is False:
            raise RopeConfigError("attn_config.rope is false: the model has no rotary embedding")
        part = {**{key: attention[key] for key in _OF_ATTENTION if key in attention}, **part}
    if part.get(_EVO[0]) and not part.get("rope_scaling"):
        _, factor = part.pop(_EVO[0]), part.pop(_EVO[1], 1.0)
        part["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    return _name_vision_tower(part)


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
