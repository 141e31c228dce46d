"""Compiles a traced function: `compile_program` has one line for each step, from the trace to the callable.

`compile_aot` gives it a Python function. `refimpl.compile` captures graphs from Python bytecode first (refimpl.capture), and its
backends give it each graph.

Counterpart: torch.compile (from AOT autograd on), torch/_functorch/aot_autograd.py aot_function
Differs: `compile_aot` compares each call with those that it compiled for (`CallKey`, `leaf_check`), and compiles again if none
fits.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from refimpl.aot import options as aot_options
from refimpl.aot.analysis.fake_arguments import forget_arguments
from refimpl.aot.compile_program import CompiledProgram, PartitionedProgram, compile_graphs, partition, wrap
from refimpl.aot.compiled_calls import compiled_by_call
from refimpl.aot.functional_program import (
    ProgramRequest,
    functional_program,
    with_flat_bases_written,
    with_random_states,
)
from refimpl.aot.options import AOTConfig
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot.partition.default import split_joint
from refimpl.backend_registry import Backend, lookup_backend
from refimpl.errors import BadParameter
from refimpl.trace.options import DecompositionTable

Partition = Literal["default", "min_cut"] | None
_PARTITIONS: dict[Any, Callable[..., Any]] = {
    None: split_joint,
    "default": default_partition,
    "min_cut": min_cut_rematerialization_partition,
}


_CACHE = "refimpl.compile_cache.programs"  # it is above this module, and imported when a setting asks for it


class KeptProgram(Protocol):
    """The place in the cache of what a request asks for."""

    def load(self) -> PartitionedProgram | None:
        """The program as an earlier process kept it; None if there is none that serves the request."""
        ...

    def save(self, partitioned: PartitionedProgram) -> None:
        """Keep a program for later processes, before a compiler changes its graphs."""
        ...


def _kept_program(request: ProgramRequest) -> KeptProgram | None:
    """The place of a request in the cache. None if `enable_autograd_cache` is off, or the request cannot be kept."""
    if not aot_options.current_settings().enable_autograd_cache:
        return None
    return importlib.import_module(_CACHE).place_of(request)


def compile_program(request: ProgramRequest) -> CompiledProgram:
    """Compile a program: the compiled function returns and mutates what `request.function` does, aliases included.

    request: a function of a flat list of arguments, with example arguments and an AOTConfig.
    """
    kept = _kept_program(request)  # None unless `enable_autograd_cache` is set
    partitioned = None if kept is None else kept.load()
    if partitioned is None:
        program = functional_program(request)  # trace forward and backward, analyse them, and remove writes and views
        program = with_flat_bases_written(program, request)
        program = with_random_states(program)
        partitioned = partition(program, request.config)
        if kept is not None:
            kept.save(partitioned)
        forget_arguments(program.traced.fake_mode, request.args)
    graphs = compile_graphs(partitioned, request.config)
    return wrap(graphs, request)


def compile_aot(
    fn: Callable[..., Any],
    *,
    backend: str | Backend = "eager",
    partition: Partition | Callable[..., Any] = "default",
    dynamic: bool = False,
    decompositions: DecompositionTable | None = None,
    functionalization: Literal["table", "scatter"] = "table",
    record_stack_traces: bool = False,
) -> Callable[..., Any]:
    """Compile a function or module: trace it with its backward, functionalize, partition, and run the graphs by `backend`.

    backend: a name (`refimpl.list_backends()`), `module:function`, or a callable of (GraphModule, example inputs). It compiles
    forward, backward and inference graphs. partition: "default", "min_cut", a partition function, or None to keep the joint
    graph whole. dynamic: sizes are symbols, and a call compiles again only if a guard fails. record_stack_traces: each node
    records the program's line that it comes from (`print_readable`).
    Parameters and buffers of a module are read at every call. Raises BadParameter for an unknown name, and what `fn` raises.
    """
    compiler = lookup_backend(backend)
    if not callable(partition) and partition not in _PARTITIONS:
        raise BadParameter(
            seen=f"partition={partition!r}", expected='"default", "min_cut", None or a partition function'
        )

    def compile_flat(flat: Callable[..., Any], leaves: Sequence[Any], num_state: int) -> CompiledProgram:
        config = AOTConfig(
            fw_compiler=compiler,
            bw_compiler=compiler,
            inference_compiler=compiler,
            partition_fn=partition if callable(partition) else _PARTITIONS[partition],
            decompositions=decompositions or {},
            dynamic_shapes=dynamic,
            specializes_integers=True,
            num_params_buffers=num_state,
            aot_id=next(aot_options.AOT_COUNTER),
            functionalization=functionalization,
            merges_duplicates=True,
            record_stack_traces=record_stack_traces,
        )
        return compile_program(ProgramRequest(function=flat, args=leaves, config=config))

    return compiled_by_call(fn, compile_flat, dynamic=dynamic)
