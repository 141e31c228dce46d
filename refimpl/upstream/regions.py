"""The function that captures a nested compile region, under upstream's name: who wraps it sees which calls are captured.

Counterpart: torch/_dynamo/variables/higher_order_ops.py speculate_subgraph_with_auto_output_flattening
Differs: upstream captures the bodies of all higher-order operators by it; here it captures those of `nested_compile_region` only.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from refimpl.capture.higher_order import compile_regions

speculate_subgraph_with_auto_output_flattening = compile_regions.capture_region


class _Forwarding(types.ModuleType):
    """This module: a function that is set in place of the one above is what capture calls."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "speculate_subgraph_with_auto_output_flattening":
            compile_regions.capture_region = value


sys.modules[__name__].__class__ = _Forwarding
