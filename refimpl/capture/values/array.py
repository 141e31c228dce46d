"""Numpy arrays in a segment: tensors in the graph, and nodes that call the tensor counterpart of a numpy function.

Counterpart: torch/_dynamo/variables/tensor.py NumpyNdarrayVariable; torch/_dynamo/variables/misc.py NumpyVariable
Differs: numpy itself runs on stand-in arrays of the same shapes to find class, shape, dtype and aliasing of a result. Where the
tensor function gives something else, or nothing is known, the graph breaks.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import Node

from refimpl._torch import SYMBOLIC_TYPES, storage_key
from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.concrete import BINARY, COMPARE, UNARY
from refimpl.capture.public import numpy_interop as interop
from refimpl.capture.values.bound import NativeMethodValue
from refimpl.capture.values.classes import is_a
from refimpl.capture.values.constant import ConstantValue, NumberValue
from refimpl.capture.values.hashing import CONSTANT_TYPES
from refimpl.capture.values.object import ObjectValue
from refimpl.capture.values.sequence import SequenceValue, SliceValue
from refimpl.capture.values.tensor import TensorValue, items_read_from
from refimpl.capture.values.value import Value, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

Array = np.ndarray[Any, Any]
_OF_SHAPE = frozenset(["ndim", "size", "itemsize", "nbytes"])
_TENSOR_ATTRIBUTES = frozenset(["T", "real", "imag"])
# Methods that read data, change the array in a way that tensors cannot, or leave numpy.
_METHODS_LEFT_OUT = frozenset(
    ["item", "tolist", "tobytes", "tofile", "dump", "dumps", "resize", "setflags", "byteswap", "view"]
)
# A number of numpy leaves a comparison to the tensor, which makes the mirrored one.
_MIRRORED: dict[Any, Any] = {
    operator.lt: operator.gt, operator.gt: operator.lt, operator.le: operator.ge, operator.ge: operator.le,
    operator.eq: operator.eq, operator.ne: operator.ne,
}  # fmt: skip
_OF_NUMBER = (operator.add, operator.sub, operator.mul, *_MIRRORED)
_BY_NUMBER = (
    *_OF_NUMBER, operator.truediv, operator.floordiv, operator.mod, operator.iadd, operator.isub, operator.imul,
    operator.itruediv,
)  # fmt: skip
# `iadd` and the like, but not `iconcat`.
IN_PLACE_NAMES = frozenset(
    name[2:-2] for name in dir(operator) if name.startswith("__i") and f"__{name[3:-2]}__" in dir(operator)
) - {"iconcat"}


class ArrayValue(Value):
    """A numpy array: a node of the graph with a fake tensor, which becomes an array when the graph has run."""

    __slots__ = ("fake", "is_scalar", "node")
    operand_rank = 6

    def __init__(
        self, node: Node, fake: torch.Tensor, source: Source | None = None, *, is_scalar: bool = False
    ) -> None:
        super().__init__(source)
        self.node = node
        self.fake = fake
        self.is_scalar = is_scalar  # a numpy scalar

    @property
    def kind(self) -> str:
        return "number of numpy" if self.is_scalar else "ndarray"

    def class_of(self) -> type:
        """`np.ndarray`, or for a scalar the class that belongs to its dtype."""
        return torch.empty(0, dtype=self.fake.dtype).numpy().dtype.type if self.is_scalar else np.ndarray

    def truth(self, domain: SymbolicDomain) -> bool:
        raise GraphBreak("branch_on_tensor", what=f"bool() of a {self.kind}")

    # -------------------------------------------------------------------------------------------------- operators

    def unary(self, domain: SymbolicDomain, sign: str) -> Any:
        return array_operator(domain, UNARY[sign], [self])

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        if isinstance(left, ArrayValue):
            writes = not left.is_scalar
        else:  # a tensor takes a number of numpy, but no array
            writes = isinstance(left, TensorValue) and isinstance(right, ArrayValue) and right.is_scalar
        return array_operator(domain, BINARY[sign if writes else sign.removesuffix("=")], [left, right])

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        return array_operator(domain, COMPARE[sign], [left, right])

    # ------------------------------------------------------------------------------------------------- attributes

    def load_attr(self, domain: SymbolicDomain, name: str) -> Value:
        if inspect.isroutine(getattr(np.ndarray, name, None)):
            return NativeMethodValue(self, name)
        if name == "shape":
            return SequenceValue(tuple, [domain.state.size_of(self, dim) for dim in range(self.fake.dim())])
        if name == "dtype":
            return ObjectValue(_numpy_dtype(self.fake))
        if name in _OF_SHAPE:
            found = {"ndim": self.fake.dim, "size": self.fake.numel, "itemsize": self.fake.element_size}
            number = self.fake.nbytes if name == "nbytes" else found[name]()
            return ConstantValue(number) if type(number) is int else unsupported(f"attribute {name}", self)
        if name == "strides":
            steps = [step * self.fake.element_size() for step in self.fake.stride()]
            return SequenceValue(
                tuple,
                [
                    ConstantValue(step) if type(step) is int else unsupported(f"attribute {name}", self)
                    for step in steps
                ],
            )
        if name in _TENSOR_ATTRIBUTES:
            return numpy_node(domain, interop.numpy_attr_wrapper, getattr, [self, ConstantValue(name)], {})
        unsupported(f"attribute {name}", self)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Value:
        if name == "tolist" and domain.state.reads_data and not args and not kwargs:
            return items_read_from(domain, as_tensor(self))
        if name in _METHODS_LEFT_OUT:
            raise GraphBreak("data_dependent_read", what=f"ndarray.{name}()")
        method = getattr(np.ndarray, name)
        return numpy_node(domain, interop.numpy_method_wrapper(name), method, [self, *args], kwargs)

    # ------------------------------------------------------------------------------------------------------ items

    def length(self, domain: SymbolicDomain) -> Value:
        return domain.state.size_of(self, 0) if self.fake.dim() else unsupported("the length", self)

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        return array_operator(domain, operator.getitem, [self, domain.known_key(key)])

    def set_item(self, domain: SymbolicDomain, key: Value, item: Any) -> None:
        array_operator(domain, operator.setitem, [self, domain.known_key(key), item])

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        if self.fake.dim() <= 1:  # the elements of one dimension are scalars, which numpy reads one at a time
            unsupported("iterating", self)
        return [self.get_item(domain, ConstantValue(index)) for index in range(int(self.fake.shape[0]))]

    def iterate(self, domain: SymbolicDomain) -> Any:
        return domain.iterator(self, self.elements(domain))

    def rebuilt(self, emitter: Any) -> str:
        made = emitter.constant(interop.to_numpy_scalar if self.is_scalar else interop.to_numpy_helper)
        return emitter.named(self, f"{made}({emitter.output(self.node)})")

    def iterator_rebuilt(self, emitter: Any, iterator: Any) -> str:
        name = emitter.named(iterator, f"iter([{emitter.listed(iterator.items)}])")
        if iterator.position:
            emitter.line(f"{name}.__setstate__({iterator.position})")
        return name


def array_operator(domain: SymbolicDomain, function: Callable[..., Any], operands: Sequence[Any]) -> Value:
    """A function of `operator`, at least one operand of which is an array."""
    seen = [domain.state.realize(operand) for operand in operands]
    if len(seen) == 2 and _is_tensor_with_number(function, *seen):
        return domain.state.operator(function, [seen[0], as_tensor(seen[1])], {})
    if len(seen) == 2 and _is_number_with_tensor(function, *seen):
        number, tensor = as_tensor(seen[0]), seen[1]
        mirrored = _MIRRORED.get(function)
        if mirrored is not None:
            return domain.state.operator(mirrored, [tensor, number], {})
        return domain.state.operator(function, [number, tensor], {})
    if function is operator.truediv and isinstance(seen[0], ArrayValue) and type(seen[1]) is TensorValue:
        # as Tensor.__rtruediv__ does
        inverse = domain.state.operator("reciprocal", [seen[1]], {}, kind="call_method")
        return array_operator(domain, operator.mul, [inverse, seen[0]])
    wrapped = interop.numpy_operator_wrapper(function)
    if any(isinstance(operand, TensorValue) for operand in seen) and not _is_tensor_with_array(function, *seen):
        unsupported("an operator on an array and it", next(each for each in seen if isinstance(each, TensorValue)))
    if not _has_kernel(wrapped, seen):
        raise GraphBreak("call_of_native_code", what=f"numpy.{function.__name__}, which torch has no kernel for,")
    return numpy_node(domain, wrapped, function, operands, {})


def array_of_tensor(tensor: TensorValue, *, is_wrapped: bool = False) -> ArrayValue:
    """`tensor.numpy()`, which shares memory. is_wrapped: the array becomes a tensor again, so that it may have a gradient."""
    fake = tensor.fake
    if is_wrapped and fake.layout is torch.strided:
        return ArrayValue(tensor.node, fake)
    if (
        fake.requires_grad
        or fake.is_conj()
        or fake.is_neg()
        or fake.device.type != "cpu"
        or fake.layout is not torch.strided
    ):
        raise GraphBreak("data_dependent_read", what="Tensor.numpy()")
    try:
        torch.empty(0, dtype=fake.dtype).numpy()
    except TypeError as error:
        raise GraphBreak("op_raises_on_fake", what="Tensor.numpy()", error="TypeError") from error
    return ArrayValue(tensor.node, fake)


def tensor_of_array(domain: SymbolicDomain, array: ArrayValue) -> TensorValue:
    """`torch.from_numpy(array)`, which shares memory."""
    if array.is_scalar:
        unsupported("torch.from_numpy", array)
    made = domain.state.operator(torch.as_tensor, [as_tensor(array)], {})
    assert isinstance(made, TensorValue)
    return made


def numpy_node(
    domain: SymbolicDomain, target: Any, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> Value:
    """Adds a node that calls `target`, the tensor counterpart of the numpy function `function`."""
    seen = [_numpy_argument(domain, arg) for arg in args]
    named = {name: _numpy_argument(domain, arg) for name, arg in kwargs.items()}
    what = getattr(function, "__name__", str(function))
    trial = _StandInCall(function, seen, named)
    try:
        expected = trial.run()
    except Exception as error:
        raise GraphBreak("op_raises_on_fake", what=f"numpy.{what}", error=type(error).__name__) from error
    if type(expected) in CONSTANT_TYPES and all(map(_is_known, (*seen, *named.values()))):
        return ConstantValue(expected)
    if trial.writes_tensor():
        raise GraphBreak("call_of_native_code", what=f"numpy.{what}, which writes to a tensor,")
    written = trial.written()
    for array in written:
        _will_write_array(domain, array)
    try:
        result = domain.state.operator(
            target, [*map(_for_node, seen)], {name: _for_node(arg) for name, arg in named.items()}
        )
        return _returned(domain, what, expected, result, trial.pairs)
    except GraphBreak as reason:
        if written and reason.restart_at is None:  # else the graph would write, and then numpy once more
            reason.restart_at = domain.state.position()
        raise


def _returned(domain: SymbolicDomain, what: str, expected: Any, result: Value, pairs: list[tuple[Any, Value]]) -> Value:
    """The value of a call: an argument itself if numpy returns that, as with `out=`."""
    given = next((value for stand_in, value in pairs if expected is stand_in), None)
    if what in IN_PLACE_NAMES:
        return unsupported(f"numpy.{what}", pairs[0][1]) if given is None else given
    made = _numpy_result(domain, what, expected, result, pairs)
    if isinstance(given, ArrayValue) and isinstance(made, ArrayValue):
        return given if storage_key(made.fake) == storage_key(given.fake) else unsupported(f"numpy.{what}", given)
    return made


class _StandInCall:
    """A call of a numpy function with stand-ins for its arguments, of which some may be read-only."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Value],
        kwargs: dict[str, Value],
        read_only: Sequence[int] = (),
    ) -> None:
        self._function = function
        self._values = [*args, *kwargs.values()]
        self._names = tuple(kwargs)
        stand_ins = [_stand_in(value) for value in self._values]
        for index in read_only:
            stand_ins[index].flags.writeable = False
        self.pairs = [*zip(stand_ins, self._values, strict=True)]

    def run(self) -> Any:
        """The result. Raises what numpy raises."""
        stand_ins = [stand_in for stand_in, _ in self.pairs]
        count = len(stand_ins) - len(self._names)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._function(*stand_ins[:count], **dict(zip(self._names, stand_ins[count:], strict=True)))

    def writes_tensor(self) -> bool:
        """Whether the function has written to a tensor, as one that assigns to items does."""
        return any(isinstance(stand_in, torch.Tensor) and stand_in._version > 0 for stand_in, _ in self.pairs)

    def written(self) -> list[Value]:
        """The arguments that the function writes to: it raises if they are read-only, and has not raised before."""
        arrays = [index for index, (stand_in, _) in enumerate(self.pairs) if isinstance(stand_in, np.ndarray)]
        if not arrays or self._runs_without_writing(arrays):
            return []
        return [self._values[index] for index in arrays if not self._runs_without_writing([index])]

    def _runs_without_writing(self, arrays: Sequence[int]) -> bool:
        count = len(self._values) - len(self._names)
        args, kwargs = self._values[:count], dict(zip(self._names, self._values[count:], strict=True))
        try:
            _StandInCall(self._function, args, kwargs, arrays).run()
        except ValueError:
            return False
        return True


def _numpy_argument(domain: SymbolicDomain, value: Any) -> Value:
    """An argument of a numpy function, with its items realized. Breaks the graph for anything but arrays, constants, dtypes and
    containers of them.
    """
    value = domain.state.realize(value)
    match value:
        case ArrayValue() | ConstantValue() | NumberValue() | SliceValue():
            return value
        case SequenceValue() if value.class_ in (tuple, list):
            return SequenceValue(value.class_, [_numpy_argument(domain, item) for item in value.items])
        case ObjectValue() if _is_dtype(value.object):
            return value
        case TensorValue() if type(value) is TensorValue:  # numpy asks it for its array
            array_of_tensor(value)  # breaks the graph where there is none
            return value
        case _:
            unsupported("a call of numpy", value)


def _is_known(value: Value) -> bool:
    """Whether an argument is a constant or a class, so that numpy itself has given what the call returns."""
    if isinstance(value, SequenceValue):
        return all(map(_is_known, value.items))
    return isinstance(value, (ConstantValue, ObjectValue))


def _will_write_array(domain: SymbolicDomain, array: Value) -> None:
    """Checks a write to an array. Arrays that share memory are not told apart, so the written array must be the only one of the
    program.
    """
    assert isinstance(array, ArrayValue)
    if len(domain.state.array_inputs) > 1 and any(array.fake is each.fake for each in domain.state.array_inputs):
        unsupported("a write, beside other arrays,", array)
    domain.state.writes_arrays = True


def _numpy_result(
    domain: SymbolicDomain, what: str, expected: Any, result: Value, pairs: list[tuple[Any, Value]]
) -> Value:
    """The result with arrays in place of tensors. Breaks the graph where the tensor function does not give what numpy gives."""
    match result:
        case TensorValue() if isinstance(expected, (np.ndarray, np.generic)):
            return _numpy_array(domain, what, expected, result, pairs)
        case TensorValue() if type(expected) is torch.Tensor:  # `Tensor.__array_wrap__`
            made = _numpy_array(domain, what, expected.numpy(), result, pairs)
            return tensor_of_array(domain, made)
        case SequenceValue() if _is_tuple_or_list(expected) and len(expected) == len(result.items):
            items = [_numpy_result(domain, what, *pair, pairs) for pair in zip(expected, result.items, strict=True)]
            return SequenceValue(type(expected), items)
        case ConstantValue() if type(expected) in CONSTANT_TYPES and type(expected) is type(result.value):
            if expected == result.value:
                return result
        case _:
            pass
    raise GraphBreak("op_returns", what=f"numpy.{what}", result=type(expected).__name__)


def _numpy_array(
    domain: SymbolicDomain, what: str, expected: Any, result: TensorValue, pairs: list[tuple[Any, Value]]
) -> ArrayValue:
    is_scalar, views = isinstance(expected, np.generic), _views(expected, pairs)
    is_same = (expected.dtype, expected.shape) == (
        _numpy_dtype(result.fake), tuple(map(_number, result.fake.shape)),
    )  # fmt: skip
    if is_same and not views and _views_of(result.fake, pairs):  # numpy copies here; so does reading a scalar
        result = _of_tensor_method(domain, "clone", result)
    if (
        is_same
        and not views
        and not is_scalar
        and not _lies_alike(expected, result.fake)
        and expected.flags.c_contiguous
    ):
        result = _of_tensor_method(domain, "contiguous", result)
    if not is_same or views != _views_of(result.fake, pairs) or not (is_scalar or _lies_alike(expected, result.fake)):
        raise GraphBreak(
            "unsupported_operation", what=f"numpy.{what}, which gives another result on tensors,", kind="ndarray"
        )
    return ArrayValue(result.node, result.fake, is_scalar=is_scalar)


def _of_tensor_method(domain: SymbolicDomain, name: str, tensor: TensorValue) -> TensorValue:
    made = domain.state.operator(name, [tensor], {}, kind="call_method")
    assert isinstance(made, TensorValue)
    return made


def _is_tensor_with_number(function: Any, left: Value, right: Value) -> bool:
    """Whether a numpy scalar on the right acts on a tensor as a zero-dimensional tensor does."""
    return function in _BY_NUMBER and _has_no_say(left, right)


def _is_number_with_tensor(function: Any, left: Value, right: Value) -> bool:
    """The same of one on the left. A division is another matter: eager multiplies the number by the reciprocal of the tensor."""
    return function in _OF_NUMBER and _has_no_say(right, left)


def _is_tensor_with_array(function: Any, left: Value, right: Value) -> bool:
    """Whether numpy computes with the tensor's array: `ndarray.__rmul__` answers, since a tensor refuses an array. An array on
    the left leaves the answer to the tensor, which refuses it too.
    """
    is_array = isinstance(right, ArrayValue) and not right.is_scalar
    return function in _BY_NUMBER and type(left) is TensorValue and is_array


def _has_kernel(target: Callable[..., Any], operands: Sequence[Value]) -> bool:
    """Whether torch computes an operator for these dtypes: it has hardly a kernel for uint16, uint32 and uint64."""
    if not all(isinstance(operand, (ArrayValue, TensorValue)) for operand in operands):
        return True
    try:
        target(*(torch.from_numpy(np.asarray(_stand_in(operand))) for operand in operands))
    except (NotImplementedError, RuntimeError):
        return False
    return True


def _has_no_say(tensor: Value, number: Value) -> bool:
    """Whether the dtype of a numpy scalar is of no higher category than that of the tensor."""
    if not isinstance(tensor, TensorValue) or not isinstance(number, ArrayValue) or not number.is_scalar:
        return False
    kinds = [(dtype.is_complex, dtype.is_floating_point) for dtype in (tensor.fake.dtype, number.fake.dtype)]
    is_bool = torch.bool in (tensor.fake.dtype, number.fake.dtype)
    return tensor.fake.dim() > 0 and not is_bool and kinds[1] <= kinds[0]


def _is_dtype(object_: Any) -> bool:
    if is_a(object_, np.dtype) or any(object_ is class_ for class_ in (bool, int, float, complex)):
        return True
    return is_a(object_, type) and object_.__module__ == "numpy" and issubclass(object_, np.generic)


def as_tensor(array: ArrayValue) -> TensorValue:
    """The tensor that stands for the array in the graph."""
    return TensorValue(array.node, array.fake)


def _for_node(value: Value) -> Value:
    """The argument for the node: a tensor for an array, a name for a dtype."""
    match value:
        case ArrayValue():
            return as_tensor(value)
        case SequenceValue():
            return SequenceValue(value.class_, [_for_node(item) for item in value.items])
        case ObjectValue():
            return ConstantValue(np.dtype(value.object).name)
        case _:
            return value


def _stand_in(value: Value) -> Any:
    """The argument for numpy: an array of the same shape and dtype, or a number."""
    match value:
        case ArrayValue():
            made = _array_like(value.fake)
            return made[()] if value.is_scalar else made
        case TensorValue():
            return torch.from_numpy(_array_like(value.fake))
        case ConstantValue():
            return value.value
        case NumberValue():
            return _number(value.number)
        case SequenceValue():
            return value.class_([_stand_in(item) for item in value.items])
        case SliceValue():
            return slice(*map(_stand_in, value.parts))
        case ObjectValue():
            return value.object
        case _:
            unsupported("a call of numpy", value)


def _array_like(fake: torch.Tensor) -> Array:
    """An array with the sizes, strides and dtype of a tensor. Integers are zeros, so that they are valid indices."""
    dtype = _numpy_dtype(fake)
    sizes, strides = [*map(_number, fake.shape)], [*map(_number, fake.stride())]
    extent = 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)) if 0 not in sizes else 0
    memory = (np.zeros if dtype.kind in "iub" else np.ones)(extent, dtype)
    return np.lib.stride_tricks.as_strided(memory, sizes, [stride * dtype.itemsize for stride in strides])


def _lies_alike(array: Array, fake: torch.Tensor) -> bool:
    """Whether the array has the strides of the tensor."""
    if not array.size:
        return True
    dims = [dim for dim, size in enumerate(array.shape) if size > 1]
    return all(array.strides[dim] == _number(fake.stride()[dim]) * array.itemsize for dim in dims)


def _number(size: Any) -> Any:
    if not isinstance(size, SYMBOLIC_TYPES):
        return size
    if not size.node.has_hint():
        raise GraphBreak("dynamic_output_shape", what="numpy")
    return size.node.hint


def _numpy_dtype(tensor: torch.Tensor) -> np.dtype[Any]:
    return torch.empty(0, dtype=tensor.dtype).numpy().dtype


def _is_tuple_or_list(value: Any) -> bool:
    return type(value) in (tuple, list) or (isinstance(value, tuple) and hasattr(type(value), "_fields"))


def _views(expected: Any, pairs: list[tuple[Any, Value]]) -> set[int]:
    """The storages of the arguments that share memory with numpy's result."""
    if not isinstance(expected, np.ndarray):
        return set()
    arrays = [
        (array.numpy() if isinstance(array, torch.Tensor) else array, value)
        for array, value in pairs
        if isinstance(array, (np.ndarray, torch.Tensor)) and isinstance(value, (ArrayValue, TensorValue))
    ]
    return {storage_key(value.fake) for array, value in arrays if np.may_share_memory(expected, array)}


def _views_of(fake: torch.Tensor, pairs: list[tuple[Any, Value]]) -> set[int]:
    """The storages of the arguments that share memory with the tensor."""
    arrays = [value.fake for _, value in pairs if isinstance(value, (ArrayValue, TensorValue)) and value.fake.numel()]
    return {storage_key(array) for array in arrays} & {storage_key(fake)}
