"""CompileProfiler, a backend that counts graphs and reports graph breaks and recompilations.

Counterpart: torch/_dynamo/utils.py CompileProfiler, disable_cache_limit, format_func_info
Differs: failed guards reach the profiler by a hook, and it reports only graph breaks since it was created.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import CodeType
from typing import Any

from torch import fx

from refimpl.capture.config import config
from refimpl.capture.public.counters import counters
from refimpl.capture.public.timing import count_calls, tabulate


def disable_cache_limit() -> AbstractContextManager[None]:
    """A block without limits on the number of recompilations."""
    return config.patch(recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize)


def format_func_info(code: CodeType) -> str:
    """Name, file and line of a function."""
    return f"'{code.co_name}' ({code.co_filename}:{code.co_firstlineno})"


class CompileProfiler:
    """Counts graphs and the calls in them, and runs the graphs unchanged.

    Pass `guard_fail_fn=profiler.guard_failed` to `optimize`, so that the report has the reasons of recompilations.
    """

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0
        self.backend_ctx_ctor = disable_cache_limit
        self.guard_failures: defaultdict[CodeType, list[str]] = defaultdict(list)
        self._breaks_before = Counter(counters["graph_break"])

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += count_calls(gm.graph)
        return gm.forward

    def __enter__(self) -> CompileProfiler:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def guard_failed(self, failure: Any) -> None:
        """Record why a guard failed."""
        self.guard_failures[failure.orig_code].append(failure.reason)

    @property
    def graph_break_reasons(self) -> Counter[str]:
        """How often each reason caused a graph break since the profiler was created."""
        return counters["graph_break"] - self._breaks_before

    def get_metrics(self) -> dict[str, Any]:
        """The reasons of failed guards, by code object."""
        return {"guard_failures": dict(self.guard_failures)}

    def report(self) -> str:
        """A table of graph breaks and one of recompilations, each replaced by a sentence if it would be empty."""
        return f"{self._breaks()}\n{self._recompilations()}"

    def _breaks(self) -> str:
        reasons = self.graph_break_reasons
        if not reasons:
            return "No graph breaks detected."
        rows = [(number, reason) for reason, number in reasons.most_common()]
        table = tabulate(rows, headers=["Graph Breaks", "Reason"])
        return f"Graph breaks:\n{table}"

    def _recompilations(self) -> str:
        if not self.guard_failures:
            return "No recompilation detected."
        rows = [
            (format_func_info(code), len(reasons), " | ".join(dict.fromkeys(reasons)))
            for code, reasons in self.guard_failures.items()
        ]
        most = max(map(len, self.guard_failures.values()))
        table = tabulate(rows, headers=["Function", "Recompiles", "Recompile Reasons"])
        return f"Recompilations:\n{table}\n  what to do: set config.recompile_limit to {most + 1} or more to allow them"
