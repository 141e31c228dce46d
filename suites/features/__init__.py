"""The features suite: one small program for each feature of Python or PyTorch that a compiler should support.

Torch-free: the registry reads these constants without loading the suite.
"""

from __future__ import annotations

NAME = "features"
DESCRIPTION = (
    "One small program per Python or PyTorch feature: closures, mutation, views, hooks, autocast, several calls"
)
TAGS = {
    "aliasing": "inputs or outputs that share memory",
    "autograd": "custom functions, checkpoint, gradients taken inside the program",
    "classes": "attributes, properties, descriptors, operators, enums, dataclasses",
    "closures": "cells, late binding, partial application",
    "containers": "lists, dicts, sets, deques, slices, their methods and their order",
    "context": "with blocks, autocast, grad modes",
    "control-flow": "branches, loops, early return, recursion, generators",
    "data-dependent": "Python control flow or shapes that depend on tensor values",
    "dtype": "dtype and device moves, default dtype, complex numbers",
    "export": "what export has of its own: ranges of sizes, checks, control flow over sizes, state, containers",
    "exceptions": "try, except, finally, raising through",
    "functional": "torch.func transforms and higher-order operators",
    "guards": "something changes between calls",
    "modules": "buffers, parameters, containers, training flag",
    "hooks": "module and tensor hooks",
    "mutation": "in-place operations on inputs, views, state",
    "numpy": "numpy in the middle of the program",
    "random": "random numbers; compared under the same generator state",
    "shapes": "several shapes over several calls, shape arithmetic",
    "state": "global, closed-over or attribute state carried from call to call",
    "strings": "formatting and string methods",
}
DTYPES: tuple[str, ...] = ()
DEFAULT_SUBJECTS = ("dynamo", "aot_eager", "inductor")
QUICK_SUBJECTS = ("dynamo", "aot_eager")
SUITE_PATH = "suites.features.suite:FeaturesSuite"
