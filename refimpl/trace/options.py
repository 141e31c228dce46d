"""What is asked of a trace: make_fx's parameters, checked.

Counterpart: torch/fx/experimental/proxy_tensor.py _MakefxTracer.__init__
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from refimpl.errors import BadParameter

DecompositionTable = Mapping[Any, Callable[..., Any]]
TracingMode = Literal["real", "fake", "symbolic"]


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
    decomposes_aliases: bool = (
        False  # with pre_dispatch, composite ops that may write to an argument or return its memory
    )
    uses_python_kernels: bool = False  # torch's Python kernels of composite ops, as always with symbolic sizes
    specializes_integers: bool = False  # an integer among the inputs is a constant in a symbolic trace too
    lifts_constants: bool = (
        False  # constants of an operator's functions are operands; fakes of other modes are constants
    )

    def __post_init__(self) -> None:
        if self.tracing_mode not in ("real", "fake", "symbolic"):
            raise BadParameter(seen=f"tracing_mode={self.tracing_mode!r}", expected='one of "real", "fake", "symbolic"')

    @property
    def is_fake(self) -> bool:
        """Whether the function runs on tensors without data."""
        return self.tracing_mode != "real"
