"""Which recording mode is on, how to work beside it, and how to give it another decomposition table for a while.

Counterpart: torch/fx/experimental/proxy_tensor.py get_proxy_mode, get_innermost_proxy_mode, disable_proxy_modes_tracing,
decompose, maybe_handle_decomp, get_torch_dispatch_modes, maybe_enable_thunkify, maybe_disable_thunkify
Differs: recording modes are ordinary dispatch modes; one that is paused by an inner one stays on the stack and passes calls
through.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from refimpl._torch import TorchDispatchMode, active_dispatch_modes
from refimpl.errors import NoTraceRunning
from refimpl.trace.options import DecompositionTable
from refimpl.trace.recording_mode import RecordingMode, paused_recordings


def get_torch_dispatch_modes() -> list[TorchDispatchMode]:
    """All dispatch modes that are on in this thread, outermost first."""
    return active_dispatch_modes()


def get_proxy_mode() -> RecordingMode | None:
    """The mode that would record an op called now; None if nothing would.

    None too inside of the mode's own handling of an op, where it is off.
    """
    for mode in reversed(active_dispatch_modes()):
        if isinstance(mode, RecordingMode) and mode.is_recording:
            return mode
    return None


def get_innermost_proxy_mode() -> RecordingMode | None:
    """The older name of `get_proxy_mode`: only the innermost recording mode ever records."""
    return get_proxy_mode()


@contextlib.contextmanager
def disable_proxy_modes_tracing() -> Iterator[RecordingMode | None]:
    """Ops called within it are no part of any trace. Gives the mode that would have recorded them.

    A tensor or size made within it is unknown to the trace: used afterwards a real tensor is a constant, and a fake tensor or a
    number that no known size leads to raises NotTracked.
    """
    mode = get_proxy_mode()
    with paused_recordings():
        yield mode


@contextlib.contextmanager
def decompose(decomposition_table: DecompositionTable | None) -> Iterator[DecompositionTable]:
    """The running trace decomposes by this table, instead of its own, until the block is left. Nests.

    Raises NoTraceRunning where no trace runs.
    """
    mode = get_proxy_mode()
    if mode is None:
        raise NoTraceRunning("decompose(table)")
    table = decomposition_table or {}
    options = mode.options
    mode.options = replace(options, decompositions=table)
    try:
        yield table
    finally:
        mode.options = options


def maybe_handle_decomp(
    proxy_mode: RecordingMode, op: Callable[..., Any], args: tuple[object, ...], kwargs: dict[str, object]
) -> Any:
    """What the mode's decomposition of `op` returns, its ops recorded; NotImplemented if the mode's table has none."""
    rule = proxy_mode.options.decompositions.get(op)
    if rule is None:
        return NotImplemented
    with proxy_mode:
        return rule(*args, **kwargs)


def handle_sym_dispatch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`func` on symbolic numbers, as part of the running trace. Raises NoTraceRunning where none runs.

    A number remembers how it was made, so that there is nothing to record; the trace makes nodes of it when it is used.
    """
    if get_proxy_mode() is None:
        raise NoTraceRunning(f"handle_sym_dispatch({func!r})")
    assert not kwargs, f"operations on symbolic numbers take no keyword arguments, not {kwargs}"
    return func(*args)


@contextlib.contextmanager
def maybe_enable_thunkify() -> Iterator[None]:
    """Nothing to do: a symbolic number has no node until one is needed, everywhere."""
    yield


@contextlib.contextmanager
def maybe_disable_thunkify() -> Iterator[None]:
    """Nothing to do: a number that nothing uses has no node, so that computing it early would add dead nodes only."""
    yield
