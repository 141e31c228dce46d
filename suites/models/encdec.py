"""Encoder-decoder language models."""

from __future__ import annotations

from typing import Any

from suites.models.architecture import VOCABULARY, WIDTH, Architecture, ids, mask, transformers_model

_INPUTS = {"input_ids": ids(2, 12), "attention_mask": mask(2, 12), "decoder_input_ids": ids(2, 8)}
_LABELS = {"labels": ids(2, 8)}
_TOKENS: dict[str, Any] = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 1, "use_cache": False}
_BART_LIKE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": WIDTH,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
    "max_position_embeddings": 64,
    "dropout": 0.0,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "bos_token_id": 1,
    "forced_eos_token_id": 2,
    **_TOKENS,
}

ENCODER_DECODERS: tuple[Architecture, ...] = (
    transformers_model(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        ("encdec",),
        inputs=_INPUTS,
        labels=_LABELS,
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        d_kv=8,
        d_ff=2 * WIDTH,
        num_layers=2,
        num_heads=4,
        relative_attention_num_buckets=8,
        dropout_rate=0.0,
        **_TOKENS,
    ),
    transformers_model(
        "bart",
        "BartForConditionalGeneration",
        "BartConfig",
        ("encdec",),
        inputs=_INPUTS,
        labels=_LABELS,
        **_BART_LIKE,
    ),
    transformers_model(
        "marian", "MarianMTModel", "MarianConfig", ("encdec",), inputs=_INPUTS, labels=_LABELS, **_BART_LIKE
    ),
    transformers_model(
        "pegasus",
        "PegasusForConditionalGeneration",
        "PegasusConfig",
        ("encdec",),
        inputs=_INPUTS,
        labels=_LABELS,
        **_BART_LIKE,
    ),
)
