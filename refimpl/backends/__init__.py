"""Backends, which run graphs. A backend takes a GraphModule and its example inputs and returns a callable."""

from __future__ import annotations

from refimpl.backend_registry import Backend, list_backends, lookup_backend, register_backend
from refimpl.backends.eager import (
    aot_eager,
    aot_eager_decomp_partition,
    aot_eager_default_partitioner,
    eager,
    interpreter,
    ts,
)

for _backend in (eager, interpreter, aot_eager, aot_eager_decomp_partition, aot_eager_default_partitioner, ts):
    register_backend(_backend.__name__, _backend)
for _name in ("triton", "inductor"):  # the second is what programs for torch.compile call their code generator
    register_backend(
        _name, "refimpl.backends.triton:triton"
    )  # imported at first use, because it imports all of codegen

__all__ = [
    "Backend",
    "aot_eager",
    "eager",
    "interpreter",
    "list_backends",
    "lookup_backend",
    "register_backend",
]
