"""The options of a trace: make_fx's parameters, validated.

Counterpart: torch/fx/experimental/proxy_tensor.py _MakefxTracer.__init__
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refimpl.errors import BadParameter

DecompositionTable = Mapping[Any, Callable[..., Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Raises BadParameter for an unknown mode. Names are those of `refimpl.make_fx` without underscores."""

    decompositions: DecompositionTable = field(default_factory=dict)
    tracing_mode: str = "real"
    allow_non_fake_inputs: bool = False
    pre_dispatch: bool = False
    record_module_stack: bool = False
    allow_fake_constant: bool = False
    error_on_data_dependent_ops: bool = True
    record_stack_traces: bool = False
    proxy_module_inputs: bool = False
    record_torch_functions: bool = True
    decomposes_aliases: bool = False  # with pre_dispatch: decompose composite ops that may mutate or return an argument
    uses_python_kernels: bool = False  # torch's Python kernels of composite ops, which symbolic traces always use
    specializes_integers: bool = False  # int inputs are constants, in a symbolic trace as well
    # What the program asserts of numbers read from data is checked by nodes of the graph.
    records_assertions: bool = False
    lifts_constants: bool = False  # a subgraph's constants are operands, and fakes of another mode are constants

    returns_writes: bool = (
        False  # functions of torch.cond and while_loop return the new values of operands that they write to
    )

    def __post_init__(self) -> None:
        if self.tracing_mode not in ("real", "fake", "symbolic"):
            raise BadParameter(seen=f"tracing_mode={self.tracing_mode!r}", expected='one of "real", "fake", "symbolic"')

    @property
    def is_fake(self) -> bool:
        """Whether the function runs on fake tensors."""
        return self.tracing_mode != "real"
