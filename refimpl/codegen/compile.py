"""The backend: compiles a graph and its example inputs to a callable that launches Triton kernels.

Counterpart: torch/_inductor/compile_fx.py compile_fx_inner
Differs: an operator without a lowering is called on its own and counted; nothing is fused across such a call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from refimpl.codegen.autotune import TunerState, default_tuner
from refimpl.codegen.cuda_graphs import Recorder
from refimpl.codegen.kernel import Level
from refimpl.codegen.launch_plan import CompiledGraph, plan
from refimpl.codegen.levels.by_device import LevelByDevice
from refimpl.codegen.lowering.graph import lower_graph
from refimpl.codegen.measured_contractions import contraction_choices
from refimpl.codegen.options import CodegenOptions, Contractions

_LOG = logging.getLogger(__name__)


def compile_graph(
    graph_module: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    level: Level | None = None,
    strict: bool = False,
    options: CodegenOptions | None = None,
    tuner: TunerState | None = None,
    recorder: Recorder | None = None,
) -> CompiledGraph:
    """Compiles a functional graph of aten overloads (nodes have `meta["val"]`) to kernels. It must return a tuple or list.

    level: launches the kernels. Default: a GPU for tensors on one, the emulator for tensors on the CPU.
    strict: as `CodegenOptions.strict`.
    tuner: chooses configurations with `autotune`. Default: by measurements on a GPU.
    recorder: records graphs with `cuda_graphs`. Default: CUDA graphs.
    The generated source goes to this module's logger, at level DEBUG.
    Raises UnsupportedByRefimpl in strict mode; calls raise LevelUnavailable for devices without a level.
    """
    chosen = options or CodegenOptions()
    chosen = replace(chosen, strict=True) if strict else chosen
    chosen_level = LevelByDevice() if level is None else level
    choices = _contractions(graph_module, chosen_level, chosen, tuner)
    lowered = lower_graph(graph_module, options=chosen, measured=choices)
    made = plan(lowered, chosen_level, chosen, tuner, recorder)
    _LOG.debug("%s", made.source)
    return made


def _contractions(
    graph_module: torch.fx.GraphModule, level: Level, options: CodegenOptions, tuner: TunerState | None
) -> Mapping[str, Contractions]:
    """Measured choices between templates and extern calls, if the options ask for them."""
    if not options.autotune or options.contractions != "measured":
        return {}

    def compile_one(alone: torch.fx.GraphModule, inputs: Sequence[Any], own: CodegenOptions) -> CompiledGraph:
        return compile_graph(alone, inputs, level=level, options=own, tuner=tuner)

    return contraction_choices(graph_module, options, tuner or default_tuner(), compile_one)
