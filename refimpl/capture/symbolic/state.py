"""What is known while one segment is captured: its graph, guards, and the values of objects that were looked at.

Counterpart: torch/_dynamo/output_graph.py OutputGraph; torch/_dynamo/variables/builder.py VariableBuilder
"""

from __future__ import annotations

import functools
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from types import (
    BuiltinFunctionType,
    CellType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, NoReturn

import torch

from refimpl._torch import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    OpOverload,
    OpOverloadPacket,
    enable_python_dispatcher,
    is_any_autocast_on,
    set_grad_enabled,
    upstream_shape_error,
)
from refimpl.aot.fake_arguments import unrelated_alias
from refimpl.capture.breaks import GraphBreak, UserLine
from refimpl.capture.config import config
from refimpl.capture.dynamic import SizeHistory
from refimpl.capture.graph import SegmentGraph
from refimpl.capture.guards import Guard, GuardKind, GuardList, ShapeFacts, TensorFacts
from refimpl.capture.sources import (
    AttributeSource,
    CellSource,
    DimensionSource,
    ItemSource,
    KeptSource,
    Source,
)
from refimpl.capture.symbolic.classes import is_a, is_named_tuple
from refimpl.capture.symbolic.effects import EffectLog
from refimpl.capture.symbolic.keys import has_own_key, is_constant_key
from refimpl.capture.symbolic.values import (
    CellValue,
    ConstantValue,
    DefaultDictValue,
    DequeValue,
    DictValue,
    ErrorValue,
    MethodValue,
    NumberValue,
    ObjectValue,
    PartialValue,
    RegionValue,
    SequenceValue,
    SetValue,
    SliceValue,
    TensorValue,
    UnreadValue,
    Value,
)
from refimpl.capture.torch_state import autocast_state, torch_state
from refimpl.errors import UnsupportedByRefimpl
from refimpl.symbolic.fake_inputs import InputFaker, fake_int, symbolic_fake_mode
from refimpl.symbolic.shape_env import ShapeEnv

_BINARY_NAMES = (
    "add",
    "and",
    "floordiv",
    "lshift",
    "matmul",
    "mod",
    "mul",
    "or",
    "pow",
    "rshift",
    "sub",
    "truediv",
    "xor",
)
CONSTANT_TYPES: tuple[type, ...] = (
    int, float, bool, str, bytes, complex, type(None), type(...), type(NotImplemented), range, torch.dtype, torch.device,
    torch.layout, torch.memory_format,
)  # fmt: skip
_IN_PLACE_NAMES = frozenset(f"i{name}" for name in _BINARY_NAMES)
_BY_IDENTITY = (Enum, FunctionType, type, ModuleType, BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
_IN_PLACE_OPERATORS = frozenset(id(value) for name, value in vars(operator).items() if name in _IN_PLACE_NAMES)
# In names of functions that write to what they are given, or to the generator, without a word in their schema.
_MORE_THAN_THEIR_VALUE = (
    "batch_norm", "instance_norm", "embedding", "drop", "rand", "rrelu", "bernoulli", "normal", "multinomial", "poisson",
    "binomial", "sample", "gumbel",
)  # fmt: skip
SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
_DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)
_DATA_DEPENDENT = upstream_shape_error("GuardOnDataDependentSymNode")
_LARGE = 2**63  # ints beyond are no arguments of torch's operators


class CaptureState:
    """One for each attempt to capture a segment."""

    def __init__(self, line: Callable[[], UserLine | None], sizes: SizeHistory, *, reads_data: bool = False) -> None:
        self._sizes = sizes
        self._symbols: dict[Any, NumberValue] = {}  # by the symbol, those that an input has
        self._symbolic_inputs: list[tuple[Any, Source]] = []
        self.graph = SegmentGraph()
        self.guards = GuardList()
        self.reads_data = config.capture_scalar_outputs or reads_data  # numbers in tensors are symbols
        self.shape_env = ShapeEnv(
            assume_static_by_default=True, allow_scalar_outputs=self.reads_data,
            allow_dynamic_output_shape_ops=config.capture_dynamic_output_shape_ops,
        )  # fmt: skip
        self.fake_mode: FakeTensorMode = symbolic_fake_mode(self.shape_env)
        self.faker = InputFaker(self.fake_mode, self.shape_env)
        self.effects = EffectLog()
        self.entered: dict[Any, None] = {}  # code of functions that were entered
        self._line = line
        self._known: dict[int, Value] = {}  # by id of an object that was there before; `_objects` keeps them alive
        self._objects: dict[Value, Any] = {}
        self._by_fake: dict[int, TensorValue] = {}
        self._keys: dict[Source, None] = {}  # of objects that are keys by identity
        self.grad_mode = torch.is_grad_enabled()  # at the entry; what it is now is torch's own state
        self.passes_breaks = False  # that the program asks for
        self.open_regions: list[tuple[RegionValue, int]] = []  # with where the segment was when they were entered
        self.offset: Callable[[], int] = lambda: 0  # of the instruction of the first frame that runs
        self.guard(GuardKind.STATE, KeptSource(torch_state, "torch_state"), torch_state())
        if is_any_autocast_on():
            self.guard_autocast()

    def release(self) -> None:
        """Holds nothing of the program any more. What segments need is in guards, graph and constants."""
        self._line = lambda: None
        self.offset = lambda: 0
        for region, _ in reversed(self.open_regions):
            region.exit(region.context)
        self.open_regions.clear()
        self.graph.fake_inputs = lambda sources, examples: None
        self.graph.examples.clear()
        self._known.clear()
        self._objects.clear()
        self._symbols.clear()
        self._by_fake.clear()

    # ------------------------------------------------------------------------------------------------------------ guards

    def guard(self, kind: GuardKind, source: Source, seen: Any = None) -> None:
        self.guards.add(Guard(kind, source, seen, self._line()))

    def guard_autocast(self) -> None:
        """The program asks what autocast does, or it is on."""
        self.guard(GuardKind.AUTOCAST, KeptSource(autocast_state, "autocast_state"), autocast_state())

    # ---------------------------------------------------------------------------------------------------------- wrapping

    def wrap(self, found: Any, source: Source) -> Value:
        """The value of an object that was there before the segment, with guards on what is known of it by this."""
        known = self._known.get(id(found))
        if known is not None and not isinstance(known, ConstantValue):
            if known.source != source:
                self._guard_same(known, found, source)
            return known
        made = self._wrapped(found, source)
        self._known[id(found)] = made
        self._objects[made] = found
        return made

    def _guard_same(self, known: Value, found: Any, source: Source) -> None:
        """Two ways to one object. For what is known by identity each has a guard of its own."""
        if is_a(found, _BY_IDENTITY):
            self.guard(GuardKind.ID, source, found)
        else:
            assert known.source is not None
            self.guard(GuardKind.SAME, source, known.source)

    def _wrapped(self, found: Any, source: Source) -> Value:
        if self._is_symbolic_number(found, source):
            return self._number(found, source)
        if is_a(found, torch.Tensor):
            return self._tensor(found, source)
        if type(found) in CONSTANT_TYPES:
            self.guard(GuardKind.EQUALS, source, found)
            return ConstantValue(found, source)
        if is_a(found, _BY_IDENTITY):
            self.guard(GuardKind.ID, source, found)
            return ObjectValue(found, source)
        if type(found) in (tuple, list, torch.Size) or (is_a(found, tuple) and is_named_tuple(type(found))):
            return self._sequence(found, source)
        if type(found) in (dict, OrderedDict, defaultdict):
            return self._dict(found, source)
        made = self._of_collection(found, source)
        if made is not None:
            return made
        if type(found) is MethodType:
            return self._method(found, source)
        if type(found) is CellType:
            return CellValue(source=source, content=None)
        self.guard(GuardKind.TYPE, source, type(found))
        return ObjectValue(found, source)

    def _tensor(self, found: torch.Tensor, source: Source) -> Value:
        if type(found) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
            self.guard(GuardKind.TYPE, source, type(found))
            return ObjectValue(found, source)
        try:
            with torch.set_grad_enabled(self.grad_mode):  # as the tensor is seen at the entry
                fake = self.faker.tensor(found, source, policy=self._sizes.policy(source, found))
        except UnsupportedByRefimpl:
            self.guard(GuardKind.TYPE, source, type(found))
            return ObjectValue(found, source)
        self.guard(GuardKind.TENSOR, source, TensorFacts.of(found, fake))
        if _is_symbolic(fake):
            self._symbolic_inputs.append((self._kept_geometry(fake), source))
            sizes: list[Any] = list(fake.shape)
            for dim, size in enumerate(sizes):
                if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                    number = NumberValue(size, None, DimensionSource(source, "size", dim))
                    self._symbols.setdefault(size.node.expr, number)
        for other in self._by_fake.values():
            if other.source is not None:
                self.guard(GuardKind.DISTINCT, source, other.source)
        value = TensorValue(self.graph.input(source, fake, found), fake, source)
        self._by_fake[id(fake)] = value
        return value

    def _is_symbolic_number(self, found: Any, source: Source) -> bool:
        return type(found) is int and self._sizes.is_varying(source, found)

    def _number(self, found: int, source: Source) -> Value:
        """An integer that may be another one the next time."""
        symbolic: Any = fake_int(found, self.shape_env, source.name, "DYNAMIC")
        if type(symbolic) is int:
            self.guard(GuardKind.EQUALS, source, found)
            return ConstantValue(found, source)
        self.guard(GuardKind.TYPE, source, int)
        self._symbolic_inputs.append((symbolic, source))
        known = self._symbols.get(symbolic.node.expr)
        return known or self._symbols.setdefault(symbolic.node.expr, NumberValue(symbolic, None, source))

    def _kept_geometry(self, fake: torch.Tensor) -> torch.Tensor:
        """The fake as it is now: a method may give it other sizes."""
        return unrelated_alias(fake).requires_grad_(fake.requires_grad)

    def note_key(self, value: ObjectValue) -> None:
        """An object is a key by identity: at the end there is one guard that all such are as many as they are now."""
        self._keys[KeptSource(value.object, "key") if value.source is None else value.source] = None

    def is_first_of_its_fake(self, value: TensorValue) -> bool:
        """Whether no other value may be the same tensor."""
        return self._by_fake.get(id(value.fake)) is value

    def guard_shapes(self) -> None:
        """Once nothing more is asked of symbols, but by a backend."""
        if len(self._keys) > 1:
            first, *others = self._keys
            self.guard(GuardKind.ALL_DISTINCT, first, tuple(others))
        self.graph.fake_inputs = self._fake_inputs
        if self._symbolic_inputs:
            first = self._symbolic_inputs[0][1]
            self.guard(GuardKind.SHAPES, first, ShapeFacts(self.shape_env, tuple(self._symbolic_inputs)))

    def _fake_inputs(self, sources: Sequence[Source], examples: Sequence[Any]) -> list[Any] | None:
        """The graph's inputs as they were at the entry, in the symbols of its nodes; None where nothing is a symbol."""
        if not self._symbolic_inputs:
            return None
        known = {source: value for value, source in self._symbolic_inputs}
        known |= {number.source: number.number for number in self._symbols.values() if number.source is not None}
        made = []
        for source, example in zip(sources, examples, strict=True):
            value = known.get(source)
            if value is None:
                value = self.fake_mode.from_tensor(example, static_shapes=True)
            made.append(value)
        return made

    # ----------------------------------------------------------------------------------------------------------- numbers

    def size_of(self, tensor: TensorValue, dim: int) -> Value:
        """A size of a tensor."""
        size: Any = tensor.fake.shape[dim]
        if type(size) is int:
            return ConstantValue(size)
        known = self._symbols.get(size.node.expr)
        if known is not None:
            return known
        return NumberValue(size, self.graph.call("call_method", "size", (tensor.node, dim), {}, size))

    def node_of(self, value: NumberValue) -> Any:
        """The node that gives a number: an input of the graph, where it is read from one."""
        if value.node is None:
            assert value.source is not None
            value.node = self.graph.input(value.source, value.number, number_of(value.number))
        return value.node

    def specialised(self, value: NumberValue) -> ConstantValue:
        """The number as it is now; guarded where it depends on inputs."""
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value.number)]
        try:
            return ConstantValue(kind(value.number))
        except _DATA_DEPENDENT as error:
            raise GraphBreak("branch_on_tensor", what=f"{kind.__name__}() of a number out of a tensor") from error

    def arithmetic(self, function: Any, operands: Sequence[Value]) -> Value:
        """What an operator of Python gives for numbers of which one is a symbol."""
        operands = [self._without_truth(operand) for operand in operands]
        what = getattr(function, "__name__", str(function))
        if function in _DIVISIONS and isinstance(operands[1], NumberValue) and operands[1].number == 0:
            raise GraphBreak("op_raises_on_fake", what=what, error="ZeroDivisionError")
        numbers = [self.fake_of(operand, what) for operand in operands]
        try:
            result = function(*numbers)
        except ZeroDivisionError as error:
            raise UserRaise(ErrorValue(ZeroDivisionError, [ConstantValue(arg) for arg in error.args])) from error
        except Exception as error:
            raise GraphBreak("op_raises_on_fake", what=what, error=type(error).__name__) from error
        if not isinstance(result, SYMBOLIC_NUMBERS):
            return ConstantValue(result)
        nodes = [self.argument_of(operand) for operand in operands]
        return NumberValue(result, self.graph.call("call_function", function, nodes, {}, result))

    def _without_truth(self, operand: Value) -> Value:
        if isinstance(operand, NumberValue) and isinstance(operand.number, torch.SymBool):
            return self.specialised(operand)
        return operand

    def _sequence(self, found: Any, source: Source) -> Value:
        self.guard(GuardKind.TYPE, source, type(found))
        self.guard(GuardKind.LENGTH, source, len(found))
        items: list[Value] = [UnreadValue(item, ItemSource(source, index)) for index, item in enumerate(found)]
        return SequenceValue(type(found), items, source)

    def _dict(self, found: Any, source: Source) -> Value:
        self.guard(GuardKind.TYPE, source, type(found))
        if not all(map(_is_known_key, found)):
            return ObjectValue(found, source)
        self.guard(GuardKind.KEYS, source, list(found))
        items: dict[Any, tuple[Value, Value]] = {
            key: (_known_key(key), UnreadValue(item, ItemSource(source, key))) for key, item in found.items()
        }
        if type(found) is defaultdict:
            factory = self.wrap(found.default_factory, AttributeSource(source, "default_factory"))
            return DefaultDictValue(items, factory, source)
        return DictValue(items, source, type(found))

    def _of_collection(self, found: Any, source: Source) -> Value | None:
        """A set of constants, a deque or a partial function; None for everything else."""
        if type(found) in (set, frozenset) and all(map(_is_known_key, found)):
            self.guard(GuardKind.TYPE, source, type(found))
            self.guard(GuardKind.KEYS, source, list(found))
            made = SetValue(type(found), source)
            made.real, made.order, made.is_ordered = type(found)(found), list(found), False
            made.values = {key: _known_key(key) for key in found}
            return made
        if type(found) is deque:
            self.guard(GuardKind.TYPE, source, deque)
            self.guard(GuardKind.LENGTH, source, len(found))
            self.guard(GuardKind.EQUALS, AttributeSource(source, "maxlen"), found.maxlen)
            items: list[Value] = [UnreadValue(item, ItemSource(source, index)) for index, item in enumerate(found)]
            return DequeValue(items, found.maxlen, source)
        if type(found) is functools.partial and not found.__dict__:
            self.guard(GuardKind.TYPE, source, type(found))
            self.guard(GuardKind.EMPTY, AttributeSource(source, "__dict__"))
            keywords = self.wrap(found.keywords, AttributeSource(source, "keywords"))
            args = self.wrap(found.args, AttributeSource(source, "args"))
            if isinstance(keywords, DictValue) and isinstance(args, SequenceValue):
                named = {key: value for key, (_, value) in keywords.items.items()}
                function = self.wrap(found.func, AttributeSource(source, "func"))
                return PartialValue(function, list(args.items), named, source)
        return None

    def _method(self, found: MethodType, source: Source) -> Value:
        function = self.wrap(found.__func__, AttributeSource(source, "__func__"))
        made = MethodValue(function, self.wrap(found.__self__, AttributeSource(source, "__self__")))
        made.source = source
        return made

    # --------------------------------------------------------------------------------------------------------- operators

    def operator(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, kind: str = "call_function"
    ) -> Value:
        """A node for a call of torch's, and the value of what it gives on fakes.

        Raises GraphBreak for arguments or results that a graph cannot have, and where the call raises.
        """
        what = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        fake_args = [self.fake_of(arg, what) for arg in args]
        fake_kwargs = {name: self.fake_of(arg, what) for name, arg in kwargs.items()}
        given = [*_tensors_in([fake_args, *fake_kwargs.values()])]
        versions = [_version_of(leaf) for leaf in given]
        result = self._run(kind, target, fake_args, fake_kwargs, what)
        # Which object a write gives is known. What else gives its argument on fakes may copy it for real: layouts can differ.
        writes = _writes(target, kwargs)
        is_written = [_version_of(leaf) for leaf in given] != versions
        if writes or is_written or not _is_of_torch(target) or any(word in what for word in _MORE_THAN_THEIR_VALUE):
            self.graph.has_effects = True
        same = self._by_fake.get(id(result)) if writes else None
        if not _has_tensor(result):
            if type(result) in CONSTANT_TYPES and result is not None:
                return ConstantValue(result)
            if result is not None and not _has_number(result):
                raise GraphBreak("op_returns", what=what, result=type(result).__name__)
        node = self.graph.call(
            kind, target, [self.argument_of(arg) for arg in args],
            {name: self.argument_of(arg) for name, arg in kwargs.items()}, result,
        )  # fmt: skip
        if same is not None:
            return same  # written in place: the object is the argument itself
        return self._result(result, node)

    def _run(self, kind: str, target: Any, args: list[Any], kwargs: dict[str, Any], what: str) -> Any:
        try:
            with self.fake_mode, enable_python_dispatcher():
                if kind == "call_method":
                    return getattr(args[0], target)(*args[1:], **kwargs)
                return target(*args, **kwargs)
        except GraphBreak:
            raise
        except DataDependentOutputException:
            raise GraphBreak("data_dependent_read", what=what) from None
        except DynamicOutputShapeException:
            raise GraphBreak("dynamic_output_shape", what=what) from None
        except Exception as error:
            raise GraphBreak("op_raises_on_fake", what=what, error=type(error).__name__) from error

    def _result(self, result: Any, node: Any) -> Value:
        if isinstance(result, torch.Tensor):
            value = TensorValue(node, result)
            self._by_fake.setdefault(id(result), value)
            return value
        if isinstance(result, (tuple, list)):
            items = []
            for index, part in enumerate(result):
                if _has_tensor(part) or _has_number(part):
                    items.append(
                        self._result(part, self.graph.call("call_function", operator.getitem, (node, index), {}, part))
                    )
                else:
                    items.append(ConstantValue(part))
            return SequenceValue(type(result), items)
        if isinstance(result, SYMBOLIC_NUMBERS):
            return NumberValue(result, node)
        assert result is None
        return ConstantValue(None)

    def fake_of(self, value: Any, what: str) -> Any:
        """The argument of a call on fakes. Raises GraphBreak for values that no operator takes."""
        value = self.see(value)
        match value:
            case TensorValue():
                return value.fake
            case ConstantValue():
                if type(value.value) is int and not -_LARGE <= value.value < _LARGE:
                    raise GraphBreak("not_a_graph_argument", what="int of more than 64 bits")
                return value.value
            case NumberValue():
                return value.number
            case SequenceValue() if value.class_ in (tuple, list, torch.Size):
                items = [self.fake_of(item, what) for item in value.items]
                return tuple(items) if value.class_ is torch.Size and _has_number(items) else value.class_(items)
            case SliceValue():
                return slice(*(self.fake_of(part, what) for part in value.parts))
            case ObjectValue() if is_a(value.object, type):
                return value.object
            case _:
                raise GraphBreak("not_a_graph_argument", what=value.kind)

    def argument_of(self, value: Any) -> Any:
        """The same, for the node."""
        value = self.see(value)
        match value:
            case TensorValue():
                return value.node
            case NumberValue():
                return self.node_of(value)
            case SequenceValue():
                return (
                    value.class_([self.argument_of(item) for item in value.items])
                    if value.class_ is not torch.Size
                    else (tuple(self.argument_of(item) for item in value.items))
                )
            case SliceValue():
                return slice(*(self.argument_of(part) for part in value.parts))
            case ObjectValue():
                return value.object
            case _:
                return value.value

    # ------------------------------------------------------------------------------------------------------- state of torch

    def set_grad_mode(self, is_on: bool) -> None:
        """From here on, for fakes as for the graph. Who made this state puts torch's own back."""
        set_grad_enabled(is_on)
        self.graph.set_state(set_grad_enabled, is_on)

    def enter_region(self, region: RegionValue) -> Any:
        """A node for the beginning of a region that was entered."""
        self.open_regions.append((region, self.offset()))
        return self.graph.set_state(region.enter, *region.args)

    def leave_region(self) -> None:
        """Ends the region that was entered last."""
        region, _ = self.open_regions.pop()
        context, region.context = region.context, None
        region.exit(context)
        self.graph.set_state(region.exit, region.node)

    def leave_modes(self) -> bool | None:
        """The graph leaves what it found; the mode that the segment ends with, if that is another."""
        at_the_end = torch.is_grad_enabled()
        if at_the_end == self.grad_mode:
            return None
        self.set_grad_mode(self.grad_mode)
        return at_the_end

    # ------------------------------------------------------------------------------------------------------------ metadata

    def storage_offset(self, value: TensorValue) -> Value:
        """Of an input, which is then held to it. That of a view depends on what it is a view of."""
        if value.source is None or value.fake.layout is not torch.strided:
            unsupported("method storage_offset", value)
        found = self.object_of(value).storage_offset()
        self.guard(GuardKind.EQUALS, DimensionSource(value.source, "storage_offset"), found)
        return ConstantValue(found)

    # -------------------------------------------------------------------------------------------------------------- seeing

    def see(self, value: Any) -> Any:
        """The value, looked at."""
        return self.wrap(value.object, value.way) if type(value) is UnreadValue else value

    def object_of(self, value: Value) -> Any:
        """The object of a value that was there before, for kinds that have no field for it."""
        return self._objects[value]

    def real_of(self, value: Any) -> Any:
        """The real object that an argument is: of what was there before, of constants, and of tuples, lists and dicts of them."""
        value = self.see(value)
        match value:
            case ConstantValue():
                return value.value
            case ObjectValue():
                return value.object
            case SequenceValue() if value.source is None and value.class_ in (tuple, list, torch.Size):
                return value.class_([self.real_of(item) for item in value.items])
            case DictValue() if value.source is None and value.class_ is dict:
                return {self.real_of(key): self.real_of(item) for key, item in value.items.values()}
            case _:
                if value not in self._objects:
                    unsupported("a call whose result is assumed to be constant", value)
                return self._objects[value]

    def content_of(self, cell: CellValue, object_: Any) -> Value:
        """What is in a cell that was there before."""
        assert cell.source is not None
        return self.wrap(object_, CellSource(cell.source))


def _is_known_key(key: Any) -> bool:
    """Whether a guard on keys says all of it."""
    return is_constant_key(key) or has_own_key(key)


def _known_key(key: Any) -> Value:
    if type(key) is tuple:
        return SequenceValue(tuple, [_known_key(item) for item in key])
    return ObjectValue(key) if has_own_key(key) else ConstantValue(key)


def hash_key_of(key: Any) -> Any:
    """A constant is its own key."""
    return key


def _has_tensor(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_has_tensor(part) for part in result)
    return isinstance(result, torch.Tensor)


def _has_number(result: Any) -> bool:
    """Whether there is a symbolic number in it."""
    if isinstance(result, (tuple, list)):
        return any(_has_number(part) for part in result)
    return isinstance(result, SYMBOLIC_NUMBERS)


def _is_symbolic(fake: torch.Tensor) -> bool:
    return any(isinstance(number, torch.SymInt) for number in (*fake.shape, *_strides(fake)))


def _strides(fake: torch.Tensor) -> Sequence[Any]:
    return fake.stride() if fake.layout is torch.strided else ()


def number_of(symbolic: Any) -> Any:
    """What the symbolic number is in the run that is captured."""
    return symbolic.node.hint


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors of arguments, which are in lists and tuples only."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)


def _version_of(tensor: torch.Tensor) -> int | None:
    return None if tensor.is_inference() else tensor._version


def _is_of_torch(target: Any) -> bool:
    """Whether a call is one of torch's own, which does what its name says; an operator of a library may do more."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return str(target).startswith("aten.")
    return True


def _writes(target: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether a call writes to a tensor and gives it back."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name.startswith("__i") and name.endswith("__"):
        return True
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or id(target) in _IN_PLACE_OPERATORS or "out" in kwargs or "inplace" in kwargs


class UserRaise(Exception):
    """The program raises an exception, inside of the segment. Seen by the machine alone."""

    def __init__(self, error: ErrorValue) -> None:
        super().__init__()
        self.error = error


def raising(class_: type, *args: Any) -> NoReturn:
    """An operation of the program raises an exception with these constants. Without any: they are not known."""
    raise UserRaise(ErrorValue(class_, [ConstantValue(arg) for arg in args] if args else None))


def unsupported(what: str, value: Value) -> NoReturn:
    raise GraphBreak("unsupported_operation", what=what, kind=value.kind)
