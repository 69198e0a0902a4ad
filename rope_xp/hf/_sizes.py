"""Sizes of language models, for configurations that leave them out.

A file of transformers says only what differs from the defaults of its class. Those of the class are
here: components of a head ("-" where they follow from the width), heads, width, tokens of the
context, and layers. ``python tests/support/sizes.py`` prints the rows from transformers, and
``tests/models/test_hf_sizes.py`` compares them.
"""

from collections.abc import Mapping

KEYS = (
    "head_dim",
    "num_attention_heads",
    "hidden_size",
    "max_position_embeddings",
    "num_hidden_layers",
)

_ROWS = """
    afmoe 128 16 2048 16384 32
    apertus - 32 4096 65536 32
    arcee - 32 2560 4096 32
    aria - 32 4096 2048 32
    bamba - 32 4096 262144 32
    beam 128 48 5120 8192 52
    bitnet - 20 2560 2048 30
    blt_global_transformer - 16 2048 4096 25
    blt_local_decoder - 16 1024 24576 9
    blt_local_encoder - 16 1024 24576 1
    blt_patcher - 12 768 8192 14
    chameleon - 32 4096 4096 32
    cohere - 64 8192 8192 40
    cohere2 - 64 8192 8192 40
    cohere2_moe 128 64 8192 8192 40
    cohere_compass - 64 8192 8192 40
    cosmos3_edge 128 16 2048 131072 28
    csm - 32 2048 2048 16
    csm_depth_decoder_model - 8 1024 33 4
    cwm 128 48 6144 131072 64
    deepseek_ocr2 - 32 4096 2048 32
    deepseek_ocr2_encoder - 32 4096 32768 32
    dia_decoder 128 16 2048 3072 18
    dia_encoder 128 16 1024 1024 12
    diffllama - 32 2048 2048 16
    diffusion_gemma 256 8 2304 131072 30
    doge - 8 1024 2048 32
    dots1 - 32 4608 2048 62
    embedding_gemma2 256 4 512 262144 24
    emu3_text_model - 32 4096 9216 32
    ernie4_5 128 16 1024 131072 18
    ernie4_5_moe - 20 2560 131072 28
    ernie4_5_vl_moe - 20 2560 131072 28
    esm - 12 768 1026 12
    esmc - 40 2560 2048 80
    eurobert - 12 768 8192 12
    evolla - 32 4096 8192 32
    exaone4 - 32 4096 2048 32
    exaone_moe - 32 4096 2048 32
    falcon - 71 4544 2048 32
    falcon_h1 - 32 4096 8192 32
    flex_olmo - 32 4096 4096 32
    flint 128 32 2048 262144 49
    gemma 256 16 3072 8192 28
    gemma2 256 8 2304 8192 26
    gemma3 256 8 2304 131072 26
    gemma3n 256 8 2048 32768 35
    gemma4 256 8 2304 131072 30
    gemma4_unified 256 8 2304 262144 30
    glm 128 32 4096 131072 40
    glm4 128 32 4096 131072 40
    glm4_moe - 96 4096 131072 46
    glm4v - 32 4096 32768 40
    glm4v_moe - 96 4096 65536 46
    glm_image - 32 4096 131072 40
    glm_ocr - 16 1024 131072 16
    glmasr_encoder - 20 1280 1500 32
    gpt_neox - 64 6144 2048 44
    gpt_neox_japanese - 32 2560 2048 32
    gpt_oss 64 64 2880 131072 36
    granite - 32 4096 2048 32
    granite4_vision - 32 4096 2048 32
    granite_docling - 16 1024 32768 28
    granite_swa - 20 2560 8192 24
    granitemoe - 32 4096 2048 32
    granitemoe_swa - 32 4096 2048 32
    granitemoehybrid - 32 4096 2048 32
    granitemoeshared - 32 4096 2048 32
    gte - 12 768 8192 12
    helium 128 20 2560 4096 24
    higgs_audio_v2 128 24 3072 2048 28
    hrm 128 12 1536 2048 128
    hunyuan_v1_dense - 32 4096 2048 32
    hunyuan_v1_moe - 32 4096 2048 32
    hunyuan_vl - 32 4096 2048 32
    hy_v3 128 64 4096 131072 80
    hyperclovax - 32 4096 2048 32
    idefics - 32 4096 2048 32
    jais2 - 26 3328 8192 32
    jetmoe - 32 2048 4096 12
    jina_embeddings_v3 - 16 1024 8194 24
    kolibri1 128 48 2560 262144 50
    kyutai_speech_to_text - 32 2048 750 48
    laguna 128 48 2048 131072 40
    lasr_encoder - 8 512 10000 17
    lfm2 - 32 2560 128000 32
    lfm2_moe - 32 2048 128000 32
    lfm3 128 16 2048 128000 24
    llama - 32 4096 2048 32
    llama4 128 40 5120 131072 48
    mellum 128 32 2304 131072 28
    mimi - 8 512 8000 8
    mimo_v2_flash 192 64 4096 131072 48
    minimax - 32 4096 131072 32
    minimax_m2 128 48 3072 196608 62
    minimax_m3_vl 128 64 6144 524288 60
    ministral - 32 4096 131072 32
    ministral3 128 32 4096 262144 34
    mistral - 32 4096 131072 32
    mixtral - 32 4096 131072 32
    mllama_text_model - 32 4096 131072 40
    modernbert - 12 768 8192 22
    modernbert-decoder - 12 768 8192 22
    molmo2 128 32 4096 36864 36
    moonshine_streaming - 8 320 4096 6
    moshi - 32 4096 3000 32
    muse_glimmer 128 32 6656 131072 52
    muse_glimmer_assistant 128 32 6656 131072 5
    muse_spark 64 128 8192 1048576 62
    nemotron - 48 6144 4096 32
    nemotron3_5_transcribe_asr_audio - 10 1280 5000 32
    nemotron3_5_transcribe_word_timestamp - 16 1280 5000 2
    nemotron3_diarization_audio - 8 512 5000 31
    neucodec 64 16 1024 4096 12
    nomic_bert - 12 768 2048 12
    olmo - 32 4096 2048 32
    olmo2 - 32 4096 2048 32
    olmo3 - 32 4096 2048 32
    olmo_hybrid - 30 3840 65536 32
    olmoe - 16 2048 4096 16
    openai_privacy_filter 64 14 640 131072 8
    paddleocr_vl 128 16 1024 131072 18
    pe_audio_encoder 128 14 1792 10000 6
    pe_audio_video_encoder 128 14 1792 10000 6
    pe_video_encoder 128 14 1792 10000 6
    persimmon - 64 4096 16384 36
    phi - 32 2048 2048 24
    phi3 - 32 3072 4096 32
    phi4_multimodal - 32 3072 131072 32
    phimoe - 32 4096 131072 32
    pocket_tts_audio_tokenizer - 8 512 8000 2
    qwen2 - 32 4096 32768 32
    qwen2_5_omni - 28 3584 32768 28
    qwen2_5_omni_dit 64 16 1024 32768 22
    qwen2_5_omni_talker 128 28 3584 32768 28
    qwen2_5_vl - 64 8192 32768 80
    qwen2_moe - 16 2048 32768 24
    qwen2_vl - 64 8192 32768 80
    qwen3 128 32 4096 32768 32
    qwen3_5 256 16 4096 32768 32
    qwen3_5_moe 256 16 2048 32768 40
    qwen3_moe - 32 2048 32768 24
    qwen3_next 256 16 2048 32768 48
    qwen3_omni_moe - 28 2048 32768 28
    qwen3_omni_moe_talker - 16 1024 32768 20
    qwen3_omni_moe_talker_code_predictor 128 16 1024 32768 5
    qwen3_vl 128 32 4096 128000 32
    qwen3_vl_moe - 16 2048 128000 24
    qwen4_exp 256 16 2048 32768 40
    roformer - 12 768 1536 12
    seed_oss 128 80 4096 524288 64
    smollm3 - 16 2048 32768 36
    solar_open 128 64 4096 131072 48
    stablelm - 32 2560 4096 32
    starcoder2 - 24 3072 4096 30
    step3p5 128 64 4096 128000 45
    t5_gemma_module 256 8 2304 8192 26
    t5gemma2 256 8 2304 131072 26
    t5gemma2_decoder 256 8 2304 131072 26
    timesfm2_5 80 16 1280 16384 20
    ultrabert - 32 4096 32768 32
    unlimited_ocr - 10 1280 32768 12
    vaultgemma 256 8 2304 8192 26
    voxtral_realtime - 32 4096 131072 32
    voxtral_realtime_encoder 64 32 1280 1500 32
    xcodec2 64 16 1024 4096 12
    zamba2 - 32 2560 4096 54
    zaya 128 8 2048 131072 40
"""

_SIZES = {name: sizes for name, *sizes in map(str.split, _ROWS.strip().splitlines())}


def of(model_type: object) -> Mapping[str, int]:
    """Return the sizes of a model type, whose part "_text" may be missing; none if not known."""
    name = str(model_type)
    sizes = _SIZES.get(name) or _SIZES.get(name.removesuffix("_text")) or ()
    return {key: int(size) for key, size in zip(KEYS, sizes, strict=False) if size != "-"}
