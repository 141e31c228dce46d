"""Which graph is being compiled, for compilers that want to name it.

Counterpart: torch/_functorch/_aot_autograd/logging_utils.py get_aot_compilation_context, get_aot_graph_name,
get_graph_being_compiled
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Compilation:
    names: tuple[str, ...] = ()
    model_name: str = "model"
    nth_graph: int = 0


_CURRENT: contextvars.ContextVar[_Compilation | None] = contextvars.ContextVar("refimpl_aot_compilation", default=None)


@contextlib.contextmanager
def graph_being_compiled(aot_id: int, kind: str) -> Iterator[None]:
    """`kind`: "forward", "backward", "joint", "inference"."""
    token = _CURRENT.set(_Compilation(names=(f"{aot_id}_{kind}",), nth_graph=aot_id))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def get_aot_compilation_context() -> tuple[list[str], str, int]:
    """Names of the graphs under compilation, the model's name, and a running number."""
    current = _CURRENT.get() or _Compilation()
    return list(current.names), current.model_name, current.nth_graph


def get_aot_graph_name() -> str:
    """As `model__0_forward_0`."""
    names, model_name, nth = get_aot_compilation_context()
    return f"{model_name}__{'_'.join(names)}_{nth}"


def get_graph_being_compiled() -> str:
    """As `model__0_forward`."""
    names, model_name, _ = get_aot_compilation_context()
    return f"{model_name}__{'_'.join(names)}"
