"""The transformers suite: every architecture of the installed transformers, shrunk and with random weights.

Torch-free: the registry reads these constants without loading the suite.
"""

from __future__ import annotations

NAME = "transformers"
DESCRIPTION = "Every architecture of the installed transformers that a shrunk configuration builds, with random weights"
TAGS = {
    "base": "the architecture's model without a head",
    "head": "an architecture that transformers has with a head only",
}
DTYPES = ("float32", "bfloat16")  # float32 unless asked
DEFAULT_SUBJECTS = ("aot_eager",)
QUICK_SUBJECTS = ("aot_eager",)
SUITE_PATH = "suites.transformers.suite:TransformersSuite"
ONLY_WHEN_NAMED = True  # it takes an hour, and its groups have names of the models suite
