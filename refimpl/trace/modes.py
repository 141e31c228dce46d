"""Finds and pauses the active recording mode, and swaps its decomposition table for a block.

Counterpart: torch/fx/experimental/proxy_tensor.py get_proxy_mode, get_innermost_proxy_mode, disable_proxy_modes_tracing,
decompose, maybe_handle_decomp, get_torch_dispatch_modes, maybe_enable_thunkify, maybe_disable_thunkify
Differs: recording modes are ordinary dispatch modes. One that an inner trace pauses stays on the stack and records nothing.
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
    """The mode that would record an op called now, or None: also while the mode itself handles an op, where it is off."""
    for mode in reversed(active_dispatch_modes()):
        if isinstance(mode, RecordingMode) and mode.is_recording:
            return mode
    return None


def get_innermost_proxy_mode() -> RecordingMode | None:
    """The older name of `get_proxy_mode`: only the innermost recording mode ever records."""
    return get_proxy_mode()


@contextlib.contextmanager
def disable_proxy_modes_tracing() -> Iterator[RecordingMode | None]:
    """A block whose ops no trace records. Yields the mode that would have recorded them.

    Tensors and sizes made in the block are not tracked: if the trace uses one later, a real tensor is a constant; a fake tensor,
    or a number that is no expression of tracked sizes, raises NotTracked.
    """
    mode = get_proxy_mode()
    with paused_recordings():
        yield mode


@contextlib.contextmanager
def decompose(decomposition_table: DecompositionTable | None) -> Iterator[DecompositionTable]:
    """A block in which the running trace uses this decomposition table, not its own. Raises NoTraceRunning without a trace."""
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
    """Run the mode's decomposition of `op`, recording its ops; NotImplemented if the mode's table has none."""
    rule = proxy_mode.options.decompositions.get(op)
    if rule is None:
        return NotImplemented
    with proxy_mode:
        return rule(*args, **kwargs)


def handle_sym_dispatch(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`func` on symbolic numbers. Raises NoTraceRunning without a trace.

    Nothing is recorded here: the result remembers how it was made, and gets its nodes once an op uses it.
    """
    if get_proxy_mode() is None:
        raise NoTraceRunning(f"handle_sym_dispatch({func!r})")
    assert not kwargs, f"an operation on symbolic numbers got the keyword arguments {kwargs}\n  expected: none"
    return func(*args)


@contextlib.contextmanager
def maybe_enable_thunkify() -> Iterator[None]:
    """Does nothing: a symbolic number never gets a node before an op uses it."""
    yield


@contextlib.contextmanager
def maybe_disable_thunkify() -> Iterator[None]:
    """Does nothing: computing numbers early would only add dead nodes."""
    yield
