"""What a trace writes into `node.meta`: the node's value, facts for later passes, and where the node comes from.

`describe` sets `val` and `tensor_meta`. `note` changes our one record, which stands beside upstream's keys. Writers
record the decomposed op, preserved meta, the torch function and the stack trace; each is called with every new node
(`GraphBuilder.annotators`), and does not overwrite what the node has.

Counterpart: torch/fx/experimental/proxy_tensor.py extract_val, snapshot_fake, set_meta, set_original_aten_op,
TorchFunctionMetadataMode; torch/fx/proxy.py TracerBase.create_node, _filter_traceback_frames
Differs: in real mode all `val`s of a graph belong to one fake mode and are made from sizes and strides; upstream makes a new mode
for every node and converts the tensor under it, which takes more than half of its time.
Stack traces are kept as (code, line) pairs, and formatted when the trace ends. Without a `forward` on the stack they show the
user's frames; upstream writes none then. `torch_fn` is only recorded together with a module stack.
"""

from __future__ import annotations

import copy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, Protocol

import sympy
import torch
from torch.fx import config as fx_config
from torch.fx import traceback as fx_traceback
from torch.overrides import TorchFunctionMode

from refimpl._torch import (
    PRESERVED_META_FIELDS,
    STACK_TRACE_ANCHORS,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    TensorMetadata,
    autograd_sequence_number,
    inside_fake_kernel,
    is_traceable_wrapper_subclass,
    keeps_sequence_number_of_meta,
    set_bits,
    without_dispatch,
)
from refimpl.symbolic import layout
from refimpl.symbolic.functions import to_expr

_ANY_DIM = (torch.contiguous_format,)
_MEMORY_FORMATS = {
    4: (torch.contiguous_format, torch.channels_last),
    5: (torch.contiguous_format, torch.channels_last_3d),
}
_LAYOUTS = {
    torch.contiguous_format: layout.contiguous,
    torch.channels_last: layout.channels_last_contiguous_2d,
    torch.channels_last_3d: layout.channels_last_contiguous_3d,
}


def describe(node: torch.fx.Node, value: Any, real_mode: FakeTensorMode | None = None) -> None:
    """Set `val`, and for a tensor also `tensor_meta`. Runs with recording off.

    `val` is a snapshot, which a later in-place change of the tensor's metadata does not change. Snapshots of fake tensors share
    their storage, so that aliases stay aliases. `real_mode` is the fake mode for snapshots of real tensors. The snapshot of a
    real tensor without strides (sparse, nested, mkldnn) is None.
    """
    meta = node.meta
    if isinstance(value, torch.Tensor):
        meta["val"] = snapshot(value, real_mode)
        if _has_strides(value):
            meta["tensor_meta"] = _tensor_metadata(value)
    elif isinstance(value, (list, tuple)):
        meta["val"] = type(value)(snapshot(v, real_mode) if isinstance(v, torch.Tensor) else v for v in value)
    else:
        meta["val"] = value


def snapshot(tensor: torch.Tensor, real_mode: FakeTensorMode | None) -> torch.Tensor | None:
    """A fake tensor with the tensor's present metadata; None for a real tensor without strides."""
    if type(tensor) is FakeTensor:
        fake_mode = tensor.fake_mode
        if tensor.layout is torch.strided and not tensor.is_quantized:
            with inside_fake_kernel(fake_mode):
                alias = tensor.detach()
            made = FakeTensor(fake_mode, alias, tensor.fake_device)
            made.real_tensor = tensor.real_tensor
            return made
        with fake_mode:
            return tensor.detach()
    if is_traceable_wrapper_subclass(tensor):
        return tensor.detach()
    if not _has_strides(tensor) or tensor.is_quantized:
        return None
    if real_mode is None:
        raise AssertionError("no fake mode for the snapshot of a real tensor\n  expected: `real_mode`")
    offset = tensor.storage_offset()
    with without_dispatch():
        if offset == 0:
            meta = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        else:  # as_strided counts from the beginning of the storage
            elements = tensor.untyped_storage().nbytes() // tensor.element_size()
            whole = torch.empty((elements,), dtype=tensor.dtype, device="meta")
            meta = whole.as_strided(tensor.shape, tensor.stride(), offset)
        if tensor.is_conj() or tensor.is_neg():
            set_bits(meta, is_conj=tensor.is_conj(), is_neg=tensor.is_neg())
    return FakeTensor(real_mode, meta, tensor.device)


def _has_strides(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_nested


def _tensor_metadata(tensor: torch.Tensor) -> TensorMetadata:
    """The node's TensorMetadata; fx's own function for it imports torch.fx.experimental."""
    is_quantized = tensor.is_quantized
    return TensorMetadata(
        shape=tensor.shape,
        dtype=tensor.dtype,
        requires_grad=tensor.requires_grad,
        stride=tensor.stride(),
        memory_format=_memory_format(tensor),
        is_quantized=is_quantized,
        qparams=_quantizer(tensor) if is_quantized else {},
    )


def _memory_format(tensor: torch.Tensor) -> torch.memory_format | None:
    """The memory format. Of symbolic sizes and strides it is what is known without a guard; None if nothing is."""
    formats = _MEMORY_FORMATS.get(tensor.dim(), _ANY_DIM)
    symbol: Any = next((n for n in (*tensor.shape, *tensor.stride()) if type(n) is not int), None)
    if symbol is None:
        return next((f for f in formats if tensor.is_contiguous(memory_format=f)), None)
    decided = getattr(symbol.node.shape_env, "decided", None)
    if decided is None:  # a shape env of torch's, which asking would make guard
        return None
    sizes, strides = ([_expression(n) for n in numbers] for numbers in (tensor.shape, tensor.stride()))
    return next((f for f in formats if _LAYOUTS[f](sizes, strides, decided) is sympy.true), None)


def _expression(number: Any) -> sympy.Basic:
    return to_expr(number) if type(number) is int else number.node.expr


def _quantizer(tensor: torch.Tensor) -> dict[str, Any]:
    scheme = tensor.qscheme()
    if scheme in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"qscheme": scheme, "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    return {
        "qscheme": scheme,
        "scale": tensor.q_per_channel_scales().tolist(),
        "zero_point": tensor.q_per_channel_zero_points().tolist(),
        "axis": tensor.q_per_channel_axis(),
    }


_KEY = "torch_oracle"


class Notes(NamedTuple):  # twice as fast to change as a frozen dataclass, and every node of a joint graph changes it
    """Facts that one of our passes records on a node for a later one. A field that no pass has set has its default.

    `notes_of(node)` reads the record and `note(node, field=value)` changes it. A copy of a node starts with the same record.

    Counterpart: none; upstream's passes add keys of their own to `node.meta`
    """

    # Any graph.
    # Random op: the generator state that it draws from. Where one draw is split into several nodes, (state, index of the part).
    random_state: Any = None
    # Functional form of an in-place op: in the program its result had the strides of its first argument.
    has_strides_of_first: bool = False
    # `set_` that stands for `x.data = y`.
    is_data_assignment: bool = False

    # Call of torch.cond or while_loop, made functional: in the program a result has memory of an operand that the call writes to.
    gives_written: bool = False

    # A graph of capture.
    # Placeholder: where the input comes from, a `refimpl.capture` Source.
    source: Any = None

    # A joint graph while it is recorded.
    # Whether autograd recorded the node: grad mode was on, and inference mode was not.
    is_in_grad_mode: bool = True
    # Sequence number of the autograd node that was created or was running when the node was recorded.
    autograd_step: int | None = None
    # Backward: the node reads a tensor with requires_grad=True.
    reads_history: bool = False
    # Backward: the node is part of the decomposition of a kernel.
    is_decomposed_gradient: bool = False
    # Backward: for each decomposed kernel that reads its result, the number of that operand among all such operands.
    operand_numbers: tuple[int, ...] = ()
    # Backward: the decomposed kernel whose result it is, a `decomposed_calls.Decomposed`.
    decomposed_call: Any = None
    # Graph of calls on wrapper subclasses: the nodes of the plain tensors inside, an `outer_graph.DenseNodes`.
    dense: Any = None

    # A summand of gradients that depends on no tangent, such as the zeros that `sgn` gives.
    # Positions of tangents: if one of them is given, autograd adds the summand.
    given_with: frozenset[int] | None = None
    # Whether no custom autograd.Function, whose backward may return None, comes before it.
    is_given_for_sure: bool = False

    # A placeholder of a joint graph.
    # Mutated between the forward and the backward: the partitioner must not save it.
    is_mutated_input: bool = False
    # The program may mutate it before the backward runs.
    is_writable_input: bool = False


_NONE = Notes()


def notes_of(node: torch.fx.Node) -> Notes:
    """The record of a node; one of defaults if nothing was recorded."""
    return node.meta.get(_KEY, _NONE)


def note(node: torch.fx.Node, **changes: Any) -> None:
    """Change fields of a node's record. Raises ValueError, or TypeError from Python 3.13 on, for a name that is no field."""
    notes = notes_of(node)._replace(**changes)
    if notes == _NONE:
        node.meta.pop(_KEY, None)
    else:
        node.meta[_KEY] = notes


def copied_meta(node: torch.fx.Node, *keys: str) -> dict[str, Any]:
    """The node's metadata of these keys, for a node that is made in its place or beside it."""
    return {key: node.meta[key] for key in keys if key in node.meta}


def note_grad_mode(node: torch.fx.Node) -> None:
    """Records whether autograd records the call that the node stands for."""
    if not torch.is_grad_enabled() or torch.is_inference_mode_enabled():
        note(node, is_in_grad_mode=False)


# Where a node comes from.

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
