"""The regressions suite: wrong results reported upstream or found here, one program each, and controls that must not be reported.

Torch-free: the registry reads these constants without loading the suite.
"""

from __future__ import annotations

NAME = "regressions"
DESCRIPTION = (
    "Wrong results of PyTorch's compilers, reported upstream or found here, and controls that must not be reported"
)
TAGS = {
    "differs": "eager and a compiled rung disagree on torch 2.13, x86 CPU",
    "agrees": "fixed or not triggered on torch 2.13, x86 CPU; a difference is a regression",
    "untried": "nothing was measured on the device it was reported for",
    "control": "differences that are no findings: a report here is a false alarm of ours",
    "gpu": "reported for GPUs; planned only with --device cuda",
    "aliasing": "arguments or views that share memory",
    "aot": "reported against AOTAutograd, its partitioner or functionalization",
    "autograd": "the gradient was wrong",
    "capture": "reported against capture or its guards",
    "data-dependent": "output shapes depend on values",
    "denormals": "results in the denormal range",
    "discontinuity": "a comparison of nearly equal floats",
    "dtype": "mixed dtypes under autocast",
    "export": "reported against export",
    "guards": "something changes between calls",
    "inductor": "reported against Inductor's passes, lowerings or kernels",
    "integer": "integer arithmetic",
    "memory": "a kernel wrote outside a buffer",
    "mutation": "inputs or views changed in place",
    "nan": "NaN is the right answer",
    "precision": "rounding: judged against fp64",
    "process-state": "the process was left changed",
    "random": "random numbers",
    "shapes": "shape guards",
    "strides": "the layout of an output",
    "variant": "another program of a known issue, kept with its entry of the ledger",
    "vectorization": "vectorised CPU kernels",
}
DTYPES: tuple[str, ...] = ()
DEFAULT_SUBJECTS = ("dynamo", "aot_eager", "inductor", "export")
QUICK_SUBJECTS = ("dynamo", "aot_eager", "aot_eager_decomp_partition", "inductor", "export", "export[strict=false]")
SUITE_PATH = "suites.regressions.suite:RegressionsSuite"
