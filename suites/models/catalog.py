"""The catalog: every architecture by name, and the table of models written on plain torch. Does not import torch."""

from __future__ import annotations

from dataclasses import replace

from suites.models.architecture import Architecture, floats, ids, mask, torch_model
from suites.models.decoders import DECODERS
from suites.models.encdec import ENCODER_DECODERS
from suites.models.encoders import ENCODERS
from suites.models.speech_and_multimodal import MULTIMODAL, SPEECH
from suites.models.vision import VISION

_IMAGE = {"x": floats(2, 3, 16, 16)}
_SEQUENCE = {"tokens": ids(2, 9)}

# The classes are in classics, recurrent, graphs and unet.
CLASSICS: tuple[Architecture, ...] = (
    torch_model("mlp", "suites.models.classics:MLP", ("classic",), inputs={"x": floats(8, 16)}),
    torch_model("lenet", "suites.models.classics:LeNet", ("classic", "vision"), inputs={"x": floats(2, 1, 28, 28)}),
    torch_model("resnet18-small", "suites.models.classics:SmallResNet", ("classic", "vision"), inputs=_IMAGE),
    torch_model("mobile-blocks", "suites.models.classics:MobileBlocks", ("classic", "vision"), inputs=_IMAGE),
    torch_model("autoencoder", "suites.models.classics:Autoencoder", ("classic", "vision"), inputs=_IMAGE),
    torch_model(
        "vae", "suites.models.classics:VariationalAutoencoder", ("classic", "dropout"), inputs={"x": floats(4, 16)}
    ),
    torch_model("lstm", "suites.models.recurrent:Recurrent", ("classic",), inputs=_SEQUENCE, cell="LSTM"),
    torch_model("gru", "suites.models.recurrent:Recurrent", ("classic",), inputs=_SEQUENCE, cell="GRU"),
    torch_model("lstm-cell-loop", "suites.models.recurrent:CellLoop", ("classic",), inputs={"x": floats(2, 5, 8)}),
    torch_model(
        "seq2seq-attention",
        "suites.models.recurrent:Seq2Seq",
        ("classic", "encdec"),
        inputs={"source": ids(2, 7), "target": ids(2, 5)},
    ),
    torch_model(
        "torch-transformer",
        "suites.models.classics:Translation",
        ("classic", "encdec"),
        inputs={"source": ids(2, 7), "target": ids(2, 5)},
    ),
    torch_model(
        "torch-encoder",
        "suites.models.classics:PaddedEncoder",
        ("classic", "encoder"),
        inputs={"tokens": ids(2, 8), "keep": mask(2, 8)},
    ),
    torch_model(
        "linear-attention", "suites.models.classics:LinearAttention", ("classic",), inputs={"x": floats(2, 10, 16)}
    ),
    torch_model(
        "dlrm",
        "suites.models.graphs:RecommendationModel",
        ("classic",),
        inputs={"dense": floats(4, 6), "first": ids(4, 3, high=20), "second": ids(4, 2, high=30)},
        dtypes=("float32", "float64"),
    ),
    torch_model(
        "gcn",
        "suites.models.graphs:GraphConvolution",
        ("classic",),
        inputs={"nodes": floats(7, 8), "edges": ids(2, 15, high=7)},
    ),
    torch_model(
        "gat",
        "suites.models.graphs:GraphAttention",
        ("classic",),
        inputs={"nodes": floats(7, 8), "edges": ids(2, 15, high=7)},
    ),
    torch_model(
        "unet", "suites.models.unet:UNet", ("diffusion",), inputs={"x": floats(2, 3, 16, 16), "time": ids(2, high=1000)}
    ),
    torch_model(
        "unet-conditional",
        "suites.models.unet:UNet",
        ("diffusion", "multimodal"),
        inputs={"x": floats(1, 3, 16, 16), "time": ids(1, high=1000), "context": floats(1, 5, 24)},
        context_width=24,
    ),
    torch_model(
        "diffusion-transformer",
        "suites.models.unet:DiffusionTransformer",
        ("diffusion",),
        inputs={"x": floats(2, 3, 16, 16), "time": ids(2, high=1000), "label": ids(2, high=10)},
    ),
)

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
