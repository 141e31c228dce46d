"""What the parts of the symbolic domain ask of one another."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from refimpl.capture.interpreter.domain import Domain
from refimpl.capture.interpreter.frame import FrameState
from refimpl.capture.interpreter.signals import Enter, Exhausted
from refimpl.capture.symbolic.values import (
    ArrayValue,
    DictValue,
    ErrorValue,
    GeneratorValue,
    InstanceValue,
    MethodValue,
    NativeIteratorValue,
    ObjectValue,
    RegionValue,
    SetValue,
    TensorValue,
    Value,
)
from refimpl.capture.symbolic.wrapping import CaptureState


class SymbolicBase(Domain):
    """A domain over the values of one segment."""

    state: CaptureState

    @abstractmethod
    def is_constant(self, value: Any) -> bool:
        """Whether an object is one that equal objects may stand for."""

    @abstractmethod
    def constant_of(self, value: Any, what: str) -> Any:
        """The object of a constant, or of a tuple or list of constants. Breaks for everything else."""

    @abstractmethod
    def elements(self, value: Any) -> list[Value]:
        """All that iterating gives, where that runs no code of the user's."""

    @abstractmethod
    def folded(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        """What the function gives for constants. Breaks where it raises."""

    @abstractmethod
    def enter_function(self, function: Value, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`Enter` with a frame of a function written in Python."""

    @abstractmethod
    def call_special(self, value: Value, name: str, args: list[Value]) -> Any:
        """`value.__name__(...)`, looked up on the class, where it is a function written in Python."""

    @abstractmethod
    def special(self, value: Value, name: str) -> MethodValue | None:
        """A special method written in Python, looked up on the class and bound; None if the class has another one or none."""

    @abstractmethod
    def attribute_of_instance(self, value: InstanceValue, name: str) -> Any:
        """`value.name`, as `object.__getattribute__` finds it."""

    @abstractmethod
    def has_attribute_of_instance(self, value: InstanceValue, name: str) -> bool | None:
        """`hasattr`; None where code of the user's has to be run for it."""

    @abstractmethod
    def make_error(self, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A call of a class of exceptions."""

    @abstractmethod
    def attribute_of_error(self, value: ErrorValue, name: str) -> Any:
        """`error.name` where that is no matter of every object; None otherwise."""

    @abstractmethod
    def method_of_error(self, value: ErrorValue, name: str, args: list[Any]) -> Value:
        """A method that its builtin class has."""

    @abstractmethod
    def method_of_generator(self, value: Any, name: str, args: list[Any]) -> Any:
        """`send`, `throw`, `close`, `__next__`."""

    @abstractmethod
    def method_of_dict(self, value: Value, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`dict.name(value, ...)` of an object whose class derives from dict."""

    @abstractmethod
    def native_special(self, value: Value, name: str, args: list[Value]) -> Any:
        """A special method that a class has of C: only those of the dict inside are known."""

    @abstractmethod
    def elements_inside(self, value: Value) -> list[Value] | None:
        """What iterating gives, where that is the keys of the dict inside; None otherwise."""

    @abstractmethod
    def object_contains(self, item: Value, container: Value, inverted: bool) -> Any:
        """`item in container` of an object or a class."""

    @abstractmethod
    def set_of_module(self, module: InstanceValue, name: str, attribute: Value) -> None:
        """`torch.nn.Module.__setattr__` of a module that the segment makes."""

    @abstractmethod
    def attribute_in_tables(self, module: InstanceValue, name: str) -> Value | None:
        """What `torch.nn.Module.__getattr__` finds in one."""

    @abstractmethod
    def call_dict(self, args: list[Any], kwargs: dict[str, Any]) -> DictValue:
        """What `dict(*args, **kwargs)` holds, of a plain dict or nothing."""

    @abstractmethod
    def is_array_call(self, function: Any) -> bool:
        """Whether it is a function of numpy that has a counterpart on tensors."""

    @abstractmethod
    def call_numpy(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Value:
        """A call of one."""

    @abstractmethod
    def method_of_array(self, array: ArrayValue, name: str, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """`array.name(...)` of an array of numpy."""

    @abstractmethod
    def attribute_of_array(self, array: ArrayValue, name: str) -> Value:
        """`array.name`: metadata, or another array."""

    @abstractmethod
    def array_operator(self, function: Any, operands: Sequence[Any]) -> Value:
        """A function of `operator` of which an operand is an array."""

    @abstractmethod
    def region(self, class_: Any, args: list[Any], kwargs: dict[str, Any]) -> RegionValue | None:
        """A call of a class whose instances are regions in another state of torch; None for other classes."""

    @abstractmethod
    def enter_region(self, region: RegionValue) -> Value:
        """`__enter__`, on the state of torch and in the graph."""

    @abstractmethod
    def leave_region(self, region: RegionValue) -> Value:
        """`__exit__`, whatever it is given."""

    @abstractmethod
    def throw_into(self, generator: GeneratorValue, args: list[Any]) -> Any:
        """`generator.throw(error)`."""

    @abstractmethod
    def named(self, kwargs: dict[str, Any]) -> DictValue:
        """Keywords as a dict."""

    @abstractmethod
    def set_attribute_of_instance(self, value: InstanceValue, name: str, attribute: Any) -> Enter | None:
        """`value.name = attribute`."""

    @abstractmethod
    def delete_attribute_of_instance(self, value: InstanceValue, name: str) -> None:
        """`del value.name`."""

    @abstractmethod
    def value_of(self, result: Any, what: str) -> Value:
        """The value of a new object made of constants. Breaks for everything else."""

    @abstractmethod
    def resumed(self, generator: GeneratorValue, sent: Value | None = None) -> Enter | Exhausted:
        """The next step of a generator."""

    @abstractmethod
    def enter_polyfill(self, polyfill: Any, args: list[Any]) -> Enter:
        """A frame that the user's program does not have."""

    @abstractmethod
    def hash_key(self, key: Value) -> Any:
        """What a dict finds a key by."""

    @abstractmethod
    def eaten(self, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Enter | None:
        """A call of a builtin that goes through a generator; None for every other call."""

    @abstractmethod
    def instantiate(self, frame: FrameState, class_value: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A call of a class."""

    @abstractmethod
    def size_value(self, tensor: TensorValue, dim: int) -> Value:
        """A size of a tensor."""

    @abstractmethod
    def hooks_of(self, value: ObjectValue) -> bool:
        """Whether calling the module runs more than its `forward`; guarded where it does not."""

    @abstractmethod
    def key_value(self, key: Any) -> Value:
        """The value of a key that is its own."""

    @abstractmethod
    def runs_code(self, value: Any) -> bool:
        """Whether going through it may run code of the user's, or that of an iterator here."""

    @abstractmethod
    def same_or_equal(self, left: Any, right: Any) -> bool | None:
        """`left is right or left == right`, as containers compare their parts; None where code of the user's has to be run."""

    @abstractmethod
    def make_set(self, class_: type, items: list[Value]) -> SetValue:
        """`{*items}`, one added after the other."""

    @abstractmethod
    def add_to_set(self, target: SetValue, item: Value) -> None:
        """`target.add(item)`."""

    @abstractmethod
    def update_set(self, target: SetValue, iterable: Value, method: str = "update") -> None:
        """`target.update(iterable)` or one of its like."""

    @abstractmethod
    def as_set(self, value: Value) -> SetValue:
        """A constant frozenset as one whose elements are values."""

    @abstractmethod
    def elements_of_set(self, value: SetValue) -> list[Value]:
        """In the order of the table. Breaks where that is not known."""

    @abstractmethod
    def is_in_set(self, item: Value, container: Value) -> bool:
        """`item in container`."""

    @abstractmethod
    def compare_sets(self, sign: str, left: Value, right: Value) -> Any:
        """A comparison where one side is a set or a view of keys."""

    @abstractmethod
    def stepped(self, iterator: NativeIteratorValue) -> GeneratorValue:
        """What takes its steps. Breaks where it ended by an exception: C goes on then."""

    @abstractmethod
    def is_like_set(self, value: Value) -> bool:
        """Whether it is a set, a frozenset or a view of keys."""

    @abstractmethod
    def binary_of_sets(self, sign: str, left: Value, right: Value) -> Value:
        """`|`, `&`, `-`, `^` and `|=` and its like, where one side is a set or a view of keys."""

    @abstractmethod
    def call_cached(self, function: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """A function behind `functools.lru_cache`."""

    @abstractmethod
    def member_of(self, class_value: ObjectValue, args: list[Any], kwargs: dict[str, Any]) -> Value:
        """A call of an enumeration with the value of a member."""

    @abstractmethod
    def plain_of_member(self, value: Value) -> Value:
        """The number or string that a member of an `IntEnum` or its like is; other values as they are."""

    @abstractmethod
    def text_of_object(self, kind: str, value: Value) -> Any:
        """`str(value)` or `repr(value)` of an object, by its class's method."""

    @abstractmethod
    def is_object(self, value: Value) -> bool:
        """Whether a value is an instance of a class whose methods may be written in Python."""

    @abstractmethod
    def put(self, container: DictValue, key: Any, value: Value) -> None:
        """`container[key] = value`."""

    @abstractmethod
    def pairs_of(self, value: Any) -> list[tuple[Value, Value]]:
        """What `dict` makes of it: the pairs of a mapping, or those that it consists of."""
