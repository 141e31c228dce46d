"""The dispatch mode that records: every aten overload called under it becomes a node, and runs.

Counterpart: torch/fx/experimental/proxy_tensor.py ProxyTorchDispatchMode, proxy_call
Differs: no proxies, no symbolic sizes, no pre-dispatch tracing. Subclasses of Tensor without a `__torch_dispatch__` of their
own are recorded like plain tensors.

Order of the questions asked of a call: does it concern this trace; is it another type's to handle; is there a decomposition;
would autograd have decomposed it; does it read a value; else record it.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from refimpl._torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    OpOverload,
    TorchDispatchMode,
    active_dispatch_modes,
    has_no_dispatch_of_its_own,
    is_decomposed_by_autograd,
    run_composite_kernel,
    without_fake_mode,
    written_arguments,
)
from refimpl.errors import DataDependentRead, UnsupportedByRefimpl
from refimpl.trace.constants import ConstantsState
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.metadata import describe
from refimpl.trace.tracker import TrackerState

DecompositionTable = Mapping[Any, Callable[..., Any]]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_OPAQUE = (torch.Generator, torch.ScriptObject)  # arguments a graph cannot print: they become attributes
_METADATA_QUERIES = (torch.ops.aten.size.default, torch.ops.aten.stride.default, torch.ops.aten.storage_offset.default)
_NOT_RECORDED = (torch.ops.prim.device.default,)  # asked by fake tensors about themselves


class RecordingMode(TorchDispatchMode):
    """Records into `builder`. Only the innermost recording mode records, so that a trace inside a trace stays invisible."""

    def __init__(
        self,
        builder: GraphBuilder,
        *,
        decompositions: DecompositionTable,
        is_reading_allowed: bool = False,
    ) -> None:
        super().__init__()
        self.builder = builder
        self.tracker = TrackerState()
        self._constants = ConstantsState()
        self._decompositions = decompositions
        self._is_reading_allowed = is_reading_allowed  # then values read are burned in
        self._pauses = 0
        self._paused_by_entry: list[contextlib.AbstractContextManager[None]] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the base class would wrap __torch_dispatch__ in torch._dynamo.disable, which runs dynamo's code

    def __enter__(self) -> RecordingMode:
        pause = _pause(except_for=self)
        pause.__enter__()
        self._paused_by_entry.append(pause)
        super().__enter__()
        return self

    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        super().__exit__(exc_type, exc_val, exc_tb)
        self._paused_by_entry.pop().__exit__(exc_type, exc_val, exc_tb)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._pauses or func in _NOT_RECORDED:
            return func(*args, **kwargs)
        tensors = _tensors_in((args, kwargs))
        if not all(map(self._is_handled, tensors)):
            return NotImplemented  # the subclass's own __torch_dispatch__ gets its turn, and calls plain ops
        decomposed = self._decompose(func, tensors, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        if torch.Tag.data_dependent_output in func.tags:
            return self._read(func, tensors, args, kwargs)
        return self._record(func, tensors, args, kwargs)

    def node_of(self, value: Any) -> Any:
        """The node that stands for a value in the graph; literals stand for themselves, containers are rebuilt."""
        if isinstance(value, torch.Tensor):
            tracked = self.tracker.find(value)
            if tracked is not None:
                return tracked.node
            if isinstance(value, FakeTensor):
                raise UnsupportedByRefimpl(
                    seen="a fake tensor that was made outside of the trace",
                    supported="fake tensors among the inputs",
                    do="pass it as an input",
                )
            return self.builder.constant(value)
        if isinstance(value, _OPAQUE):
            return self.builder.constant(value)
        if isinstance(value, _SYMBOLIC):
            raise UnsupportedByRefimpl(
                seen=f"a symbolic size ({value}) in a traced call",
                supported="sizes that are ints",
                do="trace with static shapes",
            )
        if type(value) in (tuple, list):
            return type(value)(map(self.node_of, value))
        if type(value) is dict:
            return {key: self.node_of(item) for key, item in value.items()}
        return value

    def _is_handled(self, tensor: torch.Tensor) -> bool:
        kind = type(tensor)
        return (
            kind is torch.Tensor
            or kind is FakeTensor
            or has_no_dispatch_of_its_own(kind)
            or self.tracker.find(tensor) is not None
        )

    def _decompose(self, func: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """The result by the user's decomposition or the op's composite kernel, recorded in turn; NotImplemented if neither."""
        rule = self._decompositions.get(func)
        if rule is not None:
            with self:
                result = rule(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if func not in _METADATA_QUERIES and is_decomposed_by_autograd(func, {t.device.type for t in tensors}):
            with self:
                return run_composite_kernel(func, args, kwargs)
        return NotImplemented

    def _read(self, func: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """An op whose result is a Python value: allowed on constants only, since the value is burned into the graph."""
        if self._are_known(tensors):
            known_args, known_kwargs = self._with_known_values((args, kwargs))
            with without_fake_mode():
                return func(*known_args, **known_kwargs)
        if not self._is_reading_allowed:
            raise DataDependentRead(func)
        return self._run(func, args, kwargs)

    def _record(self, func: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        # A literal must be fresh on every run of the graph: an in-place op would otherwise change the stored attribute.
        if func is torch.ops.aten.lift_fresh.default:
            func = torch.ops.aten.lift_fresh_copy.default
        node = self.builder.call(func, self.node_of(args), self.node_of(kwargs))
        result = self._run(func, args, kwargs)
        constant = None
        if func is torch.ops.aten.lift_fresh_copy.default and self.tracker.find(args[0]) is None:
            constant = self._constants.of_literal(args[0])
        elif self._are_known(tensors) and any(self.tracker.find(t) is not None for t in tensors):
            known_args, known_kwargs = self._with_known_values((args, kwargs))
            constant = self._constants.compute(func, known_args, known_kwargs, result)
        self._note_writes(func, args, kwargs, is_known=constant is not None)
        self._track_result(result, node, constant)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any) -> Any:
        try:
            return func(*args, **kwargs)
        except DataDependentOutputException as error:
            raise DataDependentRead(func) from error
        except DynamicOutputShapeException as error:
            raise UnsupportedByRefimpl(
                seen=f"{func} under fake tensors: the shape of its result depends on data",
                supported="ops whose result has a shape that follows from the shapes of the inputs",
                do="trace with tracing_mode='real'",
            ) from error

    def _are_known(self, tensors: list[torch.Tensor]) -> bool:
        """Whether all values are known. A plain tensor that no traced op made or wrote cannot depend on the inputs."""
        for tensor in tensors:
            tracked = self.tracker.find(tensor)
            if tracked is None:
                if isinstance(tensor, FakeTensor):
                    return False
            elif self._constants.value_of(tracked) is None:
                return False
        return True

    def _with_known_values(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            tracked = self.tracker.find(value)
            return value if tracked is None else self._constants.value_of(tracked)
        if type(value) in (tuple, list):
            return type(value)(map(self._with_known_values, value))
        if type(value) is dict:
            return {key: self._with_known_values(item) for key, item in value.items()}
        return value

    def _note_writes(self, func: Any, args: Any, kwargs: Any, *, is_known: bool) -> None:
        for position, name in _written_arguments(func):
            written = args[position] if position < len(args) else kwargs.get(name)
            for tensor in _tensors_in(written):
                tracked = self.tracker.find(tensor)
                if tracked is None:  # from now on its value is not what it was before the trace
                    self.tracker.track(tensor, self.builder.constant(tensor))
                elif not is_known:
                    self._constants.forget(tracked)

    def _track_result(self, result: Any, node: torch.fx.Node, constant: Any) -> None:
        describe(node, result)
        if isinstance(result, torch.Tensor):
            self.tracker.track(result, node, constant=constant)
            return
        if not isinstance(result, (list, tuple)):
            return
        for index, item in enumerate(result):
            item_node = self.builder.getitem(node, index, item)
            self._track_result(item, item_node, None if constant is None else constant[index])


def paused_recordings() -> contextlib.AbstractContextManager[None]:
    """Within it the recording modes that are on record nothing: for what belongs to a trace but not to the program."""
    return _pause(except_for=None)


@contextlib.contextmanager
def _pause(*, except_for: RecordingMode | None) -> Iterator[None]:
    modes = [mode for mode in active_dispatch_modes() if isinstance(mode, RecordingMode) and mode is not except_for]
    for mode in modes:
        mode._pauses += 1
    try:
        yield
    finally:
        for mode in modes:
            mode._pauses -= 1


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    return written_arguments(func) if isinstance(func, OpOverload) else ()


def _tensors_in(value: Any) -> list[torch.Tensor]:
    """All tensors in an op's arguments: an op takes tensors and lists of tensors, nothing deeper than a list of lists."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in _tensors_in(item)]
    if type(value) is dict:
        return [tensor for item in value.values() for tensor in _tensors_in(item)]
    return []
