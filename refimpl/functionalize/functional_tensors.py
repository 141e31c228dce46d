"""`torch._to_functional_tensor` and related functions, which functionalize the part of a program between enable and disable.

Counterpart: torch._to_functional_tensor, _from_functional_tensor, _is_functional_tensor, _sync, _enable_functionalization,
_disable_functionalization, _freeze_functional_tensor (torch/csrc/autograd/python_torch_functions_manual.cpp)
Differs: a functional tensor is a copy of a real tensor. Between enable and disable (a session) the program runs on the copies
and is recorded. When the session ends, the recorded graph is functionalized and run on the real tensors, under any trace that is
active. `from_functional_tensor` regenerates a stale view when it is called. Outside of a session mutation is not recorded.

Random ops draw the same numbers in the program and in the functional run: the generator's state is restored in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import (
    FakeTensor,
    FakeTensorMode,
    WeakTensorKeyDictionary,
    active_fake_mode,
    storage_key,
    without_dispatch,
    without_torch_function,
)
from refimpl.functionalize.aliases import AliasMap
from refimpl.functionalize.emitter import fake_mode_of, map_nodes
from refimpl.functionalize.errors import FrozenTensor, MixedTensors, NoSession, NotAFunctionalTensor
from refimpl.functionalize.geometry import extent_of
from refimpl.functionalize.graph_pass import FunctionalizationState, only_metadata
from refimpl.functionalize.schemas import effects_of
from refimpl.functionalize.verify import verify_functional, verify_reads
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.options import TraceOptions
from refimpl.trace.recording_mode import RecordingMode, paused_recordings

Node = torch.fx.Node
_aten = torch.ops.aten


class FunctionalTensor(torch.Tensor):
    """A copy of a real tensor. Behaves like a plain tensor, but cannot be written into a plain tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name.endswith("_") and not name.endswith("__") and args and isinstance(args[0], torch.Tensor):
            if not is_functional_tensor(args[0]):
                raise MixedTensors(name)
        with without_torch_function():
            return func(*args, **(kwargs or {}))


@dataclass(slots=True)
class _Handle:
    """The real tensor of a functional tensor: `value`, or after a session the value of `node`, computed on demand."""

    value: torch.Tensor | None = None
    session: SessionState | None = None
    node: Node | None = None


_HANDLES: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
_ON: list[SessionState] = []


class SessionState:
    """A recording of the program; after `finish`, the values of its tensors. Mutable."""

    def __init__(self, *, keeps_views: bool) -> None:
        self.keeps_views = keeps_views
        fake_mode = active_fake_mode()
        self.builder = GraphBuilder()
        self.builder.fake_mode = fake_mode
        self.mode = _SessionMode(self.builder, fake_mode, self)
        self.inputs: list[tuple[Node, torch.Tensor, torch.Tensor]] = []  # placeholder, functional tensor, real tensor
        self.frozen: set[int] = set()
        self._random_state = _random_state()
        self._values: dict[Node, Any] = {}
        self._evaluated: Node | None = None
        self._pass: FunctionalizationState | None = None

    def input(self, stand_in: torch.Tensor) -> Node | None:
        """The placeholder for a functional tensor; None for a plain tensor."""
        if stand_in not in _HANDLES:
            return None
        value = from_functional_tensor(stand_in)
        with paused_recordings():
            node = self.builder.late_placeholder(f"arg{len(self.inputs)}_1", stand_in)
        self.mode.track(stand_in, node)
        self.inputs.append((node, stand_in, value))
        return node

    def finish(self) -> None:
        """Functionalize the recorded graph and run it on the real tensors."""
        fake_mode = fake_mode_of(self.builder.graph)
        given = self.builder.graph
        with _random_state_put_back(self._random_state), only_metadata(fake_mode):
            self._pass = FunctionalizationState(
                self.builder.root,
                given,
                AliasMap(given),
                fake_mode,
                "table",
                keeps_views=self.keeps_views,
                is_exact=True,
            )
            self._pass.all_nodes()
        verify_functional(self._pass.emit.graph)
        verify_reads(given, self._pass.memory)
        for node, _, value in self.inputs:
            self._values[self._pass.placeholders[node]] = value
        self._evaluate()
        for tensor, tracked in self.mode.tracker.items():
            _HANDLES[tensor] = _Handle(session=self, node=tracked.node)
        aliases = self._pass.aliases
        for node, stand_in, value in self.inputs:
            tracked = self.mode.tracker.find(stand_in)
            assert tracked is not None
            if not aliases.writes_to(node) and aliases.tensor_of(tracked.node) is node:
                _HANDLES[stand_in] = _Handle(value=value)

    def value_of(self, node: Node) -> torch.Tensor:
        """The value that a recorded node's tensor has at the end of the session."""
        run = self._pass
        assert run is not None, "values exist only after the session has ended"
        with only_metadata(run.emit.builder.fake_mode):
            new = run.memory.read(node)
        self._evaluate()
        return self._values[new]

    def _evaluate(self) -> None:
        """Run the nodes of the new graph that have not run yet."""
        assert self._pass is not None
        nodes = iter(self._pass.emit.graph.nodes)
        with torch.no_grad():
            for node in nodes:
                if node in self._values:
                    continue
                if node.op == "get_attr":
                    self._values[node] = self._pass.emit.attributes[node.target]
                else:
                    args, kwargs = map_nodes((node.args, dict(node.kwargs)), self._values.__getitem__)
                    self._values[node] = node.target(*args, **kwargs)


class _SessionMode(RecordingMode):
    """Records ops. A functional tensor becomes a placeholder when an op first uses it."""

    def __init__(self, builder: GraphBuilder, fake_mode: FakeTensorMode | None, session: SessionState) -> None:
        options = TraceOptions(
            tracing_mode="real" if fake_mode is None else "fake",
            allow_fake_constant=True,
            error_on_data_dependent_ops=fake_mode is not None,
        )
        super().__init__(builder, options, fake_mode)
        self.session = session

    def node_of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor) and self.tracker.find(value) is None:
            node = self.session.input(value)
            if node is not None:
                return node
        return super().node_of(value)

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        for parameter in effects_of(func).written:
            written = parameter.of(args, kwargs)
            for tensor in written if isinstance(written, (list, tuple)) else (written,):
                if isinstance(tensor, torch.Tensor):
                    self._check_write(func, tensor)
        if func in (_aten.set_.source_Storage, _aten.set_.source_Storage_storage_offset):
            return self._set(func, args, kwargs)
        return super()._dispatch(func, args, kwargs)

    def _check_write(self, func: Any, tensor: torch.Tensor) -> None:
        if self.session.frozen and storage_key(tensor) in self.session.frozen:
            raise FrozenTensor(func)

    def _set(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record `set_` to a storage as `set_` to the tensor that owns this storage."""
        storage = args[1]
        known = [tensor for tensor, _ in (*self.tracker.items(), *_HANDLES.items())]
        tensor = next((tensor for tensor in known if storage_key(tensor) == storage._cdata), None)
        if tensor is None:
            return super()._dispatch(func, args, kwargs)
        if func is _aten.set_.source_Storage:
            size = [storage.nbytes() // args[0].element_size()]
            args = (args[0], tensor, 0, size, [1])
        else:
            args = (args[0], tensor, *args[2:])
        return self._record(_aten.set_.source_Tensor_storage_offset, [args[0], tensor], args, kwargs)


# -------------------------------------------------------------------------------------------------------- upstream's names


def to_functional_tensor(t: torch.Tensor) -> torch.Tensor:
    """A functional tensor for `t`."""
    with paused_recordings(), torch.no_grad():
        copy = _copy_of(t)
        stand_in = copy if isinstance(t, FakeTensor) else copy.as_subclass(FunctionalTensor)
    _HANDLES[stand_in] = _Handle(value=t)
    return stand_in


def is_functional_tensor(t: torch.Tensor) -> bool:
    """Whether `t` was made by `to_functional_tensor`, or by an op in a session."""
    return t in _HANDLES or any(session.mode.tracker.find(t) is not None for session in _ON)


def from_functional_tensor(t: torch.Tensor) -> torch.Tensor:
    """The real tensor of `t`: the one that it was made from, unless a session has written to it. Raises NotAFunctionalTensor."""
    handle = _HANDLES.get(t)
    if handle is None:
        raise NotAFunctionalTensor(t)
    if handle.session is not None:
        assert handle.node is not None
        return handle.session.value_of(handle.node)
    assert handle.value is not None
    return handle.value


def sync(t: torch.Tensor) -> None:
    """Nothing to do: `from_functional_tensor` returns the value at the end of the session."""


def freeze_functional_tensor(t: torch.Tensor) -> None:
    """Refuse writes to `t` and its aliases until the session ends. Raises NoSession."""
    if not _ON:
        raise NoSession("freeze_functional_tensor")
    _ON[-1].frozen.add(storage_key(t))


def enable_functionalization(*, reapply_views: bool = False) -> None:
    """Begin a session. With `reapply_views` the functional graph has view ops, else their `*_copy` forms."""
    session = SessionState(keeps_views=reapply_views)
    session.mode.__enter__()
    _ON.append(session)


def disable_functionalization() -> None:
    """End the session and run its functional graph, under the enclosing trace if any. Raises NoSession, CannotFunctionalize."""
    if not _ON:
        raise NoSession("disable_functionalization")
    session = _ON.pop()
    session.mode.__exit__(None, None, None)
    session.finish()


# ------------------------------------------------------------------------------------------------------------------- parts


def _copy_of(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides: the memory from the first to the last element is copied."""
    if t.layout is not torch.strided or t.is_quantized or t.is_nested:
        return t.detach().clone()
    first, last = extent_of(t)
    memory = t.detach().as_strided((last - first,), (1,), first).clone()
    return memory.as_strided(t.shape, t.stride(), 0)


def _random_state() -> torch.Tensor:
    with without_dispatch():
        return torch.default_generator.get_state()


@contextlib.contextmanager
def _random_state_put_back(state: torch.Tensor) -> Iterator[None]:
    with without_dispatch():
        torch.default_generator.set_state(state)
    yield
