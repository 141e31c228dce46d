"""Speech models, and models of text with images."""

from __future__ import annotations

from typing import Any

from suites.models.architecture import VOCABULARY, WIDTH, Architecture, floats, ids, mask, transformers_model

_WAVE = {"input_values": floats(2, 640)}
_WAV2VEC_LIKE: dict[str, Any] = {
    "vocab_size": 20,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH,
    "conv_dim": [16, 16],
    "conv_stride": [5, 4],
    "conv_kernel": [10, 4],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "hidden_dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "feat_proj_dropout": 0.0,
    "feat_extract_dropout": 0.0,
    "final_dropout": 0.0,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
    "mask_time_prob": 0.0,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TEXT_TOWER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 32,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "projection_dim": 16,
}
_IMAGE_TOWER: dict[str, Any] = {
    "hidden_size": WIDTH,
    "intermediate_size": 2 * WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
    "attention_dropout": 0.0,
    "projection_dim": 16,
}
_PAIR = {"input_ids": ids(2, 8), "pixel_values": floats(2, 3, 32, 32), "attention_mask": mask(2, 8)}

SPEECH: tuple[Architecture, ...] = (
    transformers_model(
        "wav2vec2",
        "Wav2Vec2ForCTC",
        "Wav2Vec2Config",
        ("speech",),
        inputs=_WAVE,
        dtypes=("float32", "float64"),
        **_WAV2VEC_LIKE,
    ),
    transformers_model("hubert", "HubertModel", "HubertConfig", ("speech",), inputs=_WAVE, **_WAV2VEC_LIKE),
    transformers_model(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        ("speech", "encdec"),
        inputs={"input_features": floats(2, 16, 32), "decoder_input_ids": ids(2, 8)},
        labels={"labels": ids(2, 8)},
        vocab_size=VOCABULARY,
        num_mel_bins=16,
        d_model=WIDTH,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * WIDTH,
        decoder_ffn_dim=2 * WIDTH,
        max_source_positions=16,
        max_target_positions=32,
        dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    ),
)

MULTIMODAL: tuple[Architecture, ...] = (
    transformers_model(
        "clip",
        "CLIPModel",
        "CLIPConfig",
        ("multimodal",),
        inputs=_PAIR,
        text_config=_TEXT_TOWER,
        vision_config=_IMAGE_TOWER,
        projection_dim=16,
    ),
    transformers_model(
        "siglip",
        "SiglipModel",
        "SiglipConfig",
        ("multimodal",),
        inputs={"input_ids": ids(2, 8), "pixel_values": floats(2, 3, 32, 32)},
        text_config={**_TEXT_TOWER, "projection_size": WIDTH},
        vision_config=_IMAGE_TOWER,
    ),
    transformers_model(
        "blip",
        "BlipForConditionalGeneration",
        "BlipConfig",
        ("multimodal",),
        inputs=_PAIR,
        text_config={
            **_TEXT_TOWER,
            "encoder_hidden_size": WIDTH,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "use_cache": False,
        },
        vision_config=_IMAGE_TOWER,
        projection_dim=16,
        image_text_hidden_size=16,
    ),
)
