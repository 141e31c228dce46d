"""The dispatch mode that records a trace: each aten overload called under it runs and becomes a node.

Counterpart: torch/fx/experimental/proxy_tensor.py ProxyTorchDispatchMode, proxy_call
Differs: no proxies, and no second mode for symbolic numbers (refimpl.trace.symbols). Subclasses of Tensor without a
`__torch_dispatch__` of their own are recorded like plain tensors.

Checks of a call, in this order: is this mode paused; must a tensor subclass handle it first; is there a decomposition; would
autograd have decomposed it; does it read a tensor's value (`item`). If none applies the call is recorded.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import torch

from refimpl._torch import (
    SYMBOLIC_TYPES,
    DataDependentOutputException,
    DispatchMode,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    active_dispatch_modes,
    has_no_dispatch_of_its_own,
    is_decomposed_by_autograd,
    is_opaque_object,
    is_traceable_wrapper_subclass,
    run_composite_kernel,
    storage_key,
    upstream_proxy_mode,
    without_fake_mode,
    written_arguments,
)
from refimpl.errors import (
    BadDecomposition,
    DataDependentFakeRead,
    DataDependentRead,
    DynamicShapeInTrace,
    NoTraceRunning,
    NotTracked,
    UnsupportedByRefimpl,
)
from refimpl.symbolic.dynamic_shapes import ALL_STATIC
from refimpl.symbolic.fake_inputs import InputFaker
from refimpl.symbolic.symbols import fresh_bindings
from refimpl.trace.eager_facts import device_of
from refimpl.trace.fake_kernels import FakeKernelsState, append_tensors, known_result
from refimpl.trace.graph_builder import LITERALS, GraphBuilder
from refimpl.trace.higher_order import Subgraph, call_higher_order
from refimpl.trace.internal_overlap import updates_overlapping_elements
from refimpl.trace.metadata import preserved_meta_writer
from refimpl.trace.options import TraceOptions
from refimpl.trace.proxies import PythonKeyTracer
from refimpl.trace.read_after_write import reads_what_it_writes
from refimpl.trace.refusals import check_mutations, eager_error
from refimpl.trace.symbols import SymbolState
from refimpl.trace.tracker import (
    MAKES_ZEROS,
    ConstantsState,
    InnerTensorsState,
    ObjectTrackerState,
    TrackerState,
    ZeroTensorsState,
    as_tangent_of_number,
    with_plain_numbers,
    zeros_of_product,
)

_not_implemented_log = logging.getLogger("refimpl.trace.not_implemented")
_METADATA_QUERIES = (torch.ops.aten.size.default, torch.ops.aten.stride.default, torch.ops.aten.storage_offset.default)
_LIFTS_LITERAL = (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift_fresh_copy.default)
_DEVICE_QUERY = torch.ops.prim.device.default  # `tensor.device` while a mode is on; never recorded
# What fake kernels raise for a wrong call. Eager may raise another type: an assert of a Python kernel is its RuntimeError.
_ERRORS_OF_FAKES = (RuntimeError, TypeError, ValueError, IndexError, AssertionError)


class RecordingMode(DispatchMode):
    """Records into `builder`. Only the innermost recording mode records: the ops of a nested trace are not in the outer graph."""

    supports_higher_order_operators = True

    def __init__(self, builder: GraphBuilder, options: TraceOptions, fake_mode: FakeTensorMode | None = None) -> None:
        super().__init__()
        self.builder = builder
        self.options = options
        self.fake_mode = fake_mode
        self.tracker = TrackerState()
        self.objects = ObjectTrackerState()
        self.inside = InnerTensorsState()
        self.symbols = SymbolState(builder)
        self._constants = ConstantsState()
        self._zeros = ZeroTensorsState()
        self._faker: InputFaker | None = None  # re-fakes constants that belong to another fake mode
        self._kernels: FakeKernelsState | None = None
        # Whether fake_mode itself computes results, because they have real values.
        self._has_values = fake_mode is not None and fake_mode.propagate_real_tensors
        if fake_mode is not None:  # no cache below another mode, which may want to see every call
            around = [mode for mode in active_dispatch_modes() if not isinstance(mode, (FakeTensorMode, RecordingMode))]
            self._kernels = FakeKernelsState(fake_mode, is_caching=not around and not self._has_values)
        # refimpl's ShapeEnv has `records_origins`, torch's does not.
        self._origins: Any = None if fake_mode is None else fake_mode.shape_env
        # In a subgraph (a branch of torch.cond): the outer trace, and values of it that the branch closes over.
        self.outer: RecordingMode | None = None
        self.lifted: list[tuple[Any, torch.fx.Node]] = []
        self._overwritten: dict[
            int, tuple[torch.UntypedStorage, torch.UntypedStorage]
        ] = {}  # real memory, and what it held
        self.trace_function: Callable[[Callable[..., Any], tuple[Any, ...]], Subgraph] = _no_trace
        self.reused_graphs: dict[Any, Any] = {}
        self.histories: dict[int, Any] = {}
        self.fakes_of_objects: dict[int, Any] = {}
        self.decomposed: Any = None  # the outermost op whose decomposition is running
        self.operands: Sequence[torch.Tensor] = ()  # tensors of the op that is being recorded
        # Called with each captured tensor (made outside of the trace) before an op uses it; not with literals of the program.
        self.on_captured: Callable[[torch.Tensor], None] | None = None
        # Called with each used tensor whose storage or geometry has changed since an op returned it (`x.data = y`).
        self.on_moved: Callable[[torch.Tensor], None] | None = None
        # Called after a decomposition: with the op, its args and kwargs, and the result.
        self.on_decomposed: Callable[[Any, tuple[Any, ...], dict[str, Any], Any], None] | None = None
        builder.annotators.append(preserved_meta_writer(self))
        self._tracer_around: Any = None  # torch's proxy mode at entry; under another one this mode does not record
        self._pauses = 0
        self._paused_by_entry: list[contextlib.AbstractContextManager[None]] = []

    def __enter__(self) -> RecordingMode:
        if not self._paused_by_entry:
            self._tracer_around = upstream_proxy_mode()
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
        if func is _DEVICE_QUERY and type(args[0]) is FakeTensor:
            return args[0].fake_device
        if self._pauses or func is _DEVICE_QUERY or upstream_proxy_mode() is not self._tracer_around:
            return func(*args, **kwargs)
        origins = self._origins
        if origins is None or not getattr(origins, "records_origins", False):
            return self._dispatch(func, args, kwargs)
        origins.records_origins = False  # sizes that kernels compute with are not part of the program
        try:
            return self._dispatch(func, args, kwargs)
        finally:
            origins.records_origins = True

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensors: list[torch.Tensor] = []
        append_tensors(args, tensors)
        if kwargs:
            append_tensors(kwargs, tensors)
        if self.options.lifts_constants and any(map(self._is_foreign, tensors)):
            return self._dispatch(func, *self._with_own_fakes((args, kwargs)))
        if self.outer is not None:
            for tensor in tensors:
                if not self._is_known(tensor):
                    self._lift(tensor)
        if not all(map(self._is_handled, tensors)):
            kinds = [type(tensor) for tensor in tensors if not self._is_handled(tensor)]
            _not_implemented_log.debug(
                "the __torch_dispatch__ of these untracked Tensor subclasses runs first: %s", kinds
            )
            return NotImplemented  # the subclass's own __torch_dispatch__ runs first, and calls ops on plain tensors
        if isinstance(func, HigherOrderOperator):
            self.operands = tensors
            decomposed = self._decompose(func, tensors, args, kwargs)
            return call_higher_order(self, func, args, kwargs) if decomposed is NotImplemented else decomposed
        if func is MAKES_ZEROS or self._zeros.make_it_zero(func, args):
            with self.recorded_again():
                made = torch.ops.aten.zeros.default(*args, **kwargs) if func is MAKES_ZEROS else zeros_of_product(*args)
            self._zeros.add(made)
            return as_tangent_of_number(made) if func is MAKES_ZEROS else made
        args = with_plain_numbers(args)
        if self._zeros.are_viewed(func, args):
            viewed = self._answered(func, tensors, args, kwargs)
            for view in viewed if isinstance(viewed, (list, tuple)) else [viewed]:
                self._zeros.add(view)
            return viewed
        return self._answered(func, tensors, args, kwargs)

    def _answered(self, func: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        if _writes_lists(func):
            _count_writes(func, args)
        decomposed = self._decompose(func, tensors, args, kwargs)
        if decomposed is not NotImplemented:
            return decomposed
        if func is torch.ops.aten.is_nonzero.default:
            count = args[0].numel()
            if isinstance(count, int) and count != 1:
                with without_fake_mode():
                    return func(torch.zeros(min(count, 2)))  # raises the kernel's own error
            with self.recorded_again():
                return (args[0] != 0).item()
        if torch.Tag.data_dependent_output in func.tags and not self._may_read(func, tensors):
            if not self._are_known(tensors):
                raise DataDependentRead(func)
            known_args, known_kwargs = self._with_known_values((args, kwargs))
            with without_fake_mode():
                return func(*known_args, **known_kwargs)
        return self._record(func, tensors, args, kwargs)

    def recorded_again(self) -> contextlib.AbstractContextManager[Any]:
        """A block in which operators are recorded, for use while the mode handles a call, which has taken it out of the stack."""
        return self

    @property
    def tracer(self) -> PythonKeyTracer:
        """The trace in the form of upstream's tracer, with proxies."""
        return PythonKeyTracer.of(self)

    @property
    def is_recording(self) -> bool:
        """Whether no inner trace and no `paused_recordings()` block has paused this mode."""
        return self._pauses == 0

    def use_values_of(self, outer: RecordingMode) -> None:
        """Turn values of `outer` that this trace uses into placeholders of its own graph."""
        self.outer = outer
        self.symbols.lift = self._lift

    def can_find(self, value: Any) -> bool:
        """Whether this trace, or an outer one that it can lift values from, tracks a tensor, symbolic number or script object."""
        if isinstance(value, SYMBOLIC_TYPES):
            is_known = self.symbols.can_find(value)
        elif isinstance(value, torch.Tensor):
            is_known = self._is_known(value)
        elif is_opaque_object(value):
            is_known = self.objects.find(value) is not None
        else:
            return True
        return is_known or (self.outer is not None and self.outer.can_find(value))

    def record_write(self, written: torch.Tensor, value: torch.Tensor) -> None:
        """Record that a call wrote to a tensor, for a rule that ran it on a copy: `value` is what the copy has now."""
        with self.recorded_again():
            torch.ops.aten.copy_.default(written, value)

    def _lift(self, value: Any) -> torch.fx.Node | None:
        """A new placeholder for a value that only an outer trace tracks; None if no trace tracks it.

        A constant that requires gradients gets one too: an operator's backward has gradients of its operands only.
        """
        if self.outer is None:
            return None
        if not self.outer.can_find(value):
            if self.fake_mode is not None or not (isinstance(value, torch.Tensor) and value.requires_grad):
                return None
            self.outer._keep_constant(value)
        node = self.builder.late_placeholder(f"closed_over{len(self.lifted)}", value)
        self.track(value, node)
        self.lifted.append((value, node))
        return node

    def _keep_constant(self, tensor: torch.Tensor) -> None:
        """Make the tensor an attribute of the outermost graph, and track it there."""
        if self.outer is not None:
            return self.outer._keep_constant(tensor)
        return self.track(tensor, self.builder.constant(tensor))

    def _is_foreign(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor must be re-faked: an untracked fake of another mode, or a constant that a subgraph closes over."""
        if type(tensor) is FakeTensor:
            is_other = tensor.fake_mode is not self.fake_mode
        else:
            is_other = self.outer is not None and type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        return is_other and not self.can_find(tensor)  # a deep copy has a copy of the fake mode, but is tracked

    def _own_fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """This mode's fake of a constant. The constant itself is an attribute of the outermost graph."""
        if self.outer is not None:
            return self.outer._own_fake(tensor)
        assert self.fake_mode is not None
        shape_env: Any = self.fake_mode.shape_env
        if self._faker is None:
            self._faker = InputFaker(self.fake_mode, shape_env, takes_fakes=True)
        own = self._faker.tensor(tensor, "a constant", ALL_STATIC)
        if self.tracker.find(own) is None:
            node = self.builder.constant(tensor)
            self.builder.describe(node, own)
            self.track(own, node)
        return own

    def _with_own_fakes(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._own_fake(value) if self._is_foreign(value) else value
        if type(value) in (tuple, list):
            return type(value)(map(self._with_own_fakes, value))
        if type(value) is dict:
            return {key: self._with_own_fakes(item) for key, item in value.items()}
        return value

    def bind_fresh_symbols(self, result: Any, node: torch.fx.Node) -> None:
        """Write `unbacked_bindings`: at which places of the node's result new unbacked symbols are found."""
        shape_env = None if self.fake_mode is None else self.fake_mode.shape_env
        if shape_env is not None and shape_env.pending_fresh_unbacked_symbols:
            bindings = fresh_bindings(shape_env, result)
            if bindings:
                node.meta["unbacked_bindings"] = bindings

    def node_of(self, value: Any) -> Any:
        """The node of a value. Literals are returned as they are; containers are rebuilt with nodes in them."""
        if isinstance(value, torch.Tensor):
            tracked = self.tracker.find(value)
            if tracked is not None:
                if type(value) is not FakeTensor:
                    self._check_wrapper(value)
                return tracked.node
            inside = self._node_inside(value)
            if inside is not None:
                return inside
            lifted = self._lift(value)
            if lifted is not None:
                return lifted
            if self.options.lifts_constants and self._is_foreign(value):
                return self.node_of(self._own_fake(value))
            if isinstance(value, FakeTensor) and not self.options.allow_fake_constant:
                raise NotTracked(value)
            return self.builder.constant(value)
        if isinstance(value, SYMBOLIC_TYPES):
            return self.symbols.node_of(value)
        if type(value) in (tuple, list):
            return type(value)(map(self.node_of, value))
        if type(value) is dict:
            return {key: self.node_of(item) for key, item in value.items()}
        if isinstance(value, (tuple, list)):  # torch.Size, torch.return_types
            return tuple(map(self.node_of, value))
        if isinstance(value, LITERALS):
            return value
        if isinstance(value, torch.fx.Proxy):  # a result of a module among the inputs (proxy_module_inputs)
            return value.node
        if isinstance(value, torch.Generator):  # has no literal, so it is an attribute
            return self.builder.constant(value)
        if is_opaque_object(value):
            node = self.objects.find(value)
            if node is None and self.outer is not None and self.outer.can_find(value):
                raise UnsupportedByRefimpl(
                    seen=f"a function of a higher-order operator that closes over the script object {value!r}",
                    supported="closed-over tensors and numbers, which can become operands",
                    do="call the object's methods outside of the function",
                )
            return self.builder.constant(value) if node is None else node
        return value

    def track(self, value: Any, node: torch.fx.Node, *, constant: torch.Tensor | None = None) -> None:
        """Track a value by its node. A symbolic number keeps its first node, a tensor its last."""
        if isinstance(value, torch.Tensor):
            if type(value) is not FakeTensor and is_traceable_wrapper_subclass(value):
                self.inside.add(value, node)
            if self._kernels is None:
                self.tracker.track(value, node, constant=constant)
                return
            signature = self._kernels.signature(value)
            memory = None if self.on_moved is None else _memory_of(value)
            self.tracker.track(value, node, constant=constant, signature=signature, memory=memory)
            if signature is None or signature[0]:  # type: ignore[index]
                self.symbols.track_sizes(value, node)
        elif isinstance(value, SYMBOLIC_TYPES):
            self.symbols.track_value(value, node)
        elif is_opaque_object(value):
            self.objects.track(value, node)

    def check_memory(self, tensors: Sequence[torch.Tensor]) -> None:
        """Call `on_moved` with each tensor whose storage or geometry has changed since an op returned it."""
        for tensor in tensors:
            tracked = self.tracker.find(tensor)
            is_watched = tracked is not None and tracked.memory is not None and self.on_moved is not None
            if is_watched and tracked.memory != _memory_of(tensor):  # type: ignore[union-attr]
                self.on_moved(tensor)  # type: ignore[misc]

    def _is_handled(self, tensor: torch.Tensor) -> bool:
        kind = type(tensor)
        return kind is torch.Tensor or kind is FakeTensor or has_no_dispatch_of_its_own(kind) or self._is_known(tensor)

    def _is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the trace tracks the tensor, or a wrapper that has it inside."""
        return self.tracker.find(tensor) is not None or self.inside.find(tensor) is not None

    def _check_wrapper(self, tensor: torch.Tensor) -> None:
        if not self.inside.is_settled(tensor):
            raise UnsupportedByRefimpl(
                seen=f"a program that assigns a tensor to an attribute of a {type(tensor).__name__}, a node of the graph",
                supported="operators that write to such a tensor, or to the tensors inside of it",
                do="copy the values into the tensor inside of it (copy_), or make a new wrapper",
            )

    def _node_inside(self, tensor: torch.Tensor) -> torch.fx.Node | None:
        """A new node for a tensor inside of a tracked wrapper, which is tracked from now on; None for other tensors."""
        known = self.inside.find(tensor)
        if known is None:
            return None
        owner = self.node_of(known.wrapper) if known.node is None else known.node
        graph = self.builder.graph
        with paused_recordings(), contextlib.ExitStack() as place:
            if (
                getattr(known.wrapper, known.name) is not tensor
            ):  # a write has put another tensor into the wrapper since
                inputs = graph.find_nodes(op="placeholder")
                place.enter_context(graph.inserting_after(inputs[-1] if owner in inputs else owner))
            node = self.builder.call(getattr, (owner, known.name), {}, name=known.name)
            self.builder.describe(node, tensor)
            self.track(tensor, node)
        return node

    def _decompose(self, func: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """Run the decomposition table's rule or the op's composite kernel, recording its ops; NotImplemented if there is none."""
        rule = self.options.decompositions.get(func)
        if rule is not None:
            if self._kernels is not None and not self._has_values and _written_arguments(func):
                check_mutations(func, args, kwargs)  # a rule has no checks of overlapping memory
            if updates_overlapping_elements(func, args, kwargs) or reads_what_it_writes(func, args, kwargs):
                result = NotImplemented  # a rule computes all elements before it writes the first
            else:
                result = self._run_in_place_of(func, rule, args, kwargs)
            if result is not NotImplemented:
                if isinstance(func, OpOverload):
                    _check_structure(func, rule, result)
                if self.on_decomposed is not None:
                    self.on_decomposed(func, args, kwargs, result)
                return result
        if (
            func not in _METADATA_QUERIES
            and isinstance(func, OpOverload)
            and (not self.options.pre_dispatch or (self.options.decomposes_aliases and may_share_memory(func)))
            and _is_decomposed_by_autograd(func, frozenset(device_of(tensor).type for tensor in tensors))
        ):
            return self._run_in_place_of(func, functools.partial(run_composite_kernel, func), (args, kwargs), {})
        return NotImplemented

    def _run_in_place_of(self, func: Any, rule: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Run `rule` for the op and record the ops that it calls."""
        around = self.decomposed
        self.decomposed = func if around is None else around
        try:
            with self.recorded_again():
                return rule(*args, **kwargs)
        finally:
            self.decomposed = around

    def _may_read(self, func: Any, tensors: list[torch.Tensor]) -> bool:
        """Whether an op with a Python value as result (`item`) is recorded: the value is symbolic, or may become a constant."""
        if self._are_known(tensors):
            return False
        return not self.options.error_on_data_dependent_ops or any(isinstance(t, FakeTensor) for t in tensors)

    def _record(self, func: Any, tensors: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        # A literal (torch.tensor(3)) is copied in each run of the graph: in-place ops on it must not change the stored attribute.
        # A graph that is traced again, as the backward of a branch is, has the copy: its literals are not captured either.
        if func in _LIFTS_LITERAL:
            func = torch.ops.aten.lift_fresh_copy.default
        elif self.on_captured is not None:
            for tensor in tensors:
                if not self.can_find(tensor):
                    self.on_captured(tensor)
        if self.on_moved is not None:
            self.check_memory(tensors)
        self.operands = tensors
        node = self.builder.call(func, self.node_of(args), self.node_of(kwargs))
        if self.outer is not None and self.fake_mode is None:
            self._keep_overwritten(func, args, kwargs)
        try:
            result = self._run(func, args, kwargs, tensors)
        except Exception:
            self.builder.graph.erase_node(node)  # the program may catch the error and go on
            raise
        for tensor in tensors:
            if type(tensor) is not FakeTensor and self.inside.is_known(tensor):
                self.inside.settle(tensor)
        self.bind_fresh_symbols(result, node)
        constant = None
        if func is torch.ops.aten.lift_fresh_copy.default and self.tracker.find(args[0]) is None:
            constant = self._constants.of_literal(args[0])
        elif func is torch.ops.aten.scalar_tensor.default or (func is torch.ops.aten.full.default and self.decomposed):
            constant = self._constants.of_number(func, args, kwargs)
        elif self._are_known(tensors) and any(self.tracker.find(t) is not None for t in tensors):
            known_args, known_kwargs = self._with_known_values((args, kwargs))
            constant = self._constants.compute(func, known_args, known_kwargs, result)
        self._note_writes(func, args, kwargs, is_known=constant is not None)
        self.track_result(result, node, constant)
        return result

    def _run(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        try:
            if self._kernels is None or self._has_values:
                return func(*args, **kwargs)
            if _written_arguments(func):
                check_mutations(func, args, kwargs)
            result = known_result(func, args, kwargs)
            if result is not NotImplemented:
                return self._kernels.with_eager_strides(func, args, kwargs, result)
            return self._kernels.run(func, args, kwargs, list(tensors), self.tracker)
        except DataDependentOutputException as error:
            raise DataDependentFakeRead(func) from error
        except DynamicOutputShapeException as error:
            raise DynamicShapeInTrace(func) from error
        except _ERRORS_OF_FAKES as error:
            if type(error) not in _ERRORS_OF_FAKES:  # ours, or upstream's about symbols
                raise
            expected = eager_error(func, args, kwargs)
            if expected is None:
                raise
            raise expected from error

    def _keep_overwritten(self, func: Any, args: Any, kwargs: Any) -> None:
        for position, name in _written_arguments(func):
            tensors: list[torch.Tensor] = []
            append_tensors(args[position] if position < len(args) else kwargs.get(name), tensors)
            for tensor in tensors:
                if tensor.layout is torch.strided and storage_key(tensor) not in self._overwritten:
                    storage = tensor.untyped_storage()
                    self._overwritten[storage_key(tensor)] = storage, storage.clone()

    def restore_overwritten(self) -> None:
        """Give back to real tensors what they held before this trace of a function, which the operator runs again."""
        with paused_recordings():
            for storage, before in self._overwritten.values():
                if storage.nbytes() == before.nbytes():
                    storage.copy_(before)

    def _are_known(self, tensors: list[torch.Tensor]) -> bool:
        """Whether all tensors are constants. A real tensor that no traced op made or mutated cannot depend on the inputs."""
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
            tensors: list[torch.Tensor] = []
            append_tensors(written, tensors)
            for tensor in tensors:
                tracked = self.tracker.find(tensor)
                if tracked is None:  # tracked from now on: its value may now depend on the inputs
                    self.track(tensor, self.builder.constant(tensor))
                    continue
                if not is_known:
                    self._constants.forget(tracked)
                if tracked.memory is not None and tracked.memory != _memory_of(tensor):  # a resized `out=` tensor
                    self.track(tensor, tracked.node, constant=tracked.constant)

    def track_result(self, result: Any, node: torch.fx.Node, constant: Any = None) -> None:
        """Write the node's meta and track an op's result; elements of lists, tuples and dicts get getitem nodes."""
        self.builder.describe(node, result)
        if isinstance(result, (torch.Tensor, *SYMBOLIC_TYPES)):
            self.track(result, node, constant=constant)
        elif isinstance(result, (list, tuple)):
            for index, item in enumerate(result):
                item_node = self.builder.getitem(node, index, item)
                self.track_result(item, item_node, None if constant is None else constant[index])
        elif isinstance(result, dict):
            for key, item in result.items():
                self.track_result(item, self.builder.getitem(node, key, item))
        else:
            self.track(result, node)


def _no_trace(function: Callable[..., Any], operands: tuple[Any, ...], **options: Any) -> Subgraph:
    raise NoTraceRunning(f"an operator on the function {function!r}")


def paused_recordings() -> contextlib.AbstractContextManager[None]:
    """A block in which no active recording mode records: for ops of the tracer that are not ops of the program."""
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
def _writes_lists(func: OpOverload) -> bool:
    return func.name().startswith("aten::_foreach_") and func._schema.is_mutable


def _count_writes(func: OpOverload, args: Any) -> None:
    """Bump the versions of tensors that a mutating `_foreach_` op writes to.

    In eager the op that it calls on each tensor does so, but a mode does not see that op. Autograd rebuilds the history of a
    mutated view only if its version has changed.
    """
    for position, _ in _written_arguments(func):
        if position < len(args):
            torch.autograd.graph.increment_version([t for t in args[position] if not t.is_inference()])


def _memory_of(tensor: torch.Tensor) -> Hashable:
    """A fake tensor's storage, with sizes, strides and offset if all are ints. None for a tensor without strides."""
    if type(tensor) is not FakeTensor or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    place = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    is_known = set(map(type, place)) <= {int}
    return storage_key(tensor), place if is_known else None


_is_decomposed_by_autograd = functools.cache(is_decomposed_by_autograd)


def _check_structure(func: OpOverload, rule: object, result: object) -> None:
    """Raises BadDecomposition if the rule's result does not have the structure of the op's schema."""
    returns = func._schema.returns
    if len(returns) == 1 and str(returns[0].type) == "Tensor":
        if not isinstance(result, torch.Tensor):
            raise BadDecomposition(func, rule, seen=f"a {type(result).__name__}", expected="a Tensor")
    elif len(returns) > 1 and (not isinstance(result, (tuple, list)) or len(result) != len(returns)):
        seen = f"a {type(result).__name__}" + (f" of {len(result)}" if isinstance(result, (tuple, list)) else "")
        raise BadDecomposition(func, rule, seen=seen, expected=f"a tuple of {len(returns)}")


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    return written_arguments(func) if isinstance(func, OpOverload) else ()


# Composite ops that may alias an argument although their schemas have no alias annotations. Whether they do depends on the call
# (dropout does if `train` is False), so no single run of a kernel tells.
_UNANNOTATED = frozenset(
    {
        "_batch_norm_impl_index", "alpha_dropout", "alpha_dropout_", "atleast_1d", "atleast_2d", "atleast_3d", "batch_norm",
        "broadcast_tensors", "cartesian_prod", "combinations", "conj_physical", "dropout", "einsum", "feature_alpha_dropout",
        "feature_dropout", "instance_norm", "meshgrid", "pad", "type_as", "unsafe_chunk",
    }
)  # fmt: skip


@functools.cache
def may_share_memory(func: OpOverload) -> bool:
    """Whether a result of a composite op may alias an argument, or an argument may be mutated; functionalization decomposes it.

    Counterpart: FunctionalTensor.maybe_aliasing_or_mutating_ops and _should_decompose_because_unsafe_op in torch/_subclasses
    Differs: knows more ops whose schemas do not say so: einsum, meshgrid, type_as and others.
    """
    schema = func._schema
    if schema.name.removeprefix("aten::") in _UNANNOTATED:
        return True
    return schema.is_mutable or any(argument.alias_info is not None for argument in schema.arguments)
