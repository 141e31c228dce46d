"""Calls of torch operators during capture: a node in the graph, the result on fakes, symbolic numbers.

Counterpart: torch/_dynamo/variables/builder.py wrap_fx_proxy; torch/_dynamo/variables/tensor.py SymNodeVariable
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.fx.node import map_aggregate

from refimpl._torch import (
    PLAIN_TYPES,
    SYMBOLIC_TYPES,
    DataDependentOutputException,
    DispatchMode,
    DynamicOutputShapeException,
    FakeTensorMode,
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    call_torchbind,
    check_condition,
    is_functorch_wrapped,
    is_nested_int,
    is_traceable_wrapper_subclass,
    resolved_overload,
    storage_key,
    transform_operators,
    upstream_shape_error,
)
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.public.fake_values import fake_error
from refimpl.capture.state.graph import SegmentGraph
from refimpl.capture.state.side_effects import version_of
from refimpl.capture.values import (
    ArrayValue,
    ConstantValue,
    NestedIntValue,
    NumberValue,
    SequenceValue,
    SubclassTensorValue,
    TensorValue,
    Value,
)
from refimpl.capture.values.array import IN_PLACE_NAMES
from refimpl.capture.values.constant import is_float_of_inputs
from refimpl.capture.values.hashing import CONSTANT_TYPES
from refimpl.capture.values.value import UserRaise, unsupported
from refimpl.functionalize.geometry import has_symbols, is_row_major
from refimpl.trace.composite_kernels import composite_kernels
from refimpl.trace.decompositions.layouts import laid_out
from refimpl.trace.fake_kernels import EagerLayoutsMode
from refimpl.trace.internal_overlap import has_internal_overlap, updates_overlapping_elements
from refimpl.trace.read_after_write import reads_what_it_writes
from refimpl.trace.symbolic_indexing import INDEXING, has_symbolic_integer

_REMOVE_BATCH_DIM = transform_operators["_remove_batch_dim"][0]
_IN_PLACE_OPERATORS = frozenset(id(value) for name, value in vars(operator).items() if name in IN_PLACE_NAMES)
# Parts of the names of functions that write to an argument or to the generator, although their schema does not say so.
_MORE_THAN_THEIR_VALUE = (
    "batch_norm", "instance_norm", "embedding", "drop", "rand", "rrelu", "bernoulli", "normal", "multinomial", "poisson",
    "binomial", "sample", "gumbel",
)  # fmt: skip
# Operators that multiply their second operand by a number: by name, the number's name and how many operands there are.
_SCALED = {"add": ("alpha", 2), "sub": ("alpha", 2), "addcmul": ("value", 3), "addcdiv": ("value", 3)}
_SCALED_LISTS = {"_foreach_addcmul_": "addcmul_", "_foreach_addcdiv_": "addcdiv_"}  # the same for lists of tensors
_COMPUTED_IN_FLOAT32 = (torch.float16, torch.bfloat16)
_NUMBERS = {"number", "Optional[number]"}  # types in schemas
_OF_TORCH = ("aten", "prims", "prim")  # namespaces whose operators are all known
_DIVISIONS = (operator.truediv, operator.floordiv, operator.mod)
_EXACT_IN_FLOATS = 2**53  # the integers up to here are floats
_CONNECTIVES = (operator.and_, operator.or_)
_DATA_DEPENDENT = upstream_shape_error("GuardOnDataDependentSymNode")


def _is_bool(operand: Value) -> bool:
    if isinstance(operand, NumberValue):
        return isinstance(operand.number, torch.SymBool)
    return isinstance(operand, ConstantValue) and type(operand.value) is bool


class OperatorState:
    """The part of the capture state that operator calls use."""

    graph: SegmentGraph
    fake_mode: FakeTensorMode
    layouts: EagerLayoutsMode
    symbols: dict[Any, NumberValue]  # input symbol -> the number
    by_fake: dict[int, TensorValue]
    position: Callable[[], int]  # the position where a segment that cannot go on has to end
    behind: Callable[[int], int | None]  # the first position after one where a segment can end, if it is reached
    reads_data: bool  # whether a number read out of a tensor becomes an unbacked symbol
    written_at: int  # `position()` at the last write to a tensor
    read_numbers: set[Any]  # nodes of tensors that stand for a number that eager reads
    writes: dict[int, int]  # id of a fake (of the base, for a view) -> `position()` at the last write to it

    @abstractmethod
    def realize(self, value: Any) -> Any:
        """The value itself for a lazy value; see `CaptureState`."""

    # ----------------------------------------------------------------------------------------------------------- numbers

    def size_of(self, tensor: TensorValue | ArrayValue, dim: int) -> Value:
        """The size of a tensor or an array."""
        size: Any = tensor.fake.shape[dim]
        if type(size) is int:
            return ConstantValue(size)
        if is_nested_int(size):
            return self.nested_int(tensor, "size", dim, size)
        known = self.symbols.get(size.node.expr)
        if known is not None:
            return known
        return NumberValue(size, self.graph.call("call_method", "size", (tensor.node, dim), {}, size))

    def nested_int(self, tensor: Value, method: str, dim: int, found: Any) -> NestedIntValue:
        """A size or stride of a jagged tensor that is a nested int."""
        node = self.graph.call("call_method", method, (tensor.as_argument(self), dim), {}, found)
        return NestedIntValue(found, node, tensor, method, dim)

    def node_of(self, value: NumberValue) -> Any:
        """The node of a number; for a number that is read from an input, a placeholder."""
        if value.node is None:
            assert value.source is not None
            value.node = self.graph.input(value.source, value.number, number_of(value.number))
        return value.node

    def specialised(self, value: NumberValue) -> ConstantValue:
        """The number as a constant; a guard holds the inputs to it."""
        kind = PLAIN_TYPES[type(value.number)]
        try:
            return ConstantValue(kind(value.number))
        except _DATA_DEPENDENT as error:
            raise GraphBreak("guard_on_data", what=f"{kind.__name__}() of {value.number}") from error

    def arithmetic(self, function: Any, operands: Sequence[Value]) -> Value:
        """The result of a Python operator on numbers, at least one of them symbolic."""
        if function not in _CONNECTIVES or not all(_is_bool(operand) for operand in operands):
            operands = [self._without_truth(operand) for operand in operands]
        what = getattr(function, "__name__", str(function))
        if any(map(is_float_of_inputs, operands)) and not _is_modelled(function, operands):
            operands = self._with_constant_floats(operands)
        if function in _DIVISIONS and isinstance(operands[1], NumberValue) and self._is_zero(operands[1]):
            raise GraphBreak("op_raises_on_fake", what=what, error="ZeroDivisionError")
        numbers = [self.fake_of(operand, what) for operand in operands]
        try:
            result = function(*numbers)
        except ZeroDivisionError as error:
            raise UserRaise(ZeroDivisionError, [ConstantValue(arg) for arg in error.args]) from error
        except Exception as error:
            raise GraphBreak("op_raises_on_fake", what=what, error=type(error).__name__) from error
        if not isinstance(result, SYMBOLIC_TYPES):
            return ConstantValue(result)
        if any(isinstance(operand, NestedIntValue) for operand in operands):  # it is a bool, or no graph can return it
            return ConstantValue(bool(result)) if isinstance(result, torch.SymBool) else unsupported(what, operands[0])
        nodes = [self.argument_of(operand) for operand in operands]
        return NumberValue(result, self.graph.call("call_function", function, nodes, {}, result))

    def _is_zero(self, divisor: NumberValue) -> bool:
        """Whether a divisor is zero. One that is known only when the program runs is asserted not to be."""
        if not self.is_read(divisor):
            return bool(divisor.number == 0)
        differs = self.arithmetic(operator.ne, [divisor, ConstantValue(0)])
        if isinstance(differs, ConstantValue):
            return not differs.value
        self.operator(check_condition, [differs], {})
        return False

    def _with_constant_floats(self, values: Sequence[Any]) -> list[Any]:
        """The values, with guards that hold the floats among them to what they are. Lists and tuples are searched."""
        return [self._with_constant_float(self.realize(value)) for value in values]

    def _with_constant_float(self, value: Any) -> Any:
        if is_float_of_inputs(value):
            return self.specialised(value)
        if isinstance(value, SequenceValue) and self._has_float(value):
            return SequenceValue(value.class_, self._with_constant_floats(value.items))
        return value

    def _has_float(self, value: Any) -> bool:
        """Whether it is a float of the inputs, or a list or tuple that has one."""
        value = self.realize(value)
        is_list = isinstance(value, SequenceValue) and value.class_ in (list, tuple)
        return any(map(self._has_float, value.items)) if is_list else is_float_of_inputs(value)

    def is_read(self, value: NumberValue) -> bool:
        """Whether the number is known only when the program runs."""
        node = value.number.node
        return node.hint is None and (node.pytype is not bool or node.shape_env.decided(node.expr) is None)

    def _without_truth(self, operand: Any) -> Any:
        """A symbolic bool as a constant, with a guard."""
        operand = self.realize(operand)
        if isinstance(operand, NumberValue) and isinstance(operand.number, torch.SymBool):
            return self.specialised(operand)
        return operand

    # --------------------------------------------------------------------------------------------------------- operators

    def operator(
        self, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, kind: str = "call_function"
    ) -> Value:
        """Adds a node for a call of a torch function. Returns the value of its result on fakes.

        Raises GraphBreak for arguments or results that a graph cannot have, and if the call raises.
        """
        what = target if isinstance(target, str) else getattr(target, "__name__", str(target))
        is_of_torch = target is what or target is getattr(torch, what, None)
        if is_of_torch and (scaled := self._scaled(what, args, kwargs)) is not None:
            return scaled
        fake_args = [self.fake_of(arg, what) for arg in args]
        fake_kwargs = {name: self.fake_of(arg, what) for name, arg in kwargs.items()}
        if config.only_allow_pt2_compliant_ops:
            _check_compliance(target, fake_args, fake_kwargs)
        given = [*_tensors_in([fake_args, *fake_kwargs.values()])]
        versions = [version_of(leaf) for leaf in given]
        try:
            result = self._run(kind, target, fake_args, fake_kwargs, what)
        except GraphBreak as reason:
            otherwise = self._given_otherwise(reason, what, args, kwargs, [*fake_args, *fake_kwargs.values()])
            if otherwise is None:
                raise
            return self.operator(target, *otherwise, kind=kind)
        # A write returns its argument. Another function that returns its argument on fakes may return a copy when it runs, since
        # strides can differ.
        writes = _writes(target, kwargs)
        is_written = [version_of(leaf) for leaf in given] != versions
        if writes or is_written or not _is_of_torch(target) or any(word in what for word in _MORE_THAN_THEIR_VALUE):
            self.graph.has_effects = True
        if is_written:
            changed = (leaf for leaf, version in zip(given, versions, strict=True) if version_of(leaf) != version)
            self._note_written(changed)
        out = fake_kwargs.get("out")
        if isinstance(out, torch.Tensor) and not (is_written or out.is_inference()):
            raise GraphBreak("op_without_fake_kernel", what=f"{what} into `out`")  # the function ignored `out`
        same = self.by_fake.get(id(result)) if writes or self._unwraps(target, args) else None
        if not _has_tensor(result) and target is not call_torchbind:
            if (constant := _constant_result(result)) is not None:
                return constant
            if result is not None and not _has_number(result) and not _is_nothing(result):
                raise GraphBreak("op_returns", what=what, result=type(result).__name__)
        node_args = [self.argument_of(arg) for arg in args]
        node_kwargs = {name: self.argument_of(arg) for name, arg in kwargs.items()}
        if _has_class([*node_args, *node_kwargs.values()]):
            as_printed = functools.partial(self._class_argument, is_dtype=_takes_dtypes(target))
            node_args = map_aggregate(node_args, as_printed)
            node_kwargs = map_aggregate(node_kwargs, as_printed)
        try:
            node = self.graph.call(kind, target, node_args, node_kwargs, result)
        except GraphBreak:  # the fake kernel has read a tensor, and nothing of the result tells what
            read = self._with_numbers_read(what, args, kwargs) if self.reads_data and not is_written else None
            if read is None:
                raise
            return self.operator(target, *read, kind=kind)
        if same is not None:
            return same  # an in-place call returns the argument itself
        if type(result) in (bool, int, float, str):  # of a method of a script object, which runs for its effects too
            return ConstantValue(result)
        return self._result(result, node)

    def _scaled(self, what: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Value | None:
        """`x.add_(y, alpha=a)` and `x.addcdiv_(y, z, value=a)` where the number is a tensor, which eager reads: the graph
        multiplies by it. None for other calls.
        """
        if what in _SCALED_LISTS and len(args) == 4 and not kwargs:
            return self._scaled_lists(_SCALED_LISTS[what], *map(self.realize, args))
        name, count = _SCALED.get(what.removesuffix("_"), ("", 0))
        factor = self.realize(kwargs[name]) if name in kwargs and len(kwargs) == 1 else None
        if not isinstance(factor, TensorValue) or len(args) != count:
            return None
        operands = [self.realize(arg) for arg in args]
        return self._multiplied(what, operands, factor) if _can_multiply(operands, factor) else None

    def _given_otherwise(
        self, reason: GraphBreak, what: str, args: Sequence[Any], kwargs: Mapping[str, Any], fakes: Sequence[Any]
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments in another form, after a call with them has failed; None where there is none."""
        if any(map(self._has_float, (*args, *kwargs.values()))):  # an operator that takes no symbol for a float
            named = dict(zip(kwargs, self._with_constant_floats([*kwargs.values()]), strict=True))
            return self._with_constant_floats(args), named
        if reason.kind.name == "data_dependent_read" and self.reads_data:
            return self._with_numbers_read(what, args, kwargs)
        # Torch's argument parser takes no symbol for a bool: `sum(0, keepdim=size > 1)`.
        if reason.kind.name == "wrong_arguments" and _has_truth(fakes):
            named = {name: self._without_truth(arg) for name, arg in kwargs.items()}
            return [self._without_truth(arg) for arg in args], named
        return None

    def _with_numbers_read(
        self, what: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Any], dict[str, Any]] | None:
        """The arguments, with each tensor in the place of a number read from; None where there is none."""
        places = _places_of_numbers(what)
        given: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        read = {
            place: self.operator("item", [value], {}, kind="call_method")
            for place, value in given.items()
            if place in places and isinstance(self.realize(value), TensorValue)
        }
        if not read:
            return None
        return [read.get(index, arg) for index, arg in enumerate(args)], {**kwargs, **{
            name: value for name, value in read.items() if isinstance(name, str)
        }}  # fmt: skip

    def _scaled_lists(self, what: str, receivers: Any, first: Any, second: Any, factors: Any) -> Value | None:
        """`torch._foreach_addcdiv_(x, y, z, a)` where `a` is a tensor of one dimension, or a list of numbers that eager reads:
        one `addcdiv_` after the other, as in eager, since an operand can be a receiver too. None for other arguments.
        """
        lists = [value.items for value in (receivers, first, second) if isinstance(value, SequenceValue)]
        count = len(lists[0]) if len(lists) == 3 else 0
        if not count or any(len(items) != count for items in lists):
            return None
        if isinstance(factors, TensorValue) and factors.fake.shape == (count,):
            given = [factors, *(self.realize(item) for items in lists for item in items)]
            if torch.is_grad_enabled() and any(isinstance(x, TensorValue) and x.fake.requires_grad for x in given):
                return None  # torch has no derivative of this overload
            read = self.operator("clone", [factors], {}, kind="call_method")  # a receiver can be a view of it
            numbers = [self.operator(operator.getitem, [read, ConstantValue(index)], {}) for index in range(count)]
        elif isinstance(factors, SequenceValue) and len(factors.items) == count:
            numbers = [self.realize(factor) for factor in factors.items]
            if not all(isinstance(number, TensorValue) and self._is_read_number(number.node) for number in numbers):
                return None
        else:
            return None
        calls = [([*map(self.realize, operands)], number) for *operands, number in zip(*lists, numbers, strict=True)]
        if not all(_can_multiply(operands, number) for operands, number in calls):
            return None
        for operands, _ in calls:  # before the first write: eager runs a call that raises, from its start
            self._run("call_method", what, [operand.fake for operand in operands], {}, what)
        for operands, number in calls:
            self._multiplied(what, operands, number)
        return receivers

    def _multiplied(self, what: str, operands: Sequence[TensorValue], factor: TensorValue) -> Value:
        """The call of `what` with its second operand multiplied by the factor, in the dtype in which eager's kernel computes: the
        result's, which the factor does not change, or float32 for float16 and bfloat16, where a product can be too large.
        """
        plain = what.removesuffix("_")
        dtype = self._run("call_method", plain, [operand.fake for operand in operands], {}, what).dtype
        receiver, first, *rest = operands
        if dtype not in _COMPUTED_IN_FLOAT32:
            product = self.operator(torch.mul, [self._cast(first, dtype), self._cast(factor, dtype)], {})
            return self.operator(what, [receiver, product, *rest], {}, kind="call_method")
        if _SCALED[plain][0] == "alpha" and receiver.fake.device.type == "cpu":
            factor = self._cast(
                factor, dtype
            )  # these kernels round `alpha` to the tensors' dtype; addcmul and addcdiv do not round `value`
        start, first, *rest = (self._cast(self._cast(operand, dtype), torch.float32) for operand in operands)
        product = self.operator(torch.mul, [first, self._cast(factor, torch.float32)], {})
        result = self._cast(self.operator(plain, [start, product, *rest], {}, kind="call_method"), dtype)
        return result if what == plain else self.operator("copy_", [receiver, result], {}, kind="call_method")

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if value.fake.dtype is dtype:
            return value
        return self.operator("to", [value, ConstantValue(dtype)], {}, kind="call_method")

    def _is_read_number(self, node: Any) -> bool:
        """Whether a node's tensor stands for a number that eager computes from numbers that it has read from tensors."""
        waiting, seen = [node], set[Any]()
        while waiting:
            each = waiting.pop()
            if each in self.read_numbers or each in seen:
                continue
            if not each.all_input_nodes:
                return False
            seen.add(each)
            waiting += each.all_input_nodes
        return True

    def _unwraps(self, target: Any, args: Sequence[Any]) -> bool:
        """Whether the call takes a tensor out of a batch, which gives the very tensor that was put in if it still is that."""
        batched = self.realize(args[0]) if target is _REMOVE_BATCH_DIM and args else None
        return isinstance(batched, TensorValue) and self.by_fake.get(id(batched.fake)) is batched

    def note_writes(self, values: Sequence[TensorValue]) -> None:
        """Notes that a call wrote to these tensors, of which its fake did not write to any."""
        if values:
            torch.autograd.graph.increment_version([value.fake for value in values])
            self._note_written([value.fake for value in values])

    def _note_written(self, fakes: Iterable[torch.Tensor]) -> None:
        self.written_at = self.position()
        self.writes.update({id(fake if fake._base is None else fake._base): self.written_at for fake in fakes})

    def _class_argument(self, value: Any, *, is_dtype: bool) -> Any:
        """A class among the arguments in a form that the graph's code can have: torch takes `bool` for the dtype `torch.bool`;
        any other class is an attribute of the graph module."""
        if not isinstance(value, type):
            return value
        if is_dtype and issubclass(value, (int, float, complex)):
            dtype: Any = value
            with contextlib.suppress(TypeError):
                return torch.empty(0, dtype=dtype).dtype
        return self.graph.attach_class(value)

    def _run(self, kind: str, target: Any, args: list[Any], kwargs: dict[str, Any], what: str) -> Any:
        try:
            with (
                self.fake_mode,
                self.layouts,
                composite_kernels(),
                _watched_updates([args, *kwargs.values()], what),
            ):
                if target in INDEXING and has_symbolic_integer(args[1]) and isinstance(args[0], torch.Tensor):
                    return INDEXING[target](*args)
                if any(map(is_traceable_wrapper_subclass, _tensors_in([args, *kwargs.values()]))):
                    return (
                        getattr(args[0], target)(*args[1:], **kwargs)
                        if kind == "call_method"
                        else target(*args, **kwargs)
                    )
                if kind == "call_method":
                    result = getattr(args[0], target)(*args[1:], **kwargs)
                    return laid_out(getattr(torch.Tensor, target, None), args, kwargs, result)
                return laid_out(target, args, kwargs, target(*args, **kwargs))
        except GraphBreak:
            raise
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise fake_error(error, what) from None
        except Exception as error:
            raise fake_error(error, what) from error

    def _result(self, result: Any, node: Any) -> Value:
        if isinstance(result, torch.Tensor):
            is_wrapper = is_traceable_wrapper_subclass(result)
            value = SubclassTensorValue(node, result, type(result)) if is_wrapper else TensorValue(node, result)
            value.made_at = self.position()
            self.by_fake.setdefault(id(result), value)
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
        if isinstance(result, SYMBOLIC_TYPES):
            return NumberValue(result, node)
        assert result is None
        return ConstantValue(None)

    def part_of(self, node: Any, index: int, part: Any) -> Value:
        """The value of an element of a node's output; a tensor that already has a value keeps it."""
        known = self.by_fake.get(id(part))
        if known is not None:
            return known
        return self._result(part, self.graph.part(node, index, part))

    def fake_of(self, value: Any, what: str) -> Any:
        """The argument for a call on fakes. Raises GraphBreak for values that no operator takes."""
        return self.realize(value).as_fake(self, what)

    def argument_of(self, value: Any) -> Any:
        """The argument for a node."""
        return self.realize(value).as_argument(self)


@functools.cache
def _places_of_numbers(what: str) -> frozenset[int | str]:
    """The parameters, by position and by name, that are numbers in every overload of the operator which has them."""
    packet = getattr(torch.ops.aten, what, None)
    if not isinstance(packet, OpOverloadPacket):
        return frozenset()
    kinds: dict[int | str, set[str]] = {}
    for name in packet.overloads():
        for index, argument in enumerate(getattr(packet, name)._schema.arguments):
            for place in (index, argument.name):
                kinds.setdefault(place, set()).add(str(argument.type))
    return frozenset(place for place, found in kinds.items() if found <= _NUMBERS)


def _check_compliance(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises GraphBreak for a custom operator whose overload for these arguments does not say that it may be compiled: it lacks
    the tag `pt2_compliant_tag`. Also if no overload takes them.
    """
    if not isinstance(target, (OpOverload, OpOverloadPacket)) or isinstance(target, HigherOrderOperator):
        return
    if isinstance(target, OpOverloadPacket):
        try:
            found: OpOverload = getattr(target, resolved_overload(target, args, kwargs))
        except RuntimeError as error:
            what = f"{target}, of which torch failed to find an overload for these arguments,"
            raise GraphBreak("call_of_skipped_function", what=what) from error
    else:
        found = target
    if found.namespace not in _OF_TORCH and torch.Tag.pt2_compliant_tag not in found.tags:
        what = f"{found}, which is not PT2 compliant (it lacks the tag pt2_compliant_tag),"
        raise GraphBreak("call_of_skipped_function", what=what)


def _is_modelled(function: Any, operands: Sequence[Any]) -> bool:
    """Whether arithmetic with symbolic floats is Python's. Torch rounds the quotient of a floor division, and refuses powers of
    negative numbers. The shape env has no -0.0, takes infinite bounds for large numbers, and rounds large integers.
    """
    constants = [operand.value for operand in operands if isinstance(operand, ConstantValue)]
    if function is operator.floordiv or not all(map(_is_modelled_constant, constants)):
        return False
    base = operands[0]
    return (
        function is not operator.pow or (base.value if isinstance(base, ConstantValue) else number_of(base.number)) > 0
    )


def _is_modelled_constant(number: Any) -> bool:
    if type(number) is not float:
        return abs(number) <= _EXACT_IN_FLOATS
    return math.isfinite(number) and (number != 0 or math.copysign(1, number) > 0)


def _can_multiply(operands: Sequence[Any], factor: Any) -> bool:
    """Whether these are tensors of floating point, and the factor is one that eager reads as a number."""
    is_floating = all(
        isinstance(value, TensorValue) and value.fake.is_floating_point() for value in (*operands, factor)
    )
    return is_floating and not factor.fake.dim() and not factor.fake.requires_grad


def _has_tensor(result: Any) -> bool:
    if isinstance(result, (tuple, list)):
        return any(_has_tensor(part) for part in result)
    return isinstance(result, torch.Tensor)


def _has_truth(arguments: Sequence[Any]) -> bool:
    """Whether one of them is a symbolic bool."""
    return any(isinstance(argument, torch.SymBool) for argument in arguments)


def _is_nothing(result: Any) -> bool:
    """Whether it is a tuple of None, from a function that runs for its effects."""
    return type(result) is tuple and all(part is None for part in result)


def _takes_dtypes(target: Any) -> bool:
    """Whether classes among the arguments are dtypes: of a function or method of torch's, not of one of the program's."""
    return not isinstance(target, FunctionType) or target.__module__.partition(".")[0] == "torch"


def _has_class(arguments: Any) -> bool:
    if isinstance(arguments, (tuple, list)):
        return any(map(_has_class, arguments))
    return isinstance(arguments, type)


def _has_number(result: Any) -> bool:
    """Whether the result contains a symbolic number."""
    if isinstance(result, (tuple, list)):
        return any(_has_number(part) for part in result)
    return isinstance(result, SYMBOLIC_TYPES)


def is_symbolic(fake: torch.Tensor) -> bool:
    return any(isinstance(number, torch.SymInt) for number in (*fake.shape, *_strides(fake)))


def _strides(fake: torch.Tensor) -> Sequence[Any]:
    return fake.stride() if fake.layout is torch.strided else ()


def number_of(symbolic: Any) -> Any:
    """The hint: the number's value during capture."""
    return symbolic.node.hint


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among arguments, which may be in lists and tuples."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors_in(part)


def _is_of_torch(target: Any) -> bool:
    """Whether the target is one of torch's functions, whose effects follow from its name. A custom operator may have others."""
    if isinstance(target, (OpOverload, OpOverloadPacket)):
        return str(target).startswith("aten.")
    return True


@contextlib.contextmanager
def _watched_updates(given: Any, what: str) -> Iterator[None]:
    """Raises GraphBreak for an operator call within the block that updates overlapping memory in a way that a graph cannot
    reproduce.
    """
    tensors = [tensor for tensor in _tensors_in(given) if not is_traceable_wrapper_subclass(tensor)]
    strided = [tensor for tensor in tensors if tensor.layout is torch.strided and not is_functorch_wrapped(tensor)]
    storages = list(map(storage_key, strided))
    if len(set(storages)) < len(storages) or any(
        has_internal_overlap(tensor) if not has_symbols(tensor) else not is_row_major(tensor) for tensor in tensors
    ):
        with _UpdatesMode(what):
            yield
    else:
        yield


class _UpdatesMode(DispatchMode):
    supports_higher_order_operators = True

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if updates_overlapping_elements(func, args, kwargs or {}):
            raise GraphBreak("update_of_shared_places", what=self._what)
        if reads_what_it_writes(func, args, kwargs or {}):
            raise GraphBreak("read_after_write", what=self._what)
        return func(*args, **(kwargs or {}))


def _constant_result(result: Any) -> Value | None:
    """The value of a result without tensors that needs no node: a constant, an empty sequence, or sizes in numbers."""
    if type(result) in CONSTANT_TYPES and result is not None:
        return ConstantValue(result)
    if type(result) in (tuple, list) and not result:
        return SequenceValue(type(result), [])
    if type(result) is tuple and all(type(each) is int for each in result):
        return SequenceValue(tuple, [ConstantValue(each) for each in result])
    return None


def _writes(target: Any, kwargs: Mapping[str, Any]) -> bool:
    """Whether the call writes to a tensor and returns it."""
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    if name.startswith("__i") and name.endswith("__"):
        return True
    is_in_place = name.endswith("_") and not name.endswith("__")
    return is_in_place or id(target) in _IN_PLACE_OPERATORS or "out" in kwargs or "inplace" in kwargs
