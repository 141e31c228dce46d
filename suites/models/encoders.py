"""Encoder-only language models."""

from __future__ import annotations

from suites.models.architecture import VOCABULARY, WIDTH, Architecture, ids, mask, transformers_model

_TEXT = {"input_ids": ids(2, 12), "attention_mask": mask(2, 12)}
_TOKEN_LABELS = {"labels": ids(2, 12)}
_CLASS_LABELS = {"labels": ids(2, high=3)}
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}

ENCODERS: tuple[Architecture, ...] = (
    transformers_model(
        "bert", "BertForMaskedLM", "BertConfig", ("encoder",), inputs=_TEXT, labels=_TOKEN_LABELS, **_SMALL
    ),
    transformers_model(
        "bert-dropout",
        "BertForSequenceClassification",
        "BertConfig",
        ("encoder", "dropout"),
        inputs=_TEXT,
        labels=_CLASS_LABELS,
        train_config={"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.2},
        num_labels=3,
        **_SMALL,
    ),
    transformers_model(
        "roberta",
        "RobertaForTokenClassification",
        "RobertaConfig",
        ("encoder",),
        inputs=_TEXT,
        labels={"labels": ids(2, 12, high=5)},
        num_labels=5,
        **_SMALL,
    ),
    transformers_model(
        "deberta-v2",
        "DebertaV2ForSequenceClassification",
        "DebertaV2Config",
        ("encoder",),
        inputs=_TEXT,
        labels=_CLASS_LABELS,
        num_labels=3,
        relative_attention=True,
        position_buckets=8,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        pooler_hidden_size=WIDTH,
        pooler_dropout=0.0,
        **_SMALL,
    ),
    transformers_model(
        "electra",
        "ElectraForPreTraining",
        "ElectraConfig",
        ("encoder",),
        inputs=_TEXT,
        labels={"labels": ids(2, 12, high=2)},
        embedding_size=16,
        **_SMALL,
    ),
    transformers_model(
        "albert",
        "AlbertForMaskedLM",
        "AlbertConfig",
        ("encoder",),
        inputs=_TEXT,
        labels=_TOKEN_LABELS,
        embedding_size=16,
        **_SMALL,
    ),
    transformers_model(
        "mpnet", "MPNetForMaskedLM", "MPNetConfig", ("encoder",), inputs=_TEXT, labels=_TOKEN_LABELS, **_SMALL
    ),
    transformers_model(
        "distilbert",
        "DistilBertForQuestionAnswering",
        "DistilBertConfig",
        ("encoder",),
        inputs=_TEXT,
        labels={"start_positions": ids(2, high=12), "end_positions": ids(2, high=12)},
        vocab_size=VOCABULARY,
        dim=WIDTH,
        n_layers=2,
        n_heads=4,
        hidden_dim=2 * WIDTH,
        max_position_embeddings=64,
        dropout=0.0,
        attention_dropout=0.0,
        qa_dropout=0.0,
    ),
    transformers_model(
        "modernbert",
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        ("encoder",),
        inputs=_TEXT,
        labels=_TOKEN_LABELS,
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        global_attn_every_n_layers=2,
        local_attention=8,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    transformers_model(
        "fnet",
        "FNetForMaskedLM",
        "FNetConfig",
        ("encoder",),
        inputs={"input_ids": ids(2, 12)},
        labels=_TOKEN_LABELS,
        dtypes=("float32", "float64"),  # the Fourier transform has no bfloat16
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        num_hidden_layers=2,
        intermediate_size=2 * WIDTH,
        hidden_dropout_prob=0.0,
        max_position_embeddings=64,
    ),
)
