"""The road from a Python function to what runs in its place, in one readable function per length of road.

Counterpart: torch.compile (from AOT autograd on), torch/_functorch/aot_autograd.py aot_function
Differs: every call is checked against what was compiled (`CallKey`), and compiled anew where it differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from refimpl.aot.compiled_calls import compile_calls
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.aot.partition.default import split_joint
from refimpl.backends import Backend, lookup_backend
from refimpl.errors import BadParameter
from refimpl.trace.options import DecompositionTable

Partition = Literal["default", "min_cut"] | None
_PARTITIONS: dict[Any, Callable[..., Any]] = {
    None: split_joint,
    "default": default_partition,
    "min_cut": min_cut_rematerialization_partition,
}


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
    """A function (or module) like `fn`, which is traced with its backward, functionalized, partitioned, and run by `backend`.

    backend: a name (`refimpl.backends.list_backends()`), `module:function`, or a callable of (GraphModule, example inputs), for
    forward, backward and inference graphs alike; partition: "default", "min_cut", None for the joint graph as it is, or a
    partition function; dynamic: sizes are symbols, compiled anew only where a guard fails; record_stack_traces: every node of the
    graphs says which line of the program it comes from (`print_readable`).
    Parameters and buffers of a module are read at every call. Raises BadParameter for an unknown name, and what `fn` raises.
    """
    compiler = lookup_backend(backend)
    if not callable(partition) and partition not in _PARTITIONS:
        raise BadParameter(
            seen=f"partition={partition!r}", expected='"default", "min_cut", None or a partition function'
        )
    partition_fn = partition if callable(partition) else _PARTITIONS[partition]
    return compile_calls(
        fn, compiler=compiler, partition_fn=partition_fn, dynamic=dynamic, decompositions=decompositions or {},
        functionalization=functionalization, record_stack_traces=record_stack_traces,
    )  # fmt: skip
