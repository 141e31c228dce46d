"""Subjects that use torch.compile: its ladder of backends, and backends given by the user.

Counterpart: torch/_dynamo/backends/debugging.py (eager, aot_eager, aot_eager_decomp_partition), torch/_inductor
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch._dynamo
import torch._inductor
from torch._dynamo import convert_frame
from torch._dynamo.utils import counters as dynamo_counters

from oracle.errors import UsageError
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec

# A call plan may need more than torch's default of 8 recompiles. Beyond the limit torch runs eager silently, and the oracle would
# compare eager with eager.
RECOMPILE_LIMIT = 64


class TorchCompile:
    """torch.compile with a backend, by name or as a callable.

    Graphs, graph breaks and recompiles are read from Dynamo's own counters, since inductor does not get its mode and options
    through a wrapped backend. With zero graphs, Dynamo skipped the program.
    """

    def __init__(self, spec: SubjectSpec, backend: str | Callable[..., Any] | None = None) -> None:
        self.spec = spec
        self._backend = spec.options.get("backend", "inductor") if backend is None else backend
        self._settings = {
            key.removeprefix("options."): value for key, value in spec.options.items() if key.startswith("options.")
        }
        if self._backend == "inductor":
            _check_inductor_settings(spec.name, self._settings)

    def reset(self) -> None:
        torch._dynamo.reset()
        dynamo_counters.clear()
        torch._dynamo.config.suppress_errors = False  # an error must not turn into an eager run
        for name in ("recompile_limit", "cache_size_limit"):
            if hasattr(torch._dynamo.config, name):
                setattr(torch._dynamo.config, name, RECOMPILE_LIMIT)
                break

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        options = self.spec.options
        return torch.compile(
            request.target,
            fullgraph=options.get("fullgraph", False),
            dynamic=options.get("dynamic", request.dynamic),
            backend=self._backend,
            mode=options.get("mode"),
            options=dict(self._settings) or None,
        )

    def counters(self) -> Counters:
        compiles_by_frame = getattr(convert_frame, "FRAME_COMPILE_COUNTER", None)
        return Counters(
            graphs=dynamo_counters["stats"]["unique_graphs"],
            graph_breaks=sum(dynamo_counters["graph_break"].values()),
            recompiles=None if compiles_by_frame is None else sum(count - 1 for count in compiles_by_frame.values()),
        )


def _check_inductor_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Raise UsageError for an unknown option once for the whole run; torch.compile raises at each program's first call."""
    if not settings:
        return
    known_settings = torch._inductor.list_options()
    for key in settings:
        if key.replace("-", "_") not in known_settings:
            raise UsageError(
                seen=f"options.{key} for subject {name!r}",
                expected="an option of torch._inductor.config",
                do="list them with torch._inductor.list_options()",
            )
