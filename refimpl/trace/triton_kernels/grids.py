"""The grids of a launch. Capture interprets this code too, where the arguments are values of capture.

Counterpart: torch/_higher_order_ops/triton_kernel_wrap.py TritonHOPifier.call_triton_kernel
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def grids_of(layers: Sequence[tuple[bool, Any]], grid: Any, arguments: dict[str, Any]) -> list[Any]:
    """The grid for each configuration of the autotuner, in order; one if there is none.

    layers: the autotuners (True) and heuristics (False) around the kernel, the outermost first. arguments: by name, with the
    defaults of parameters. A grid that is a function gets them together with what configuration and heuristics provide.
    """
    metas = [arguments]
    for is_autotuner, layer in layers:
        found = []
        for meta in metas:
            if is_autotuner:
                for config in layer.configs:
                    found.append({**meta, **config.kwargs})
            elif callable(grid):
                for name, function in layer.values.items():
                    meta = {**meta, name: function(meta)}
                found.append(meta)
            else:
                found.append(meta)
        metas = found
    grids = []
    for meta in metas:
        grids.append(grid(meta) if callable(grid) else grid)
    return grids
