"""What one ahead-of-time compile is asked for.

Counterpart: torch/_functorch/_aot_autograd/schemas.py AOTConfig
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from refimpl.trace.options import DecompositionTable

Compiler = Callable[..., Callable[..., Any]]

AOT_COUNTER = itertools.count()


@dataclass(frozen=True, slots=True, kw_only=True)
class AOTConfig:
    """Compilers take a GraphModule and its example inputs (fake tensors) and return a callable; one with `_boxed_call` true takes
    one list of inputs. `aot_id` numbers top-level compiles of a process. Accepted for upstream's callers and not used:
    `aot_autograd_arg_pos_to_source`, `enable_log`, `cache_key`."""

    fw_compiler: Compiler | None = None
    bw_compiler: Compiler | None = None
    partition_fn: Callable[..., Any] | None = None
    decompositions: DecompositionTable = field(default_factory=dict)
    num_params_buffers: int = 0
    aot_id: int = -1
    keep_inference_input_mutations: bool = False
    inference_compiler: Compiler | None = None
    dynamic_shapes: bool = False
    aot_autograd_arg_pos_to_source: Any = None
    is_export: bool = False
    no_tangents: bool = False
    pre_dispatch: bool = False
    enable_log: bool = True
    cache_key: Any = None
    record_stack_traces: bool = False
    functionalization: str = "table"
    specializes_integers: bool = False  # with symbolic sizes, integers among the arguments are constants all the same
    is_followed: bool = False  # by more of the program, which may write to leaves before the backward
    merges_duplicates: bool = False  # two arguments that are one tensor are one placeholder even if nothing is written
