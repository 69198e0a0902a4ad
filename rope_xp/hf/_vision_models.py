"""Rows of the models that read images, whose positions have a row and a column.

Their configurations in transformers 5 have ``rope_type`` "axial"; older files have none.
Component 0 of a position is the row (height), component 1 the column (width).
"""

from rope_xp.hf._model import Model

_MEMORY = (
    *("memory_attention_hidden_size", "memory_attention_downsample_rate"),
    "memory_attention_num_attention_heads",
)

ROWS: tuple[tuple[str, Model], ...] = (
    (
        """
        cohere_compass_vision dots3_note_vision_encoder ernie4_5_vl_moe_vision exaone4_5_vision
        glm4v_vision glm4v_moe_vision glm5_next_vision glm_ocr_vision mlcd_vision_model
        muse_glimmer_vision muse_spark_vision paddleocr_vl_vision qwen2_5_omni_vision_encoder
        qwen2_5_vl_vision qwen3_5_moe_vision qwen3_5_vision qwen3_omni_moe_vision_encoder
        qwen3_vl_moe_vision qwen3_vl_vision qwen4_exp_vision video_llama_3_vision
        """,
        Model(axial="blocks"),
    ),
    ("qwen2_vl_vision", Model(axial="blocks", width=("embed_dim", "num_heads"))),
    ("lfm3_vl_vision", Model(axial="blocks", base=1e6)),
    ("dinov3_vit eomt_dinov3 sapiens2", Model(axial="blocks", base=100.0)),
    ("step3p5_vision", Model(axial="blocks", components=(1, 0))),
    ("kimi_k25_vision", Model(axial="alternating", components=(1, 0))),
    ("pixtral", Model(axial="strided")),
    ("minimax_m3_vl_vision", Model(axial="blocks", components=(0, 1, 2))),
    (
        "inkling2_vision llama4_vision_model",
        Model("interleaved", axial="blocks", components=(1, 0)),
    ),
    ("sam3_vit_model", Model("interleaved", axial="blocks")),
    (
        "edgetam_video sam2_video sam3_tracker_video",
        Model("interleaved", axial="blocks", width=_MEMORY),
    ),
    (
        "efficientloftr",  # rotates all channels before they are split into heads
        Model("interleaved", axial="alternating", width=("hidden_size",)),
    ),
    (
        "neomme",
        Model(
            section_order="rows and columns",
            layers={
                "full_attention": {"rope_theta": 1e6, "partial_rotary_factor": 0.25},
                "sliding_attention": {"rope_theta": 1e4},
            },
        ),
    ),
)

UNSUPPORTED = {
    "gemma4_vision": "it rotates two slices of a head; use one RoPE for each, with rotary_offset",
    "mistral_large4": (
        "its frequencies are learned, and in the weights: exp(alpha) * inv_freq of its rotary "
        "embedding, for rope_xp.apply_frequencies"
    ),
    "musicflamingo": "its angles are products of two positions",
    "kimi_linear": "it has no rotary embedding, though its keys are named for one",
    "nemotron_h": "it has no rotary embedding, though its keys are named for one",
    "nanochat": "it rotates by the negative angle; use RoPE(layout='half') and unrotate",
    "clvp_encoder": "it rotates v as well, by components that projection_dim gives",
}
"""Model types that no RoPE can express, and what to do."""
