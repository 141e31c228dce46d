"""The backend: a graph and its example inputs to something that runs it by Triton kernels.

Counterpart: torch/_inductor/compile_fx.py compile_fx_inner
Differs: what has no rule is called as it is, one operator at a time, and counted; nothing is fused across such a call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from refimpl.codegen.kernel import Kernel, Level
from refimpl.codegen.launch_plan import CompiledGraph, plan
from refimpl.codegen.levels.emulator import EmulatorLevel
from refimpl.codegen.levels.errors import AssertionFailed
from refimpl.codegen.lowering.graph import lower_graph


class _CheckingLevel(EmulatorLevel):
    """The emulator with assertions, of which this code generator makes one for every place that is read from memory."""

    def __init__(self) -> None:
        super().__init__(asserts=True)

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        arguments: Sequence[torch.Tensor | int | float],
        constants: Mapping[str, Any],
    ) -> None:
        """As the emulator does; raises IndexError for a place out of bounds, as eager does."""
        try:
            super().launch(kernel, grid, arguments, constants)
        except AssertionFailed as error:
            raise IndexError(error.message) from error


def compile_graph(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    level: Level | None = None,
    strict: bool = False,
) -> CompiledGraph:
    """A functional graph of aten overloads (nodes have `meta["val"]`) as kernels. It must return a tuple or list.

    level: what launches the kernels; the emulator where there is none. strict: an operator without a rule is an error.
    Raises UnsupportedByRefimpl for layouts that are not strided, and in strict mode.
    """
    return plan(lower_graph(graph_module, strict=strict), _CheckingLevel() if level is None else level)
