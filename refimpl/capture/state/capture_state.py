"""CaptureState: the graph, the guards and the values of the program's objects, while one segment is captured.

Counterpart: torch/_dynamo/output_graph.py OutputGraph; torch/_dynamo/variables/builder.py VariableBuilder
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import torch

from refimpl._torch import (
    FakeTensor,
    FakeTensorMode,
    active_fake_mode,
    dispatch_modes_on,
    function_mode_at,
    function_modes_on,
    guarded_facts,
    has_oblivious_sizes,
    is_any_autocast_enabled,
    is_exporting,
    is_graph_object,
    is_opaque_literal,
    is_traceable_wrapper_subclass,
    is_wrapped_kernel,
    outside_of_transforms,
    overrides_are_off,
    restore_transforms,
    set_determinism,
    set_grad_enabled,
    transform_depth,
    transform_state,
)
from refimpl.aot.analysis.fake_arguments import unrelated_alias, with_history
from refimpl.capture.breaks import BREAK_SETTING, GraphBreak, UserLine
from refimpl.capture.config import config
from refimpl.capture.guards.guard_list import Guard, GuardKind, GuardList, ShapeFacts, TensorFacts, WrapperFacts
from refimpl.capture.guards.size_history import SizeHistory
from refimpl.capture.guards.sources import (
    ArrayTensorSource,
    AttributeSource,
    BehindProxySource,
    CellSource,
    DimensionSource,
    Draws,
    FactsSource,
    FloatTensorSource,
    ItemSource,
    KeptSource,
    ModeSource,
    PlainAttributeSource,
    PlainItemsSource,
    PlainMappingSource,
    RestSource,
    Source,
    float_tensor,
    plain_items,
)
from refimpl.capture.guards.static_shapes import tensor_always_has_static_shape
from refimpl.capture.guards.torch_state import ModesAtTheEnd, autocast_state, determinism, torch_state
from refimpl.capture.public import marks
from refimpl.capture.public.marks import DYNAMIC, STRICTLY_UNBACKED
from refimpl.capture.public.numpy_interop import is_tensor_like, tensor_of_numpy
from refimpl.capture.recognition import Treatment, defined_in, treatment
from refimpl.capture.state.found_containers import (
    deque_of_program,
    dict_of_program,
    iterator_of_program,
    modules_of_program,
    partial_of_program,
    set_of_program,
    slice_of_program,
)
from refimpl.capture.state.graph import SegmentGraph
from refimpl.capture.state.node_meta import NodeMeta
from refimpl.capture.state.operator_calls import OperatorState, is_symbolic
from refimpl.capture.state.overrides import OverrideState, off_now
from refimpl.capture.state.side_effects import SideEffects
from refimpl.capture.values import (
    ArrayValue,
    CellValue,
    ConstantValue,
    DictValue,
    FoundIteratorValue,
    GraphObjectValue,
    LazyValue,
    LocalFunctionValue,
    MappingProxyValue,
    MethodValue,
    NumberValue,
    ObjectValue,
    OwnAttributesValue,
    RegionValue,
    SequenceValue,
    SubclassTensorValue,
    TensorValue,
    Value,
)
from refimpl.capture.values.classes import finds_plainly, is_a, is_named_tuple, own_attributes
from refimpl.capture.values.hashing import CONSTANT_TYPES
from refimpl.capture.values.program_object import InsideDictValue, InsideValue, sequence_base
from refimpl.capture.values.subclass_tensor import is_known_subclass, ragged_part
from refimpl.capture.values.triton_kernel import KernelValue
from refimpl.capture.values.value import unsupported
from refimpl.errors import UnsupportedByRefimpl
from refimpl.symbolic.constraints import check_strictly_unbacked
from refimpl.symbolic.dynamic_shapes import DimSpec, InputPolicy
from refimpl.symbolic.fake_inputs import InputFaker, rows_of, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.sources import Source as SymbolSource
from refimpl.trace.fake_kernels import EagerLayoutsMode
from refimpl.trace.triton_kernels import is_kernel

_ITERATORS = tuple(type(iter(found)) for found in ([], (), range(0)))
STATIC = InputPolicy({})
_EXCLUDED = "_torchdynamo_disable"  # the attribute by which `disable` marks a function
_BY_IDENTITY = (
    Enum, FunctionType, type, ModuleType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType,
    GetSetDescriptorType,
)  # fmt: skip


class CaptureState(OperatorState):
    """The state of one attempt to capture a segment."""

    def __init__(self, line: Callable[[], UserLine | None], sizes: SizeHistory, *, reads_data: bool = False) -> None:
        self._sizes = sizes
        self.symbols: dict[Any, NumberValue] = {}  # input symbol -> the number
        self._floats: dict[Source, NumberValue] = {}  # the floats that are symbols
        self._symbolic_inputs: list[tuple[Any, Source]] = []
        self._strictly_unbacked: list[tuple[Any, str]] = []  # sizes that must not become numbers, with their names
        self.notes = NodeMeta()
        self.graph = SegmentGraph(self.notes)
        self.guards = GuardList()
        self.is_whole = reads_data  # a graph break is an error
        # whether a number read out of a tensor becomes an unbacked symbol
        self.reads_data = config.capture_scalar_outputs or reads_data
        self.shape_env = ShapeEnv(
            names_symbols_by_source=True, backed_size_oblivious=has_oblivious_sizes(),
            assume_static_by_default=True, allow_scalar_outputs=self.reads_data,
            allow_dynamic_output_shape_ops=config.capture_dynamic_output_shape_ops,
            prefer_deferred_runtime_asserts_over_guards=sizes.prefers_assertions,
        )  # fmt: skip
        self.fake_mode: FakeTensorMode = symbolic_fake_mode(self.shape_env)
        self.layouts = EagerLayoutsMode(self.fake_mode)
        takes_fakes = sizes.takes_fakes or active_fake_mode() is not None
        self.faker = InputFaker(self.fake_mode, self.shape_env, takes_fakes=takes_fakes, takes_overriding=True)
        # so that a backend's `to_fake_tensor` gives an input these symbols
        self.shape_env.fakers[id(self.fake_mode)] = self.faker
        self.effects = SideEffects()
        self.entered: dict[Any, None] = {}  # code of the inlined functions
        self._line = line
        self._insides: dict[ObjectValue, InsideDictValue | InsideValue] = {}
        self._known: dict[int, Value] = {}  # by id of the program's object; `_objects` keeps the objects alive
        self._objects: dict[Value, Any] = {}
        self.by_fake: dict[int, TensorValue] = {}
        self.iterators: list[FoundIteratorValue] = []
        self.array_inputs: list[ArrayValue] = []
        self.writes_arrays = False  # whether the memory of one of the program's arrays is written
        self._keys: dict[Source, None] = {}  # sources of objects that are dict keys by identity
        self._tensors: dict[Source, None] = {}  # sources of distinct tensors, each by the first source it was read from
        self._ragged: dict[int, list[Source]] = {}  # by the tensor of lengths: where jagged inputs have it
        self.overrides = OverrideState(off=off_now())
        self.hides_overrides = False  # whether the graph must run without `__torch_function__`
        self.inference_mode = torch.is_inference_mode_enabled()
        self.grad_mode = torch.is_grad_enabled()  # at the entry; the current mode is torch's own state
        self.determinism = determinism()  # at the entry
        self.backward_of: tuple[type, ...] = ()  # classes of the autograd Functions whose backward is interpreted now
        self.runs_at_many_levels = False  # whether what is interpreted now is a method that several transforms call
        self.draws: Draws | None = None  # calls of Python's random
        self.passes_breaks = False  # whether `torch._dynamo.graph_break` is ignored
        self.open_regions: list[tuple[Any, int]] = []  # with the position where each was entered
        self.transforms = transform_state()  # at the entry; none of torch.func is active
        self.transforms_at: int | None = None  # the position where the outermost active transform was entered
        self.position, self.behind = (lambda: 0), (lambda position: None)
        self.written_at = 0
        self.writes = {}
        self.read_numbers = set()
        self.stops: frozenset[int] = frozenset()  # positions where earlier attempts found that the segment has to end
        self._autocast = autocast_state()  # at the entry
        self.guard(GuardKind.STATE, KeptSource(torch_state, "torch_state"), torch_state())
        if is_any_autocast_enabled():
            self.guard_autocast()
        self._find_modes()

    def _find_modes(self) -> None:
        """The function modes that are on at the entry. Their `__torch_function__` is interpreted."""
        count = function_modes_on()
        if count and not overrides_are_off():
            self.hides_overrides = True
            self.guard(GuardKind.MODES, KeptSource(function_modes_on, "function_modes_on"), count)
            self.overrides.begin([self.wrap(function_mode_at(index), ModeSource(index)) for index in range(count)])

    def release(self) -> None:
        """Releases the program's objects. A segment needs only its guards, graph and constants."""
        self._line = lambda: None
        self.position, self.behind = (lambda: 0), (lambda position: None)
        for region, _ in reversed(self.open_regions):
            region.exit(region.context)
        self.open_regions.clear()
        if self.transforms_at is not None:
            restore_transforms(self.transforms)
        self.graph.fake_inputs = lambda sources, examples: None
        self.graph.examples.clear()
        self.graph.region_calls.clear()
        if not is_exporting():  # strict export traces the graph again with the same fakes
            self.faker.forget()
        self._known.clear()
        self._insides.clear()
        self._ragged.clear()
        self._objects.clear()
        self.symbols.clear()
        self._floats.clear()
        self.iterators.clear()
        self.by_fake.clear()
        self.read_numbers.clear()
        self.notes.release()

    # ------------------------------------------------------------------------------------------------------------ guards

    def guard(self, kind: GuardKind, source: Source, seen: Any = None) -> None:
        self.guards.add(Guard(kind, source, seen, self._line()))

    def guard_autocast(self) -> None:
        """Adds a guard on autocast: it is on, or the program reads its state."""
        self.guard(GuardKind.AUTOCAST, KeptSource(autocast_state, "autocast_state"), self._autocast)

    # ---------------------------------------------------------------------------------------------------------- wrapping

    def wrap(self, found: Any, source: Source) -> Value:
        """The value of an object of the program, with the guards that its kind needs."""
        known = self._known.get(id(found))
        if known is not None and not isinstance(known, ConstantValue):
            if known.source != source:
                self._guard_same(known, found, source)
            return known
        made = self._wrapped(found, source)
        if type(found) is float:  # two variables with the same float may have different ones in the next call
            return made
        self._known[id(found)] = made
        self._objects[made] = found
        return made

    def _guard_same(self, known: Value, found: Any, source: Source) -> None:
        """Guards that two sources lead to the same object. An object guarded by identity gets one guard for each source."""
        if is_a(found, _BY_IDENTITY) and not isinstance(known, LocalFunctionValue):
            self.guard(GuardKind.ID, source, found)
        else:
            assert known.source is not None
            self.guard(GuardKind.SAME, source, known.source)

    def _wrapped(self, found: Any, source: Source) -> Value:
        class_ = type(found)
        if class_ is int and self._sizes.is_varying(source, found):
            return self._number(found, source)
        builder = _BUILDERS.get(id(class_))
        made = None if builder is None else builder(self, found, source)
        if made is not None:
            return made
        if is_a(found, torch.Tensor):
            return self._tensor(found, source)
        if is_a(found, np.generic):
            return self._array(found, source)
        if is_graph_object(found):
            return self._graph_object(found, source)
        if is_a(found, _BY_IDENTITY):
            self.guard(GuardKind.ID, source, found)
            return ObjectValue(found, source)
        if is_a(found, tuple) and is_named_tuple(type(found)):
            return self._sequence(found, source)
        if is_kernel(found) or is_wrapped_kernel(found):
            self.guard(GuardKind.ID, source, found)
            return KernelValue(found, source)
        self.guard(GuardKind.TYPE, source, type(found))
        return ObjectValue(found, source)

    def _constant(self, found: Any, source: Source) -> Value:
        self.guard(GuardKind.EQUALS, source, found)
        return ConstantValue(found, source)

    def _function(self, found: FunctionType, source: Source) -> Value | None:
        """A function that another function made; None for one that is known by identity."""
        if (
            "<locals>" in found.__qualname__
            and found.__dict__.get(_EXCLUDED) is True
            and treatment(found) is Treatment.SKIP
        ):
            self.guard(GuardKind.TYPE, source, FunctionType)
            self.guard(GuardKind.ID, AttributeSource(source, "__code__"), found.__code__)
            self.guard(GuardKind.EQUALS, ItemSource(AttributeSource(source, "__dict__"), _EXCLUDED), True)
            return LocalFunctionValue(found, source)
        if "<locals>" not in found.__qualname__ or found.__dict__ or treatment(found) is not Treatment.ENTER:
            return None
        if id(found) in marks.SUBSTITUTED or defined_in(found).partition(".")[0] == "torch":
            return None  # there may be a rule for this function
        self.guard(GuardKind.TYPE, source, FunctionType)
        for name in ("__code__", "__globals__"):
            self.guard(GuardKind.ID, AttributeSource(source, name), getattr(found, name))
        self.guard(GuardKind.EMPTY, AttributeSource(source, "__dict__"), None)
        return LocalFunctionValue(found, source)

    def _graph_object(self, found: Any, source: Source) -> Value:
        """A script object or an opaque object. Its class, and what capture assumes of its contents, are guarded."""
        if is_opaque_literal(found):
            self.guard(GuardKind.EQUALS, source, found)
        else:
            self.guard(GuardKind.TYPE, source, type(found))
        facts = guarded_facts(found)
        if facts is not None:
            self.guard(GuardKind.EQUALS, FactsSource(source, facts), facts(found))
        return GraphObjectValue(found, source)

    def _code(self, found: CodeType, source: Source) -> Value:
        self.guard(GuardKind.ID, source, found)
        return ConstantValue(found, source)

    def _cell(self, found: CellType, source: Source) -> Value:
        return CellValue(source=source, content=None)

    def _mapping_proxy(self, found: MappingProxyType[Any, Any], source: Source) -> Value | None:
        (behind,) = gc.get_referents(found)
        inside = (
            dict_of_program(self, dict(found), PlainMappingSource(source))
            if type(behind) in (dict, OrderedDict)
            else None
        )
        if not isinstance(inside, DictValue):
            return None
        self.guard(GuardKind.TYPE, source, MappingProxyType)
        self.guard(GuardKind.TYPE, BehindProxySource(source), type(behind))

        def refuse_changes() -> None:
            classes = (value for value, _, _ in self.effects.attributes() if isinstance(value, ObjectValue))
            is_changed = self.changed_dict(behind) is not None
            if is_changed or any(value.is_class for value in classes):
                raise GraphBreak("unsupported_operation", what="a view of a dict that has changed", kind="mappingproxy")

        return MappingProxyValue(inside.items, source, refuse_changes, type(behind))

    def _tensor(self, found: torch.Tensor, source: Source) -> Value:
        is_plain = type(found) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        is_plain |= type(found) is FakeTensor and self._takes_fake(found)
        is_subclass = not is_plain and is_known_subclass(found)
        if not (is_plain or is_subclass) or (
            found.is_nested and not is_subclass
        ):  # reading the sizes of a nested tensor raises
            self.guard(GuardKind.TYPE, source, type(found))
            return ObjectValue(found, source)
        is_hidden = is_subclass or bool(self.overrides.modes)
        policy = STATIC if is_hidden else self._sizes.policy(source, found)
        try:
            with self._modes_at_entry():
                if found.is_nested:
                    self._fake_rows(found, source)
                fake = self.faker.tensor(found, source, policy=policy)
        except UnsupportedByRefimpl:
            self.guard(GuardKind.TYPE, source, type(found))
            return ObjectValue(found, source)
        self.guard(GuardKind.TENSOR, source, TensorFacts.of(found, fake, is_hidden=is_hidden))
        if is_subclass:
            return self._subclass(found, fake, source)
        if not tensor_always_has_static_shape(found, True, source)[0]:
            dynamic = (dim for dim, size in enumerate(fake.shape) if isinstance(size, torch.SymInt))
            self.guard(GuardKind.MARKS, source, frozenset([*dynamic, *getattr(found, DYNAMIC, ())]))
        if is_symbolic(fake):
            self._symbolic_inputs.append((self._kept_geometry(fake), source))
            sizes: list[Any] = list(fake.shape)
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    number = NumberValue(size, None, DimensionSource(source, "size", dim))
                    self.symbols.setdefault(size.node.expr, number)
        for dim in getattr(found, STRICTLY_UNBACKED, ()):
            self._strictly_unbacked.append((fake.shape[dim], f"{source.name}.size()[{dim}]"))
        self._tensors[source] = None
        value = TensorValue(self.graph.input(source, fake, found), fake, source)
        self.by_fake[id(fake)] = value
        return value

    def _takes_fake(self, found: FakeTensor) -> bool:
        """Whether a fake tensor is captured like other tensors: where that is asked for, and within the fake's own mode, in
        which the graph will run. Symbolic sizes belong to another shape env.
        """
        return self._sizes.takes_fakes or (active_fake_mode() is found.fake_mode and not is_symbolic(found))

    def _subclass(self, found: torch.Tensor, fake: torch.Tensor, source: Source) -> Value:
        """A tensor of a class of the program."""
        if is_traceable_wrapper_subclass(found):
            self.guard(GuardKind.WRAPPER, source, WrapperFacts.of(found, fake))
        if found.is_nested:
            name = ragged_part(found)
            self._ragged.setdefault(id(getattr(found, name)), []).append(AttributeSource(source, name))
        self._tensors[source] = None
        self.hides_overrides = True
        value = SubclassTensorValue(self.graph.input(source, fake, found), fake, type(found), source)
        self.by_fake[id(fake)] = value
        return value

    def _fake_rows(self, jagged: Any, source: Source) -> None:
        """Makes the fakes of the parts of a jagged tensor whose sizes follow from its rows, and may vary between calls."""
        for name, dim in rows_of(jagged).items():
            part, way = getattr(jagged, name), AttributeSource(source, name)
            spec = self._sizes.policy(way, part).dims[dim]
            if spec.policy == "DYNAMIC":  # torch's own mark: a length of 1 is a number all the same
                spec = DimSpec("DUCK")
            fake = self.faker.tensor(part, way, policy=InputPolicy({dim: spec}, default="STATIC"))
            if is_symbolic(fake):
                self._symbolic_inputs.append((self._kept_geometry(fake), way))

    def _array(self, found: Any, source: Source) -> Value:
        """A numpy array or scalar. The graph takes it as a tensor."""
        self.guard(GuardKind.TYPE, source, type(found))
        is_scalar = type(found) is not np.ndarray
        if not is_tensor_like(found) or (self.writes_arrays and not is_scalar):
            return ObjectValue(found, source)
        if not is_scalar:
            self.guard(GuardKind.EQUALS, AttributeSource(AttributeSource(source, "flags"), "writeable"), True)
        tensor = self._tensor(tensor_of_numpy(found), ArrayTensorSource(source))
        assert isinstance(tensor, TensorValue)
        made = ArrayValue(tensor.node, tensor.fake, source, is_scalar=is_scalar)
        self.array_inputs.append(made)
        return made

    @property
    def has_floats(self) -> bool:
        """Whether a float is a symbol."""
        return bool(self._floats)

    def _is_symbolic_float(self, found: float, source: Source) -> bool:
        """Whether a float is a symbol: it changed between calls, and is one whose arithmetic the shape env models. Equality says
        nothing of the sign of zero.

        In an inner graph, in a transform, and where a mode answers calls, it is a constant: the graph's input is a tensor.
        """
        if not self._sizes.is_varying_float(source, found) or not math.isfinite(found):
            return False
        is_plain = type(self.graph) is SegmentGraph and not transform_depth() and not is_exporting()
        has_modes = bool(function_modes_on() or dispatch_modes_on() or self.overrides.modes)
        return is_plain and not has_modes and (found != 0 or math.copysign(1, found) > 0)

    def _float(self, found: float, source: Source) -> Value:
        """A float. The graph takes one that is a symbol as a tensor and reads that, so its operators get a Python number."""
        known = self._floats.get(source)
        if known is not None:
            return known
        if not self._is_symbolic_float(found, source):
            return self._constant(found, source)
        self.guard(GuardKind.FINITE, source)
        symbol = self.shape_env.create_unspecified_symbol(found, source.name)
        number = self.shape_env.create_symfloatnode(symbol, hint=found)
        self._symbolic_inputs.append((number, source))
        way, real = FloatTensorSource(source), float_tensor(found)
        with self._modes_at_entry():
            fake = self.faker.number(real, number)
        tensor = self.graph.input(way, fake, real)
        node = self.graph.call("call_method", "item", (tensor,), {}, number)
        self.read_numbers.add(node)
        made = self._floats[source] = NumberValue(number, node, source)
        return made

    def _number(self, found: int, source: Source) -> Value:
        """An integer that is a symbol, because it changed between calls or is marked."""
        said = self._sizes.promise(source)
        if said is None:
            # Also 0 and 1 are symbols here: `is_varying` leaves them out, unless a setting names them.
            expr = self.shape_env.create_unspecified_symbol(found, source.name, "DYNAMIC")
            symbolic: Any = self.shape_env.create_symintnode(expr, hint=found)
        else:
            place = SymbolSource(source.name, source.name)
            symbolic = self.shape_env.create_symintnode(self.shape_env.create_dim(found, place, said), hint=found)
        if type(symbolic) is int:
            self.guard(GuardKind.EQUALS, source, found)
            return ConstantValue(found, source)
        self.guard(GuardKind.TYPE, source, int)
        self._symbolic_inputs.append((symbolic, source))
        known = self.symbols.get(symbolic.node.expr)
        return known or self.symbols.setdefault(symbolic.node.expr, NumberValue(symbolic, None, source))

    def _kept_geometry(self, fake: torch.Tensor) -> torch.Tensor:
        """A copy of the fake with its sizes at the entry: a later method may resize the fake itself."""
        with self._modes_at_entry():
            alias = unrelated_alias(fake).requires_grad_(fake.requires_grad)
            if fake.is_leaf:
                return alias
            with torch.enable_grad():
                return with_history(alias)

    @contextlib.contextmanager
    def _modes_at_entry(self) -> Iterator[None]:
        """The modes that were active at the entry, so that an input looks the same wherever it is first used."""
        with contextlib.ExitStack() as stack:
            if torch.is_inference_mode_enabled() is not self.inference_mode:
                stack.enter_context(torch.inference_mode(self.inference_mode))
            stack.enter_context(torch.set_grad_enabled(self.grad_mode))
            if self.transforms_at is not None:
                stack.enter_context(outside_of_transforms())
            yield

    def note_key(self, value: ObjectValue) -> None:
        """Notes an object that is a dict key by identity. At the end, one guard says that these objects are distinct."""
        self._keys[KeptSource(value.object, "key") if value.source is None else value.source] = None

    def is_first_of_its_fake(self, value: TensorValue) -> bool:
        """Whether no other value can be the same tensor."""
        return self.by_fake.get(id(value.fake)) is value

    def guard_shapes(self) -> None:
        """Adds the guards that are known only at the end: distinct objects, lengths of iterators, relations between symbols."""
        for sources in ({**self._tensors, **self._guard_ragged()}, self._keys):
            if len(sources) > 1:
                first, *others = sources
                self.guard(GuardKind.ALL_DISTINCT, first, tuple(others))
        self._guard_changed()
        sizes = [(s if type(s) is int else self.shape_env.replace(s.node.expr), n) for s, n in self._strictly_unbacked]
        check_strictly_unbacked(sizes)
        for iterator in self.iterators:
            assert iterator.source is not None
            kind = GuardKind.LENGTH if iterator.is_exhausted else GuardKind.AT_LEAST
            self.guard(kind, RestSource(iterator.source), iterator.position)
        self.graph.fake_inputs = self._fake_inputs
        if self._symbolic_inputs:
            first = self._symbolic_inputs[0][1]
            self.guard(GuardKind.SHAPES, first, ShapeFacts(self.shape_env, tuple(self._symbolic_inputs)))

    def _guard_ragged(self) -> dict[Source, None]:
        """Guards which jagged inputs have the same ragged dimension: those whose lengths are one tensor object.

        Returns where these objects are, each once, without those that are inputs by themselves.
        """
        found: dict[Source, None] = {}
        for key, sources in self._ragged.items():
            known = self._known.get(key)
            if isinstance(known, TensorValue) and known.source is not None:
                first, others = known.source, sources
            else:
                first, *others = sources
                found[first] = None
            for other in others:
                self.guard(GuardKind.SAME, other, first)
        return found

    def _guard_changed(self) -> None:
        """Guards that an object that the segment changes is none of the others of its class: what was read of those stays."""
        changed = [value for value in (*self.effects.changed_objects(), *self.iterators) if value in self._objects]
        # by id: hashing a class may call a metaclass
        by_class: dict[int, list[Source]] = {id(type(self._objects[value])): [] for value in changed}
        for value, found in self._objects.items() if changed else ():
            if value.source is not None and id(type(found)) in by_class:
                by_class[id(type(found))].append(value.source)
        for sources in by_class.values():
            if len(sources) > 1:
                first, *others = sources
                self.guard(GuardKind.ALL_DISTINCT, first, tuple(others))

    def _fake_inputs(self, sources: Sequence[Source], examples: Sequence[Any]) -> list[Any] | None:
        """The graph's inputs as they were at the entry, with the symbols of its nodes; None without symbols."""
        if not self._symbolic_inputs:
            return None
        known = {source: value for value, source in self._symbolic_inputs}
        known |= {number.source: number.number for number in self.symbols.values() if number.source is not None}
        floats: dict[Source, Any] = {
            FloatTensorSource(source): number.number for source, number in self._floats.items()
        }
        made = []
        for source, example in zip(sources, examples, strict=True):
            value = known.get(source)
            if source in floats:
                value = self.faker.number(example, floats[source])
            elif value is None:
                value = example if is_graph_object(example) else self.faker.again(example, source)
            made.append(value)
        return made

    def _sequence(self, found: Any, source: Source) -> Value:
        self.guard(GuardKind.TYPE, source, type(found))
        self.guard(GuardKind.LENGTH, source, len(found))
        items: list[Value] = [LazyValue(item, ItemSource(source, index)) for index, item in enumerate(found)]
        return SequenceValue(type(found), items, source)

    def items_of(self, value: ObjectValue) -> DictValue | SequenceValue:
        """The items, at the entry, of an object whose class derives from dict, list or tuple."""
        assert value.source is not None
        known = self._insides.get(value)
        if known is None:
            known = self._insides[value] = self._inside(value, PlainItemsSource(value.source))
            self._objects[known] = value.object
        return known

    def _inside(self, value: ObjectValue, source: Source) -> InsideDictValue | InsideValue:
        base, found = sequence_base(type(value.object)), plain_items(value.object)
        if base is None:
            made = dict_of_program(self, found, source)
            return (
                InsideDictValue(made.items, made.class_, value)
                if isinstance(made, DictValue)
                else unsupported("a key", value)
            )
        self.guard(GuardKind.LENGTH, source, len(found))
        items: list[Any] = [LazyValue(item, ItemSource(source, index)) for index, item in enumerate(found)]
        return InsideValue(base, items, value)

    def attributes_of(self, value: ObjectValue) -> DictValue:
        """The `__dict__` of an object, as it is after the writes that were captured so far."""
        assert value.source is not None
        kind = AttributeSource if finds_plainly(type(value.object)) else PlainAttributeSource
        source, found = kind(value.source, "__dict__"), object.__getattribute__(value.object, "__dict__")
        if self.reaches(found):  # by a variable, say
            known = self.wrap(found, source)
            return known if isinstance(known, DictValue) else unsupported("a key of the dict", value)
        made = self._known[id(found)] = self._attributes_at_entry(value, source, found)
        self._objects[made] = found
        return made

    def reaches(self, found: dict[str, Any]) -> bool:
        """Whether the segment has a value for the dict of an object's attributes."""
        return id(found) in self._known

    def reaches_otherwise(self, value: ObjectValue) -> bool:
        """Whether the segment has a value for the dict of an object's attributes that does not see what is written to them."""
        known = self._known.get(id(own_attributes(value.object)))
        return known is not None and not (isinstance(known, OwnAttributesValue) and known.owner is value)

    def _attributes_at_entry(self, value: ObjectValue, source: Source, found: dict[Any, Any]) -> DictValue:
        made = dict_of_program(self, found, source, owner=value)
        if not isinstance(made, DictValue):
            unsupported("a key of the dict", value)
        return OwnAttributesValue(made.items, value, source, lambda: self.effects.attributes_of(value))

    def _method(self, found: MethodType, source: Source) -> Value:
        function = self.wrap(found.__func__, AttributeSource(source, "__func__"))
        made = MethodValue(function, self.wrap(found.__self__, AttributeSource(source, "__self__")))
        made.source = source
        return made

    # ------------------------------------------------------------------------------------------------------- state of torch

    def set_grad_mode(self, is_on: bool) -> None:
        """Sets grad mode for fakes and in the graph. The caller of the capture restores torch's own mode."""
        set_grad_enabled(is_on)
        self.graph.set_state(set_grad_enabled, is_on)

    def set_determinism(self, is_on: bool, only_warns: bool) -> None:
        """Calls torch.use_deterministic_algorithms now, for operators on fakes, and adds the call to the graph."""
        set_determinism(is_on, warn_only=only_warns)
        self.graph.set_state(set_determinism, is_on, warn_only=only_warns)

    @property
    def breaks_are_errors(self) -> bool:
        """What `error_on_graph_break` says at this point of the program."""
        return self._break_setting("is_error")

    @property
    def breaks_nest(self) -> bool:
        """Whether an inlined function in which the graph breaks at this point of the program continues on its own."""
        return bool(config.nested_graph_breaks and self._break_setting("nests"))

    def _break_setting(self, name: str) -> bool:
        """An attribute of the setting, with the changes that the segment has made so far."""
        for value, attribute, new in self.effects.attributes():
            if attribute == name and getattr(value, "object", None) is BREAK_SETTING:
                return bool(self.realize(new).value)
        return getattr(BREAK_SETTING, name)

    def enter_region(self, region: RegionValue) -> Any:
        """Adds a node that enters a region (autocast or inference mode)."""
        self.open_regions.append((region, self.position()))
        return self.graph.set_state(region.enter, *region.args)

    def leave_region(self) -> None:
        """Adds a node that leaves the innermost region."""
        region, _ = self.open_regions.pop()
        context, region.context = region.context, None
        region.exit(context)
        self.graph.set_state(region.exit, region.node)

    def change_transforms(
        self, name: str, setter: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ConstantValue:
        """Calls a function that enters or leaves a transform of torch.func, and adds a node for the call."""
        given = [self.fake_of(arg, name) for arg in args]
        named = {key: self.fake_of(arg, name) for key, arg in kwargs.items()}
        if self.transforms_at is None:
            self.transforms_at = self.position()
        try:
            result = setter(*given, **named)
        except RuntimeError as error:
            raise GraphBreak("op_raises_on_fake", what=name, error=type(error).__name__) from error
        nodes = {key: self.argument_of(arg) for key, arg in kwargs.items()}
        self.graph.set_state(setter, *map(self.argument_of, args), **nodes)
        if transform_state() == self.transforms:
            self.transforms_at = None
        return ConstantValue(result)

    def leave_modes(self) -> ModesAtTheEnd:
        """Restores grad mode and determinism at the end of the graph. Returns what the segment ends with."""
        grad_mode, deterministic = torch.is_grad_enabled(), determinism()
        if grad_mode != self.grad_mode:
            self.set_grad_mode(self.grad_mode)
        if deterministic != self.determinism:
            self.set_determinism(*self.determinism)
        return ModesAtTheEnd(
            grad_mode=None if grad_mode == self.grad_mode else grad_mode,
            determinism=None if deterministic == self.determinism else deterministic,
        )

    # ------------------------------------------------------------------------------------------------------------ metadata

    def storage_offset(self, value: TensorValue) -> Value:
        """The storage offset of an input, with a guard. That of a result depends on its base, and breaks the graph."""
        if value.source is None or value.fake.layout is not torch.strided:
            unsupported("method storage_offset", value)
        found = self.object_of(value).storage_offset()
        self.guard(GuardKind.EQUALS, DimensionSource(value.source, "storage_offset"), found)
        return ConstantValue(found)

    # -------------------------------------------------------------------------------------------------------------- seeing

    def realize(self, value: Any) -> Any:
        """The value itself for a lazy value, which adds its guards; other values unchanged."""
        return self.wrap(value.object, value.source) if type(value) is LazyValue else value

    def object_of(self, value: Value) -> Any:
        """The program's object of a value whose kind has no field for it."""
        return self._objects[value]

    def real_of(self, value: Any) -> Any:
        """The real object of an argument: one of the program, a constant, or a tuple, list or dict of these."""
        value = self.realize(value)
        match value:
            case ConstantValue():
                return value.value
            case ObjectValue():
                return value.object
            case LocalFunctionValue() if value.source is not None:
                self.guard(GuardKind.ID, value.source, value.object)
                return value.object
            case SequenceValue() if value.source is None and value.class_ in (tuple, list, torch.Size):
                return value.class_([self.real_of(item) for item in value.items])
            case DictValue() if value.source is None and value.class_ is dict:
                return {self.real_of(key): self.real_of(item) for key, item in value.items.values()}
            case _:
                if value not in self._objects:
                    unsupported("a call whose result is assumed to be constant", value)
                return self._objects[value]

    def changed_dict(self, found: Any) -> DictValue | None:
        """The value of one of the program's dicts, if the segment has changed the dict."""
        known = self._known.get(id(found))
        return known if isinstance(known, DictValue) and self.effects.is_changed(known) else None

    def content_of(self, cell: CellValue, object_: Any) -> Value:
        """The content of one of the program's closure cells."""
        assert cell.source is not None
        return self.wrap(object_, CellSource(cell.source))


_BUILDERS_BY_CLASS: dict[type, Callable[[CaptureState, Any, Source], Value | None]] = {
    **dict.fromkeys(CONSTANT_TYPES, CaptureState._constant),
    float: CaptureState._float,
    **dict.fromkeys((tuple, list, torch.Size), CaptureState._sequence),
    **dict.fromkeys((OrderedDict, defaultdict), dict_of_program),
    dict: lambda state, found, source: (
        modules_of_program(state, found, source) or dict_of_program(state, found, source)
    ),
    **dict.fromkeys((set, frozenset), set_of_program),
    **dict.fromkeys(_ITERATORS, iterator_of_program),
    np.ndarray: CaptureState._array,
    CodeType: CaptureState._code,
    FunctionType: CaptureState._function,
    slice: slice_of_program,
    deque: deque_of_program,
    functools.partial: partial_of_program,
    MappingProxyType: CaptureState._mapping_proxy,
    MethodType: CaptureState._method,
    CellType: CaptureState._cell,
}
"""How an object of exactly this class becomes a value; None: guarded by its type alone."""
_BUILDERS = {
    id(class_): builder for class_, builder in _BUILDERS_BY_CLASS.items()
}  # hashing a class may call a metaclass
