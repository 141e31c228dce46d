"""`export`: one graph for a whole function, called like the function.

Counterpart: torch/_dynamo/eval_frame.py export
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refimpl.errors import UnsupportedByRefimpl


def export(
    f: Callable[..., Any],
    *extra_args: Any,
    aten_graph: bool = False,
    pre_dispatch: bool = False,
    decomposition_table: Any = None,
    tracing_mode: str = "symbolic",
    dynamic_shapes: Any = None,
    specialize_float: bool = True,
    assume_static_by_default: bool = False,
    same_signature: bool = True,
    disable_constraint_solver: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    _log_export_usage: bool = True,
    constraints: Any = None,
    **extra_kwargs: Any,
) -> Any:
    """Not there yet."""
    raise UnsupportedByRefimpl(seen="export", supported="compile", do="wait")
