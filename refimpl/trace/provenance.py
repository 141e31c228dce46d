"""Writes where a node comes from into its meta: the decomposed op, preserved meta, the torch function, the stack trace.

Counterpart: torch/fx/experimental/proxy_tensor.py set_original_aten_op, TorchFunctionMetadataMode; torch/fx/proxy.py
TracerBase.create_node, _filter_traceback_frames
Differs: stack traces are kept as (code, line) pairs, and formatted when the trace ends. Without a `forward` on the stack they
show the user's frames; upstream writes none then. `torch_fn` is only recorded together with a module stack.

Each writer is called with every new node (`GraphBuilder.annotators`), and does not overwrite what the node has.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Protocol

import torch
from torch.fx import config as fx_config
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from refimpl._torch import (
    PRESERVED_META_FIELDS,
    STACK_TRACE_ANCHORS,
    HigherOrderOperator,
    OpOverload,
    autograd_sequence_number,
    keeps_sequence_number_of_meta,
)

Writer = Callable[[torch.fx.Node], None]


class _Recording(Protocol):
    decomposed: Any  # the outermost op whose decomposition is running


def preserved_meta_writer(recording: _Recording) -> Writer:
    """Under `torch.fx.traceback.preserve_node_meta`, a writer of the interpreted node's meta and of `original_aten`.

    `original_aten` is the op that the program called before decompositions.
    """

    def write(node: torch.fx.Node) -> None:
        if not fx_traceback.has_preserved_node_meta():
            return
        current, meta = fx_traceback.get_current_meta(), node.meta
        for field in PRESERVED_META_FIELDS:
            if field in current:
                meta[field] = copy.copy(current[field])
        original = recording.decomposed or _operator_of(node)
        if original is not None:
            meta["original_aten"] = original
        stack_trace = current.get("stack_trace")
        if stack_trace:
            meta["stack_trace"] = stack_trace
            if _GRADIENT_SUM in stack_trace:
                meta["is_gradient_acc"] = meta["autograd_backward"] = True
        if current.get("autograd_backward"):
            meta["autograd_backward"] = True
        number = _sequence_number(current)
        if number is not None:
            meta["seq_nr"] = number

    return write


_GRADIENT_SUM = fx_traceback.GRADIENT_ACC_SPECIAL_STACK


def _operator_of(node: torch.fx.Node) -> Any:
    if isinstance(node.target, (OpOverload, HigherOrderOperator)):
        return node.target
    source = node.args[0] if node.args else None  # of a getitem node: the op whose result it indexes
    return source.meta.get("original_aten") if isinstance(source, torch.fx.Node) else None


def _sequence_number(current: dict[str, Any]) -> int | None:
    """Sequence number of the autograd node that this op made, or of the one whose backward is running: it links the two ops."""
    if current.get("in_grad_fn", 0) > 0:
        return current["grad_fn_seq_nr"][-1]
    return current.get("seq_nr") if keeps_sequence_number_of_meta() else autograd_sequence_number() - 1


class TorchFunctionState(TorchFunctionMode):
    """Knows the torch function that the program called last, and counts the calls of each."""

    def __init__(self) -> None:
        super().__init__()
        self._last: Any = None
        self._counts: dict[Any, int] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._last = func
        self._counts[func] = self._counts.get(func, 0) + 1
        return func(*args, **(kwargs or {}))

    def write(self, node: torch.fx.Node) -> None:
        """Write `torch_fn` of a call: ("linear_1", "builtin_function_or_method.linear")."""
        if node.op == "call_function" and self._last is not None and "torch_fn" not in node.meta:
            name = getattr(self._last, "__name__", str(self._last))
            node.meta["torch_fn"] = (f"{name}_{self._counts[self._last]}", f"{type(self._last).__name__}.{name}")


Line = tuple[CodeType, int]

_TORCH = str(Path(torch.__file__).parent)
_PACKAGE = str(Path(__file__).parents[1])
_OUR_TESTS = str(Path(__file__).parents[1] / "tests")


def emits_stack_traces() -> bool:
    """Whether fx is configured to write stack traces."""
    return not getattr(fx_config, "do_not_emit_stack_traces", False)


class StackTraceState:
    """Collects the program's stack for every node; `finish` formats and writes the stack traces."""

    def __init__(self, boundary: CodeType, depth: int) -> None:
        """Stacks end at the `depth`-th running call of `boundary`, counted from the innermost."""
        self._boundary = boundary
        self._depth = depth
        self._lines: list[tuple[torch.fx.Node, tuple[Line, ...]]] = []
        self._kinds: dict[int, tuple[CodeType, bool, bool]] = {}  # id(code) -> code, is it a `forward`, is it user code
        self._texts: dict[tuple[tuple[int, int], ...], str] = {}

    def write(self, node: torch.fx.Node) -> None:
        """Collect the current stack for the node, unless it has a stack trace."""
        if "stack_trace" not in node.meta:
            self._lines.append((node, self._lines_from(sys._getframe(1))))

    def finish(self) -> None:
        """Write `stack_trace` into the nodes, outermost call first."""
        for node, lines in self._lines:
            if lines and "stack_trace" not in node.meta:
                node.meta["stack_trace"] = self._text(lines)
        self._lines.clear()

    def _lines_from(self, frame: FrameType | None) -> tuple[Line, ...]:
        forward: list[Line] = []
        users: list[Line] = []
        depth = self._depth
        kinds = self._kinds
        while frame is not None:
            code = frame.f_code
            if code is self._boundary:
                depth -= 1
                if not depth:
                    break
            kind = kinds.get(id(code))
            if kind is None:
                kind = kinds[id(code)] = (code, _is_forward(code), _is_users(code))
            if kind[1]:
                forward.append((code, frame.f_lineno))
            elif kind[2]:
                users.append((code, frame.f_lineno))
            frame = frame.f_back
        return tuple(reversed(forward or users))

    def _text(self, lines: tuple[Line, ...]) -> str:
        key = tuple((id(code), line) for code, line in lines)
        text = self._texts.get(key)
        if text is None:
            frames = [traceback.FrameSummary(code.co_filename, line, code.co_name) for code, line in lines]
            text = self._texts[key] = "".join(traceback.StackSummary.from_list(frames).format()).strip()
        return text


def _is_forward(code: CodeType) -> bool:
    """Whether upstream shows the frame: a module's forward, or a function marked with torch.fx.traceback.annotate_fn."""
    return code.co_name == "forward" or (code.co_filename, code.co_name) in STACK_TRACE_ANCHORS


def _is_users(code: CodeType) -> bool:
    file = code.co_filename
    if file.startswith(_PACKAGE) and not file.startswith(_OUR_TESTS):
        return False
    return not file.startswith((_TORCH, "<frozen"))
