"""Small models of transformers with random weights, whose logits depend on positions."""

import inspect

import torch
import transformers

# Large weights, so that attention is far from even and a wrong rotation is plain to see.
SMALL = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size"), 64),
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
}
_EXPERTS = {
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_LATENT = {
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("first_k_dense_replace", "n_group", "topk_group"), 1),
    "qk_rope_head_dim": 8,
    "num_key_value_heads": 4,
    **_EXPERTS,
}
_HEAD = {"head_dim": 16}
_WINDOW = {"head_dim": 16, "sliding_window": 8, "num_hidden_layers": 6}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [2.0 + i for i in range(8)],
}
_SECTIONS = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 3, 3]}

_MORE_EXPERTS = {**_EXPERTS, **_HEAD, "sliding_window": 8}
_MORE_LATENT = {**_LATENT, "sliding_window": 8}
_BY_FIELDS = {
    """
    beam bitnet cohere cohere2 diffllama exaone4 flex_olmo gemma2 gpt_neox granite_swa granitemoe
    jetmoe lfm2 llama ministral3 modernbert-decoder olmo2 olmo_hybrid persimmon phi smollm3
    stablelm
    """: {},
    "ernie4_5 glm qwen3": _HEAD,
    "gpt_oss hunyuan_v1_dense laguna lara_mini mimo_v2_flash minimax_m2 qwen3_moe": _MORE_EXPERTS,
    "axk2 deepseek_v2 deepseek_v3 deepseek_v32 dots3_note_text hy_v4 minicpm3": _MORE_LATENT,
    "falcon": {"num_kv_heads": 2},
    "flint": {"num_hidden_layers": 4},
    "gemma3_text": _WINDOW,  # two bases
    "gemma4_text": {  # proportional, and heads of two widths
        **_WINDOW,
        "global_head_dim": 32,
        "vocab_size_per_layer_input": 64,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 0,
    },
    "llama4_text": {  # complex numbers
        **_EXPERTS,
        "head_dim": 16,
        "intermediate_size_mlp": 64,
        "attn_temperature_tuning": False,
    },
    "phi3": {"rope_parameters": _LONGROPE, "original_max_position_embeddings": 32},
}
FAMILIES = {name: fields for names, fields in _BY_FIELDS.items() for name in names.split()}
"""Decoders that differ in what they rotate or cache, and what they need beyond ``SMALL``."""
_FIELDS = FAMILIES | {"deepseek_v4": {"head_dim": 64, **_EXPERTS}}  # the end of a head
CACHE = "cache"
"""The argument of their forward for keys and values: past_key_values before 5.24."""
if "cache" not in inspect.signature(transformers.LlamaModel.forward).parameters:
    CACHE = "past_key_values"


def make(model_type, model=transformers.AutoModelForCausalLM, **more):
    fields = {**SMALL, **_FIELDS.get(model_type, {}), **more}
    config = transformers.AutoConfig.for_model(model_type, **fields)
    torch.manual_seed(0)
    return model.from_config(config).eval()


def multimodal_text(model_type):
    """Return the text model of one with M-RoPE, with the same weights at each call."""
    more = {"rope_parameters": _SECTIONS, "head_dim": 16}
    if model_type == "qwen3_5_text":  # of which most layers have no attention
        more |= {"layer_types": ["full_attention"] * 2}
        more["rope_parameters"] = _SECTIONS | {"partial_rotary_factor": 1.0}
    return make(model_type, transformers.AutoModel, **more)


def vision_language(key="rope_parameters"):
    """Return a Qwen2-VL, whose text has M-RoPE and whose images have axial positions, and input.

    Versions of transformers before 5 have sections by another key.
    """
    vision = {"depth": 2, "embed_dim": 32, "num_heads": 2, "hidden_size": 64, "mlp_ratio": 2}
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    marks = dict(zip(names, range(3, 7), strict=True))
    text = {**SMALL, key: _SECTIONS}
    config = transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **marks)
    torch.manual_seed(0)
    model = transformers.Qwen2VLForConditionalGeneration(config).eval()
    tokens = torch.randint(7, 64, (1, 24))
    tokens[0, 4:10] = torch.tensor([5, 3, 3, 3, 3, 6])
    inputs = {
        "input_ids": tokens,
        "pixel_values": torch.randn(16, 3 * 2 * 14 * 14),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (tokens == 3).long(),
    }
    return model, inputs
