"""Rules for functions of torch that are not nodes themselves, and calls of numpy functions.

Counterpart: torch/_dynamo/variables/torch.py, misc.py NumpyVariable
Differs: `torch._check` becomes a node without its message, because a message may be a function of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import (
    check_condition,
    is_exporting,
    set_grad_enabled,
    shape_as_tensor,
    torch_check_with,
    torch_checks,
)
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.config import config
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.public import numpy_interop as interop
from refimpl.capture.rules.rule_table import Rule, RuleTable, wrong
from refimpl.capture.values import (
    ArrayValue,
    ConstantValue,
    NumberValue,
    ObjectValue,
    SequenceValue,
    TensorValue,
    Value,
)
from refimpl.capture.values.array import as_tensor, numpy_node, tensor_of_array
from refimpl.capture.values.constant import is_float_of_inputs
from refimpl.capture.values.triton_kernel import KernelValue

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

TORCH_RULES = RuleTable()


@TORCH_RULES.of(set_grad_enabled)
def _set_grad_enabled(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    mode = domain.constant_of(args[0], "set_grad_enabled") if len(args) == 1 and not kwargs else None
    if type(mode) is not bool:
        wrong("set_grad_enabled")
    domain.state.set_grad_mode(mode)
    return ConstantValue(None)


@TORCH_RULES.of(torch.use_deterministic_algorithms)
def _use_deterministic_algorithms(
    domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]
) -> Any:
    if len(args) + len(kwargs) > 2 or not kwargs.keys() <= {"mode", "warn_only"} or is_exporting() or len(args) > 1:
        wrong("use_deterministic_algorithms")
    given = {"mode": args[0], **kwargs} if args else kwargs
    mode, only_warns = (
        domain.constant_of(given.get(name, ConstantValue(False if name == "warn_only" else None)), name)
        for name in ("mode", "warn_only")
    )
    if type(mode) is not bool or type(only_warns) is not bool:
        wrong("use_deterministic_algorithms")
    domain.state.set_determinism(mode, only_warns)
    return ConstantValue(None)


@TORCH_RULES.of(torch.library.wrap_triton)
def _wrap_triton(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    kernel = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else None
    return kernel if isinstance(kernel, KernelValue) else wrong("wrap_triton")


@TORCH_RULES.of(torch.is_tensor)
def _is_tensor(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    return ConstantValue(isinstance(domain.state.realize(args[0]), TensorValue))


@TORCH_RULES.of(shape_as_tensor)
def _shape_as_tensor(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    tensor = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(tensor, TensorValue):
        raise GraphBreak("call_of_native_code", what="shape_as_tensor")
    sizes = [domain.state.size_of(tensor, dim) for dim in range(tensor.fake.dim())]
    return domain.call(
        frame, ObjectValue(torch.tensor), [SequenceValue(list, sizes)], {"dtype": ConstantValue(torch.int64)}
    )


@TORCH_RULES.of(torch.tensor)
def _tensor(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """`torch.tensor([x.item(), 2])`: from numbers that are known only when the program runs, one operator a number. In export
    also from sizes, which the call would specialize."""
    numbers: list[Value] = []
    shape = (
        _shape_of_list(domain, args[0], numbers) if len(args) == 1 and kwargs.keys() <= {"dtype", "device"} else None
    )
    if shape is None or not any(_is_kept(domain, number) for number in numbers):
        return domain.state.operator(torch.tensor, args, kwargs)
    # The dtype is that of the same numbers of Python or numpy.
    samples = [_sample_of(number) for number in numbers]
    named: dict[str, Any] = {"dtype": ConstantValue(torch.tensor(samples if shape else samples[0]).dtype), **kwargs}
    made: list[Value] = []
    for number, sample in zip(numbers, samples, strict=True):
        if isinstance(number, (ArrayValue, TensorValue)):
            tensor = as_tensor(number) if isinstance(number, ArrayValue) else number
            made.append(
                domain.state.operator("to", [tensor], {**named, "copy": ConstantValue(True)}, kind="call_method")
            )
        elif type(sample) is bool:
            made.append(domain.state.operator(torch.full, [SequenceValue(tuple, []), number], named))
        else:
            made.append(domain.state.operator(torch.scalar_tensor, [number], named))
    if not shape:
        return made[0]
    stacked = domain.state.operator(torch.stack, [SequenceValue(list, made)], {})
    sizes = SequenceValue(tuple, [ConstantValue(size) for size in shape])
    return domain.state.operator("reshape", [stacked, sizes], {}, kind="call_method") if len(shape) > 1 else stacked


def _shape_of_list(domain: SymbolicDomain, value: Any, numbers: list[Value]) -> tuple[int, ...] | None:
    """The shape that `_shape_of_numbers` finds. None if the value is itself a tensor, and not a number or a list."""
    return None if isinstance(domain.state.realize(value), TensorValue) else _shape_of_numbers(domain, value, numbers)


def _shape_of_numbers(domain: SymbolicDomain, value: Any, numbers: list[Value]) -> tuple[int, ...] | None:
    """The shape of a number or of nested lists of numbers, which are appended to `numbers`; None for anything else."""
    value = domain.state.realize(value)
    if isinstance(value, NumberValue) or (isinstance(value, ConstantValue) and type(value.value) in (bool, int, float)):
        numbers.append(value)
        return ()
    if isinstance(value, ArrayValue) and value.is_scalar:
        numbers.append(value)
        return ()
    if type(value) is TensorValue and value.fake.dim() == 0 and value.fake.device.type == "cpu":
        numbers.append(value)
        return None if value.fake.requires_grad else ()
    if not isinstance(value, SequenceValue) or value.class_ not in (list, tuple) or not value.items:
        return None
    inner = [_shape_of_numbers(domain, item, numbers) for item in value.items]
    first = inner[0]
    return None if first is None or any(shape != first for shape in inner) else (len(inner), *first)


def _is_kept(domain: SymbolicDomain, number: Value) -> bool:
    """Whether the number is known only when the program runs. In export, sizes are too."""
    if isinstance(number, TensorValue):
        return getattr(number.fake, "constant", None) is None
    if isinstance(number, ArrayValue):
        return True
    if is_float_of_inputs(number):
        return True
    return isinstance(number, NumberValue) and (is_exporting() or domain.state.is_read(number))


def _sample_of(number: Value) -> Any:
    """A number with the class of a number."""
    if isinstance(number, TensorValue):
        return torch.zeros((), dtype=number.fake.dtype)
    if isinstance(number, ArrayValue):
        return number.class_of()(1)
    if isinstance(number, NumberValue):
        return number.class_of()(1)
    assert isinstance(number, ConstantValue)
    return number.value


def _legacy_rule(class_: Any) -> Rule:
    """`torch.LongTensor(items)` is `torch.tensor(items, dtype=torch.long)`, and `torch.LongTensor(2, 3)` an empty tensor.
    `torch.Tensor` has the default dtype.
    """

    def make(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        seen = [domain.state.realize(arg) for arg in args]
        named = {"dtype": ConstantValue(torch.get_default_dtype() if class_ is torch.Tensor else class_.dtype)}
        if kwargs:
            wrong(f"torch.{class_.__name__}")
        if len(seen) == 1 and isinstance(seen[0], SequenceValue) and seen[0].class_ in (list, tuple):
            named["device"] = ConstantValue(torch.device("cpu"))
            return domain.call(frame, ObjectValue(torch.tensor), seen, named)
        if all(isinstance(value, NumberValue) or (_is_int(value)) for value in seen):
            named["device"] = ConstantValue(torch.device("cpu"))
            sizes = [SequenceValue(tuple, list(seen))] if seen else [SequenceValue(tuple, [ConstantValue(0)])]
            return domain.call(frame, ObjectValue(torch.empty), sizes, named)
        raise GraphBreak("call_of_native_code", what=f"class {class_.__name__}")

    return make


def _is_int(value: Any) -> bool:
    return isinstance(value, ConstantValue) and type(value.value) is int


# Classes of tensors of one dtype in the CPU's memory, from before there were dtypes.
_LEGACY = [
    value
    for value in vars(torch).values()
    if type(value) is type(torch.FloatTensor) and str(value.layout) == "torch.strided"
]
TORCH_RULES.update({id(class_): _legacy_rule(class_) for class_ in (torch.Tensor, *_LEGACY)})


def _may_hold(condition: NumberValue) -> bool:
    """False for a condition on sizes that the sizes of the call do not meet: the check raises, with its own message."""
    node = condition.number.node
    return not node.has_hint() or bool(node.hint)


def _check_rule(function: Any) -> Rule:
    def checked(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
        asked = domain.state.realize(args[0]) if args else None
        is_known = len(args) <= 2 and set(kwargs) <= {"message"}
        if isinstance(asked, NumberValue) and is_known and _may_hold(asked):
            return domain.state.operator(function, [asked], {})
        return domain.enter_function(ObjectValue(function), args, kwargs)

    return checked


TORCH_RULES.update({id(function): _check_rule(function) for function in torch_checks})


@TORCH_RULES.of(torch_check_with)
def _check_with(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    asked = domain.state.realize(args[1]) if len(args) == 3 else None
    if isinstance(asked, NumberValue) and domain.state.is_read(asked):  # `torch._check_tensor_all` reads its condition
        return domain.state.operator(check_condition, [asked], {})
    return domain.enter_function(ObjectValue(torch_check_with), args, kwargs)


# ------------------------------------------------------------------------------------------------------------- numpy


def is_array_call(function: Any) -> bool:
    """Whether this is a numpy function that has a counterpart on tensors."""
    return config.trace_numpy and interop.counterpart_of(function) is not None


def call_numpy(domain: SymbolicDomain, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
    """Calls a numpy function."""
    counterpart = interop.counterpart_of(function)
    assert counterpart is not None
    return numpy_node(domain, interop.numpy_to_tensor_wrapper(counterpart), function, args, kwargs)


@TORCH_RULES.of(torch.from_numpy)
def _from_numpy(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    array = domain.state.realize(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(array, ArrayValue):
        raise GraphBreak("call_of_native_code", what="torch.from_numpy")
    return tensor_of_array(domain, array)


@TORCH_RULES.of(torch.as_tensor)
def _as_tensor(domain: SymbolicDomain, frame: FrameState, args: list[Any], kwargs: dict[str, Any]) -> Any:
    array = domain.state.realize(args[0]) if args else None
    if isinstance(array, ArrayValue):
        return _from_numpy(domain, frame, args, kwargs)
    return domain.state.operator(torch.as_tensor, args, kwargs)
