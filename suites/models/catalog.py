"""The catalog: every architecture by name. Does not import torch."""

from __future__ import annotations

from dataclasses import replace

from suites.models.architecture import Architecture
from suites.models.classic_table import CLASSICS
from suites.models.decoders import DECODERS
from suites.models.encdec import ENCODER_DECODERS
from suites.models.encoders import ENCODERS
from suites.models.speech_and_multimodal import MULTIMODAL, SPEECH
from suites.models.vision import VISION

_QUICK = (
    "bert", "clip", "dlrm", "gcn", "gpt2-dropout", "llama", "lstm-cell-loop", "mamba", "mixtral", "mlp",
    "resnet18-small", "t5", "torch-transformer", "unet", "vit", "whisper",
)  # fmt: skip


def _tagged(architecture: Architecture) -> Architecture:
    is_quick = architecture.name in _QUICK
    return replace(architecture, tags=(*architecture.tags, "quick")) if is_quick else architecture


ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: _tagged(architecture)
    for architecture in (*ENCODERS, *DECODERS, *ENCODER_DECODERS, *VISION, *SPEECH, *MULTIMODAL, *CLASSICS)
}
