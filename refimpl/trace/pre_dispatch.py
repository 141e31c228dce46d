"""Recording above autograd and autocast: composite ops stay whole, and what switches gradients and casts is part of the graph.

Counterpart: torch/fx/experimental/proxy_tensor.py PreDispatchTorchFunctionMode, ProxyTorchDispatchMode with pre_dispatch=True
Differs: autocast regions are found by the state that ops run in (see the note below). Gradients are off in the graph too where
inference mode or a backward pass had them off, and `requires_grad_` is a node. `x.data` is recorded as `detach`; upstream keeps
the tensor as a constant. Inside
torch.func's transforms, and for subclasses of Tensor, ops are recorded as they arrive below autograd.

Note [How calls arrive]
The dispatcher has a key above all others, PreDispatch, and torch a slot for the Python mode it leads to. The slot takes three
classes by isinstance: upstream's proxy mode, its functional tensors, and the mode that checks schemas. The last is a class of
its own without ties to the others, so `PreDispatchRecordingMode` inherits from it, for no other reason, and everything else goes
the way torch has made: the key leads to the mode, which is out of the slot while it handles a call, so that what the op does
below (autocast, autograd, fake kernels) is not recorded again. The alternatives were worse. A key of one's own with a fallback in
Python fails as soon as another dispatch mode is on; an ordinary mode with the keys of autograd left out comes after autocast; and
function modes do not see what C++ calls.

Note [Backward passes inside of the trace]
Autograd gives back what it has saved as new tensors. A saved result has the history of the tensor that the op gave, by which its
node is found; an argument is the very tensor. What a composite op has made on its way, such as a transposed weight, has no node:
that is refused. Upstream burns it in.

Note [What is no op]
`torch._C._set_grad_enabled`, behind torch.no_grad and its like, is seen by function modes: it becomes a node, and runs, so that
the program finds the mode it asked for. Autocast regions say nothing to anybody but upstream's own mode. They are made of state
(a switch and a dtype per device) and of a depth, which are compared at every op and at the end: what has changed becomes
`_enter_autocast` and `_exit_autocast`, nested as regions are. A region that no op runs in leaves no trace, and two alike with
nothing between them are one. Operators that take functions are called by the function mode, which therefore sees them first.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from refimpl._torch import (
    PRE_DISPATCH_KEY,
    FakeTensorMode,
    HigherOrderOperator,
    PreDispatchSlot,
    TorchDispatchMode,
    enter_autocast,
    exit_autocast,
    is_any_mode_active_but,
    is_inside_backward,
    is_inside_function_transform,
    no_python_dispatcher,
    pytree,
    set_grad_enabled,
    without_pre_dispatch_modes,
)
from refimpl.errors import UnsupportedByRefimpl, user_line
from refimpl.trace.fakes.kernels import FakeKernelsState, RememberingMode
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.options import TraceOptions
from refimpl.trace.recording_mode import RecordingMode, paused_recordings
from refimpl.trace.symbolic_indexing import get_item, has_symbolic_integer, set_item

_OF_DUAL_LEVELS = (torch.ops.aten._make_dual.default, torch.ops.aten._unpack_dual.default)


class PreDispatchRecordingMode(RecordingMode, PreDispatchSlot):
    """Sees every call before autocast and autograd do. Results carry gradients as they do in eager mode."""

    def __init__(self, builder: GraphBuilder, options: TraceOptions, fake_mode: FakeTensorMode | None = None) -> None:
        super().__init__(builder, options, fake_mode)
        self._dispatch_key = PRE_DISPATCH_KEY  # what TorchDispatchMode.__enter__ asks where to put the mode
        self._remembering: RememberingMode | None = None
        if self._kernels is not None and fake_mode is not None:
            # A result carries its history: a remembered one has none. What arrives below autograd is remembered instead.
            if self._kernels.is_caching:
                self._remembering = RememberingMode(self._kernels, self.tracker)
            self._kernels = FakeKernelsState(fake_mode, is_caching=False)
        self.regions = RegionsState(builder)
        self._is_below = False
        self._results: dict[int, tuple[Any, dict[int, torch.fx.Node]]] = {}  # by what autograd knows of them
        self._set_aside_by_entry: list[contextlib.ExitStack] = []

    def __enter__(self) -> PreDispatchRecordingMode:
        set_aside = contextlib.ExitStack()
        set_aside.enter_context(paused_recordings())
        set_aside.enter_context(without_pre_dispatch_modes())
        self._set_aside_by_entry.append(set_aside)
        super().__enter__()
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self._set_aside_by_entry.pop().close()

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._is_below:
            return super()._dispatch(func, args, kwargs)
        self.regions.follow()
        if is_inside_function_transform():
            return self._below(func, args, kwargs)
        if func in _OF_DUAL_LEVELS:
            raise UnsupportedByRefimpl(
                seen=f"forward-mode AD inside of a trace with pre_dispatch=True{user_line()}",
                supported="levels in other traces, which record what tangents are computed by: a graph enters no level",
                do="trace without pre_dispatch",
            )
        if is_inside_backward():
            self._adopt_saved((args, kwargs))
        result = super()._dispatch(func, args, kwargs)
        return self._below(func, args, kwargs) if result is NotImplemented else result

    def track(self, value: Any, node: torch.fx.Node, *, constant: torch.Tensor | None = None) -> None:
        super().track(value, node, constant=constant)
        history = _history_of(value) if isinstance(value, torch.Tensor) else None
        if history is not None:
            _, outputs = self._results.setdefault(id(history), (history, {}))
            outputs[value.output_nr] = node

    def _run(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        if self._remembering is not None and not is_any_mode_active_but(self.fake_mode):  # it wants to see every call
            with self._remembering:
                return super()._run(func, args, kwargs, tensors)
        if self.fake_mode is not None:
            return super()._run(func, args, kwargs, tensors)
        with no_python_dispatcher():  # which the slot needs; real tensors go through the kernels that eager mode runs
            return super()._run(func, args, kwargs, tensors)

    def _adopt_saved(self, arguments: Any) -> None:
        """Find the nodes of tensors that autograd has saved. Of a result it makes a new tensor, with the same history."""
        for tensor in pytree.tree_leaves(arguments):
            if not isinstance(tensor, torch.Tensor) or self.tracker.find(tensor) is not None:
                continue
            _, outputs = self._results.get(id(tensor.grad_fn), (None, {}))
            node = outputs.get(tensor.output_nr) if tensor.grad_fn is not None else None
            if node is not None:
                self.track(tensor, node)
            elif not self.builder.is_constant(tensor) and not (tensor.is_leaf and tensor.requires_grad):
                raise UnsupportedByRefimpl(
                    seen="a backward pass inside of a trace with pre_dispatch=True that needs a tensor nothing in the "
                    f"graph gives, of shape {tuple(tensor.shape)}{user_line()}: a composite op or a hook on saved "
                    "tensors made it",
                    supported="a backward pass through ops that save their arguments and results only",
                    do="take the gradient of the graph, or trace without pre_dispatch",
                )

    def _below(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run the call, and record what arrives below autograd: a transform or a subclass takes its turn before."""
        self._is_below = True
        try:
            with _RecordingBelowAutograd(self):
                return func(*args, **kwargs)
        finally:
            self._is_below = False


def _history_of(value: torch.Tensor) -> Any:
    """None for a view made under no_grad whose base has been written to since: autograd refuses it, other ops do not."""
    try:
        return value.grad_fn
    except RuntimeError:
        return None


class _RecordingBelowAutograd(TorchDispatchMode):
    """An ordinary dispatch mode that records for the one above autograd while that handles a call."""

    supports_higher_order_operators = True

    def __init__(self, recording: PreDispatchRecordingMode) -> None:
        super().__init__()
        self._recording = recording

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # as RecordingMode

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._recording.__torch_dispatch__(func, types, args, kwargs)


AutocastState = tuple[tuple[bool, torch.dtype], ...]  # of each device: is it on, and what are its ops cast to

_DEVICES = tuple(
    device
    for device in ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla")
    if torch.amp.is_autocast_available(device)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Region:
    """An autocast region that ops run in: how deep it is, its state, and a node for every device it changes."""

    depth: int
    state: AutocastState
    nodes: tuple[torch.fx.Node, ...]


class RegionsState:
    """What the graph has switched so far, for gradients and autocast. See the note on what is no op."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self._has_gradients = torch.is_grad_enabled()
        self._is_implied = False  # gradients are off, or were at the last op, without a call of the program
        self._outside = _autocast_state()
        self._regions: list[_Region] = []

    def set_gradients(self, is_on: bool) -> None:
        """The program switches gradients on or off."""
        self._follow_autocast()
        self._switch_gradients(is_on)

    def follow(self) -> None:
        """An op comes next: switch what is not as it was."""
        is_off = not torch.is_grad_enabled() and (torch.is_inference_mode_enabled() or is_inside_backward())
        self._imply(is_off)
        self._follow_autocast()

    def finish(self) -> None:
        """The program has returned: leave everything as it was, but for what its own calls have switched."""
        self._imply(False)
        while self._regions:
            self._leave()

    def _imply(self, is_off: bool) -> None:
        if is_off:
            if self._has_gradients:
                self._switch_gradients(False)
                self._is_implied = True
        elif self._is_implied:
            self._is_implied = False
            if torch.is_grad_enabled() != self._has_gradients:
                self._switch_gradients(torch.is_grad_enabled())

    def _switch_gradients(self, is_on: bool) -> None:
        self._call(set_grad_enabled, (is_on,))
        self._has_gradients = is_on

    def _follow_autocast(self) -> None:
        depth, state = _autocast_depth(), _autocast_state()
        while self._regions:
            inner = self._regions[-1]
            if inner.depth < depth or (inner.depth == depth and inner.state == state):
                break
            self._leave()
        around = self._regions[-1].state if self._regions else self._outside
        if state != around:
            is_cached = torch.is_autocast_cache_enabled()
            nodes = tuple(
                self._call(enter_autocast, (device, dtype, is_on, is_cached))
                for device, (is_on, dtype), before in zip(_DEVICES, state, around, strict=True)
                if (is_on, dtype) != before
            )
            self._regions.append(_Region(depth=depth, state=state, nodes=nodes))

    def _leave(self) -> None:
        for node in reversed(self._regions.pop().nodes):
            self._call(exit_autocast, (node,))

    def _call(self, function: Any, args: tuple[Any, ...]) -> torch.fx.Node:
        node = self._builder.call(function, args, {})
        node.meta["val"] = None  # what verifiers of exported programs look for
        return node


def _autocast_state() -> AutocastState:
    return tuple((torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _DEVICES)


def _autocast_depth() -> int:
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


_CURRENT: contextvars.ContextVar[PreDispatchFunctionMode | None] = contextvars.ContextVar(
    "refimpl_pre_dispatch_function_mode", default=None
)


class PreDispatchFunctionMode(TorchFunctionMode):
    """Sees what no dispatch mode does: calls that are no ops, and operators that take functions before they run."""

    def __init__(self, recording: PreDispatchRecordingMode) -> None:
        super().__init__()
        self._recording = recording
        self._pauses = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        recording = self._recording
        if self._pauses or not recording.is_recording:
            return func(*args, **kwargs)
        if func is set_grad_enabled:
            recording.regions.set_gradients(*args)
        elif isinstance(func, HigherOrderOperator):
            with without_pre_dispatch_modes():
                return recording.__torch_dispatch__(func, types, args, kwargs)
        elif func == _DATA_OF_TENSOR:
            return args[0].detach()
        elif func is torch.Tensor.requires_grad_ or func == _SET_REQUIRES_GRAD:
            self._record_requires_grad(*args, **kwargs)
        elif func in _INDEXING and has_symbolic_integer(args[1]):
            return _INDEXING[func](*args)
        return func(*args, **kwargs)

    def _record_requires_grad(self, tensor: torch.Tensor, requires_grad: bool = True) -> None:
        """Not an op to the dispatcher, but there is one of the name."""
        if tensor.requires_grad == requires_grad or is_inside_function_transform():
            return
        op, recording = torch.ops.aten.requires_grad_.default, self._recording
        with paused_recordings():
            node = recording.builder.call(op, (recording.node_of(tensor), requires_grad), {})
            recording.builder.describe(node, tensor)
            recording.track(tensor, node)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within it the mode does nothing. It stays where it is among the others."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1


_INDEXING: dict[Any, Callable[..., Any]] = {torch.Tensor.__getitem__: get_item, torch.Tensor.__setitem__: set_item}
_DATA_OF_TENSOR = torch.Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]
_SET_REQUIRES_GRAD = torch.Tensor.requires_grad.__set__  # pyright: ignore[reportAttributeAccessIssue]


@contextlib.contextmanager
def calls_that_are_no_ops(recording: PreDispatchRecordingMode) -> Iterator[None]:
    """For the time of a trace. Whether gradients are on is afterwards what it was before, whatever happens."""
    had_gradients = torch.is_grad_enabled()
    mode = PreDispatchFunctionMode(recording)
    token = _CURRENT.set(mode)
    try:
        with mode:
            yield
        recording.regions.finish()
    finally:
        _CURRENT.reset(token)
        with without_pre_dispatch_functions():  # of a trace around this one, which is not to see it
            torch.set_grad_enabled(had_gradients)


@contextlib.contextmanager
def without_pre_dispatch_functions() -> Iterator[PreDispatchFunctionMode | None]:
    """Within it the innermost trace's function mode does nothing: calls that are no ops are not part of its graph.

    Counterpart: torch/fx/experimental/proxy_tensor.py _temp_remove_pre_dispatch_torch_function_mode
    Differs: nothing is popped and pushed again, so that other function modes keep their order.
    """
    mode = _CURRENT.get()
    if mode is None:
        yield None
        return
    with mode.paused():
        yield mode
