"""Image models."""

from __future__ import annotations

from typing import Any

from suites.models.architecture import WIDTH, Architecture, floats, ids, transformers_model

_IMAGE = {"pixel_values": floats(2, 3, 32, 32)}
_LABELS = {"labels": ids(2, high=5)}
_VIT_LIKE: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 2 * WIDTH,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "num_labels": 5,
}


def _classifier(name: str, prefix: str, **config: Any) -> Architecture:
    return transformers_model(
        name,
        f"{prefix}ForImageClassification",
        f"{prefix}Config",
        ("vision",),
        inputs=_IMAGE,
        labels=_LABELS,
        **config,
    )


VISION: tuple[Architecture, ...] = (
    _classifier("vit", "ViT", **_VIT_LIKE),
    _classifier("deit", "DeiT", **_VIT_LIKE),
    _classifier("beit", "Beit", **_VIT_LIKE, use_relative_position_bias=True, use_absolute_position_embeddings=False),
    _classifier("dinov2", "Dinov2", **{key: _VIT_LIKE[key] for key in _VIT_LIKE if key != "intermediate_size"}),
    _classifier(
        "swin",
        "Swin",
        image_size=32,
        patch_size=4,
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        drop_path_rate=0.0,
        num_labels=5,
    ),
    _classifier(
        "convnext", "ConvNext", hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, drop_path_rate=0.0, num_labels=5
    ),
    _classifier(
        "resnet",
        "ResNet",
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[1, 1],
        layer_type="basic",
        num_labels=5,
    ),
    _classifier(
        "mobilenet-v2", "MobileNetV2", image_size=32, depth_multiplier=0.25, classifier_dropout_prob=0.0, num_labels=5
    ),
    _classifier(
        "poolformer",
        "PoolFormer",
        hidden_sizes=[16, 32],
        depths=[1, 1],
        num_encoder_blocks=2,
        patch_sizes=[7, 3],
        strides=[4, 2],
        padding=[2, 1],
        drop_path_rate=0.0,
        num_labels=5,
    ),
    transformers_model(
        "segformer",
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        ("vision",),
        inputs=_IMAGE,
        labels={"labels": ids(2, 32, 32, high=5)},
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[16, 32],
        patch_sizes=[7, 3],
        strides=[4, 2],
        num_attention_heads=[2, 4],
        mlp_ratios=[2, 2],
        decoder_hidden_size=WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        classifier_dropout_prob=0.0,
        drop_path_rate=0.0,
        num_labels=5,
    ),
    transformers_model(
        "detr",
        "DetrForObjectDetection",
        "DetrConfig",
        ("vision",),
        inputs={"pixel_values": floats(1, 3, 32, 32)},
        use_timm_backbone=False,
        use_pretrained_backbone=False,
        backbone=None,
        backbone_config={
            "model_type": "resnet",
            "embedding_size": 16,
            "hidden_sizes": [16, 32],
            "depths": [1, 1],
            "layer_type": "basic",
            "out_features": ["stage2"],
        },
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=2 * WIDTH,
        decoder_ffn_dim=2 * WIDTH,
        num_queries=5,
        dropout=0.0,
        num_labels=5,
    ),
)
