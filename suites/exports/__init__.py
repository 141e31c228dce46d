"""The exports suite: models are exported once with a dynamic size, run at three sizes, and called outside of the range.

Torch-free: the registry reads these constants without loading the suite.
"""

from __future__ import annotations

from suites.models import TAGS as MODEL_TAGS

NAME = "exports"
DESCRIPTION = "The models, exported with a batch size that varies: right at three sizes, refused outside of the range"
TAGS = {
    **MODEL_TAGS,
    "inside": "calls at three sizes of the range, its ends among them",
    "outside": "a call at a size of the range, then one outside: it has to be refused",
}
DTYPES = ("float32", "bfloat16", "float64")  # float32 unless asked
DEFAULT_SUBJECTS = ("refimpl.export[strict=false]", "refimpl.export", "export[strict=false]", "export")
QUICK_SUBJECTS = ("export[strict=false]",)
SUITE_PATH = "suites.exports.suite:ExportsSuite"
