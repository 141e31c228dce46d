"""A compiler that goes wrong on purpose, by the night, for a history of real runs (benchmarks.measurements.real_nights).

    NIGHTLY_COMPILER=FOLDER torch-oracle sweep --subject benchmarks.nightly:nightly

It is aot_eager. If FOLDER has a file `wrong-NAME`, the results of graphs that call a function NAME are wrong. With a file
`once-NAME` the next such graph is wrong, and the file is gone: the failure does not repeat.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.backends.registry import lookup_backend

FOLDER = "NIGHTLY_COMPILER"


def nightly(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A torch.compile backend."""
    compiled = lookup_backend("aot_eager")(gm, example_inputs)
    folder = os.environ.get(FOLDER)
    if folder is None or not _is_wrong(gm, Path(folder)):
        return compiled
    return lambda *args: tuple(_spoiled(one) for one in compiled(*args))


def _is_wrong(gm: torch.fx.GraphModule, folder: Path) -> bool:
    names = {getattr(node.target, "__name__", "") for node in gm.graph.nodes if node.op == "call_function"}
    if any((folder / f"wrong-{name}").exists() for name in names):
        return True
    for name in names:
        with suppress(FileNotFoundError):
            (folder / f"once-{name}").unlink()  # only one process can
            return True
    return False


def _spoiled(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    return value * 1.01 + 0.01
