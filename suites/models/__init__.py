"""The models suite: small models of many kinds with random weights, in eval and in training.

Torch-free: the registry reads these constants without loading the suite.
"""

from __future__ import annotations

NAME = "models"
DESCRIPTION = (
    "Small models of many architectures with random weights: eval forward, and training with loss and gradients"
)
TAGS = {
    "classic": "small models written on plain torch",
    "decoder": "decoder-only language models",
    "diffusion": "denoising networks",
    "dropout": "dropout in training: the program is random",
    "encdec": "encoder-decoder models",
    "encoder": "encoder-only language models",
    "moe": "mixture of experts",
    "multimodal": "text and images",
    "quick": "one of each kind, quick to compile: what a short sweep takes",
    "speech": "speech models",
    "ssm": "state space and other recurrent models",
    "torch-only": "needs nothing but torch",
    "transformers": "built from a transformers config; needs torch-oracle[models]",
    "vision": "image models",
}
DTYPES = ("float32", "bfloat16", "float64")  # float32 unless asked
DEFAULT_SUBJECTS = ("dynamo", "aot_eager")
QUICK_SUBJECTS = ("aot_eager",)
SUITE_PATH = "suites.models.suite:ModelsSuite"
