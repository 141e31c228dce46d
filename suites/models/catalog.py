"""The catalog: every architecture by name. Torch-free."""

from __future__ import annotations

from suites.models.architecture import Architecture
from suites.models.classic_table import CLASSICS
from suites.models.decoders import DECODERS
from suites.models.encdec import ENCODER_DECODERS
from suites.models.encoders import ENCODERS
from suites.models.speech_and_multimodal import MULTIMODAL, SPEECH
from suites.models.vision import VISION

ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (*ENCODERS, *DECODERS, *ENCODER_DECODERS, *VISION, *SPEECH, *MULTIMODAL, *CLASSICS)
}
