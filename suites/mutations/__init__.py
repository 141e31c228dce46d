"""The mutations suite: generated small programs that write in place through views, aliases and shared storages.

Torch-free: the registry reads these constants without loading the suite.
"""

from __future__ import annotations

NAME = "mutations"
DESCRIPTION = (
    "Generated programs that mutate in place: views, aliased inputs, out=, metadata, storages, outputs that alias"
)
TAGS = {
    "views": "views of views, written through",
    "overlap": "overlapping slices and as_strided windows",
    "aliased-inputs": "inputs that are one tensor, or share a storage",
    "in-place": "chains of in-place operators, indexed writes, masks",
    "out": "out= arguments",
    "foreach": "in-place foreach operators",
    "metadata": "t_, unsqueeze_, transpose_, squeeze_ and the like",
    "storage": "resize_, set_, as_strided_, .data =",
    "no-grad": "mutation under no_grad, through detach() and .data",
    "random": "in-place random operators",
    "outputs": "outputs that are inputs, or alias inputs, intermediates and each other",
    "saved": "mutation of what backward needs, where eager may raise",
    "dtypes": "mixed dtypes, complex and real views, bit views",
    "all": "everything at once",
}
DTYPES: tuple[str, ...] = ()
DEFAULT_SUBJECTS = ("aot_eager",)
QUICK_SUBJECTS = ("aot_eager",)
SUITE_PATH = "suites.mutations.suite:MutationsSuite"
