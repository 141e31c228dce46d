"""What a frame holds while a segment is captured.

Counterpart: torch/_dynamo/variables/base.py VariableTracker and its subclasses
Differs: values carry no behaviour; the domain asks what they are. A value with a source was there before the segment: it is
read again from there, and may not be changed in place.
"""

from __future__ import annotations

from collections import defaultdict, deque
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from refimpl.capture.guards.sources import Source
from refimpl.capture.interpreter.frame import UNBOUND


class Value:
    """Anything. `source`: how the object is read when the segment is entered; None for what the segment makes."""

    __slots__ = ("source",)

    def __init__(self, source: Source | None = None) -> None:
        self.source = source

    @property
    def kind(self) -> str:
        """What breaks call it."""
        return type(self).__name__.removesuffix("Value").lower()


class UnreadValue(Value):
    """An object that nobody has looked at: there is no guard on it."""

    __slots__ = ("object", "way")

    def __init__(self, object_: Any, source: Source) -> None:
        super().__init__(source)
        self.way = source
        self.object = object_


class ConstantValue(Value):
    """A number, string, None, dtype, device and the like; equal objects are as good."""

    __slots__ = ("value",)

    def __init__(self, value: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.value = value

    @property
    def kind(self) -> str:
        return type(self.value).__name__


class TensorValue(Value):
    """A tensor: a node of the graph and a fake tensor that has its metadata.

    made_at: the instruction of the segment's first frame that made it; None for what was there before.
    """

    __slots__ = ("fake", "made_at", "node")

    def __init__(self, node: Node, fake: torch.Tensor, source: Source | None = None) -> None:
        super().__init__(source)
        self.node = node
        self.fake = fake
        self.made_at: int | None = None


class ArrayValue(Value):
    """An array of numpy: in the graph it is a tensor, a node of the graph and a fake tensor, and becomes an array after it."""

    __slots__ = ("fake", "is_scalar", "node")

    def __init__(
        self, node: Node, fake: torch.Tensor, source: Source | None = None, *, is_scalar: bool = False
    ) -> None:
        super().__init__(source)
        self.node = node
        self.fake = fake
        self.is_scalar = is_scalar  # a number of numpy, as most of what has no dimensions

    @property
    def kind(self) -> str:
        return "number of numpy" if self.is_scalar else "ndarray"


def class_of_array(value: ArrayValue) -> type:
    """That of arrays, or the one that a number of numpy has by its dtype."""
    return torch.empty(0, dtype=value.fake.dtype).numpy().dtype.type if value.is_scalar else np.ndarray


class NumberValue(Value):
    """A number that depends on sizes: a symbolic number and the node that gives it, once there is one."""

    __slots__ = ("node", "number")

    def __init__(self, number: Any, node: Node | None = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.number = number
        self.node = node


class ObjectValue(Value):
    """An object known by identity or type: a function, a class, a module, an instance of a class of the user's."""

    __slots__ = ("object",)

    def __init__(self, object_: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.object = object_

    @property
    def kind(self) -> str:
        return type(self.object).__name__


class InstanceValue(Value):
    """An object that the segment makes, of a class written in Python. `attributes`: what `__dict__` and slots hold.

    `inside`: the dict of one whose class derives from dict.
    """

    __slots__ = ("attributes", "class_", "inside")

    def __init__(self, class_: type, inside: DictValue | None = None) -> None:
        super().__init__()
        self.class_ = class_
        self.attributes: dict[str, Any] = {}
        self.inside = inside

    @property
    def kind(self) -> str:
        return self.class_.__name__


class ErrorValue(InstanceValue):
    """An exception that the segment makes. `args`: None where they are not known."""

    __slots__ = ("args", "cause", "raised_at")

    def __init__(self, class_: type, args: list[Any] | None) -> None:
        super().__init__(class_)
        self.args = args
        self.cause: Value | None = None  # of `raise error from cause`
        self.raised_at: int | None = (
            None  # offset in the segment's first frame, run again if it gets out; None: not raised yet
        )


class TracebackValue(Value):
    """What `__exit__` is given as a traceback: there is none, and nothing may look at it."""

    __slots__ = ("error",)

    def __init__(self, error: ErrorValue) -> None:
        super().__init__()
        self.error = error


class MethodValue(Value):
    """A function bound to a value."""

    __slots__ = ("function", "receiver")

    def __init__(self, function: Value, receiver: Value) -> None:
        super().__init__()
        self.function = function
        self.receiver = receiver


class NativeMethodValue(Value):
    """A method, written in C, of a tensor, a string, a list or another builtin kind, bound to a value."""

    __slots__ = ("name", "receiver")

    def __init__(self, receiver: Value, name: str) -> None:
        super().__init__()
        self.receiver = receiver
        self.name = name


class SuperValue(Value):
    """`super(class_, receiver)`."""

    __slots__ = ("class_", "receiver")

    def __init__(self, class_: type, receiver: Value) -> None:
        super().__init__()
        self.class_ = class_
        self.receiver = receiver


class SequenceValue(Value):
    """A tuple, a list, a torch.Size or a named tuple of values."""

    __slots__ = ("class_", "items")

    def __init__(self, class_: type, items: list[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.class_ = class_
        self.items = items

    @property
    def kind(self) -> str:
        return self.class_.__name__


class DictValue(Value):
    """A dict, OrderedDict or defaultdict whose keys are constants. `items`: by `domain.hash_key`, the key and its value."""

    __slots__ = ("class_", "items")

    def __init__(
        self, items: dict[Any, tuple[Value, Value]], source: Source | None = None, class_: type = dict
    ) -> None:
        super().__init__(source)
        self.items = items
        self.class_ = class_

    @property
    def kind(self) -> str:
        return self.class_.__name__


class DefaultDictValue(DictValue):
    """A defaultdict: `factory` is what gives the value of a key that is missing."""

    __slots__ = ("factory",)

    def __init__(self, items: dict[Any, tuple[Value, Value]], factory: Value, source: Source | None = None) -> None:
        super().__init__(items, source, defaultdict)
        self.factory = factory


class DequeValue(SequenceValue):
    """A deque."""

    __slots__ = ("maxlen",)

    def __init__(self, items: list[Value], maxlen: int | None, source: Source | None = None) -> None:
        super().__init__(deque, items, source)
        self.maxlen = maxlen


class SetValue(Value):
    """A set or frozenset. `real` holds what its elements are found by, in a table that was filled as the program's is.

    `values`: the elements by these keys. `steps`: how it is made, or what is done to one that was there; see `sets.py`.
    `order`: of one that was there and is unchanged. `is_read`: others are made of it as it is now, so that it must stay so.
    """

    __slots__ = ("class_", "is_ordered", "is_read", "order", "real", "steps", "values")

    def __init__(self, class_: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.class_ = class_
        self.real: Any = class_()
        self.values: dict[Any, Value] = {}
        self.steps: list[tuple[str, tuple[Any, ...]]] = []
        self.order: list[Any] | None = None
        self.is_ordered = True  # whether iterating over `real` gives the order
        self.is_read = False

    @property
    def kind(self) -> str:
        return self.class_.__name__


class PartialValue(Value):
    """`functools.partial(function, *args, **keywords)`."""

    __slots__ = ("args", "function", "keywords")

    def __init__(
        self, function: Value, args: list[Value], keywords: dict[str, Value], source: Source | None = None
    ) -> None:
        super().__init__(source)
        self.function = function
        self.args = args
        self.keywords = keywords


class FrozenDictValue(DictValue):
    """A dict as it was when the segment was entered: `__dict__` of an object, or what is inside of one. Never changed."""

    __slots__ = ()


class AttributesValue(FrozenDictValue):
    """`__dict__` of an object that the segment makes, as it is now."""

    __slots__ = ("owner",)

    def __init__(self, owner: InstanceValue) -> None:
        Value.__init__(self)
        self.owner = owner
        self.class_ = dict

    @property
    def items(self) -> dict[Any, tuple[Value, Value]]:
        """What the object has, by name."""
        return {name: (ConstantValue(name), value) for name, value in self.owner.attributes.items()}


class GetterValue(PartialValue):
    """`operator.itemgetter`, `attrgetter` or `methodcaller`: `function` does what it does, given its arguments first."""

    __slots__ = ("class_", "written")

    def __init__(
        self, class_: type, function: Value, args: list[Value], keywords: dict[str, Value], source: Source | None = None
    ) -> None:
        super().__init__(function, args, keywords, source)
        self.class_ = class_
        self.written: tuple[list[Value], dict[str, Value]] = ([], {})  # what the class was called with


class DictViewValue(Value):
    """`keys()`, `values()` or `items()` of a dict."""

    __slots__ = ("over", "which")

    def __init__(self, over: DictValue, which: str) -> None:
        super().__init__()
        self.over = over
        self.which = which

    def elements(self) -> list[Value]:
        """What it gives now."""
        match self.which:
            case "keys":
                return [key for key, _ in self.over.items.values()]
            case "values":
                return [value for _, value in self.over.items.values()]
            case _:
                return [SequenceValue(tuple, [key, value]) for key, value in self.over.items.values()]


class SliceValue(Value):
    """A slice of which a part is no constant."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Value, ...]) -> None:
        super().__init__()
        self.parts = parts


class IteratorValue(Value):
    """An iterator over a sequence, dict or range that the segment made. `position` is the number of elements taken."""

    __slots__ = ("is_exhausted", "items", "keys", "over", "position")

    def __init__(self, over: Value, items: list[Value]) -> None:
        super().__init__()
        self.over = over
        self.items = items  # of a list: the list's own, so that later changes are seen
        self.position = 0
        self.keys: list[Any] = []  # of a dict, when it began
        self.is_exhausted = False


class FoundIteratorValue(IteratorValue):
    """An iterator over a list, tuple or range that was there before. `position` counts what the segment takes.

    A list is not changed while it is under way.
    """

    __slots__ = ("of",)

    def __init__(self, items: list[Value], of: SequenceValue | None, source: Source) -> None:
        super().__init__(SequenceValue(tuple, items), items)
        self.of = of  # the list
        self.source = source


class ReversedValue(IteratorValue):
    """`reversed` of a list. The list is not changed while it is under way."""

    __slots__ = ("of",)

    def __init__(self, of: SequenceValue) -> None:
        items = of.items[::-1]
        super().__init__(SequenceValue(list, items), items)
        self.of = of


class CombinedIteratorValue(Value):
    """`enumerate` or `zip` over iterators that the segment made."""

    __slots__ = ("class_", "count", "parts")

    def __init__(self, class_: type, parts: list[Value], count: int = 0) -> None:
        super().__init__()
        self.class_ = class_
        self.parts = parts
        self.count = count  # the next number, of enumerate

    @property
    def kind(self) -> str:
        return self.class_.__name__


class GeneratorValue(Value):
    """A generator that the segment made. Its frame holds values, and is where the generator waits."""

    __slots__ = ("frame", "name", "qualname")

    def __init__(self, frame: Any, name: str, qualname: str) -> None:
        super().__init__()
        self.frame = frame
        self.name = name
        self.qualname = qualname


class RegionValue(Value):
    """A context manager of torch's that changes its state. `context`: what entering the real one gave, while it is open."""

    __slots__ = ("args", "class_", "context", "enter", "exit", "node")

    def __init__(self, class_: type, args: tuple[Any, ...], enter: Any, exit_: Any) -> None:
        super().__init__()
        self.class_ = class_
        self.args = args
        self.enter = enter
        self.exit = exit_
        self.context: Any = None
        self.node: Any = None

    @property
    def kind(self) -> str:
        return self.class_.__name__


class FunctionObjectValue(Value):
    """An instance of a class of `torch.autograd.Function`, which is good for nothing but its class's attributes."""

    __slots__ = ("class_",)

    def __init__(self, class_: type) -> None:
        super().__init__()
        self.class_ = class_


class NativeIteratorValue(Value):
    """An iterator of a class written in C (`map`, `itertools.islice`) that the segment made: it steps as a generator does."""

    __slots__ = ("class_", "generator", "rebuild")

    def __init__(self, class_: type, generator: GeneratorValue, rebuild: Any) -> None:
        super().__init__()
        self.class_ = class_
        self.generator = generator
        self.rebuild = rebuild  # of the generator's variables: the expression that makes it; see `lazy_iterators.py`

    @property
    def kind(self) -> str:
        return self.class_.__name__


class FunctionValue(Value):
    """A function that the segment defines."""

    __slots__ = ("annotations", "attributes", "closure", "code", "defaults", "globals", "keyword_defaults", "qualname")

    def __init__(self, code: Any, globals_: dict[str, Any], qualname: str | None) -> None:
        super().__init__()
        self.code = code
        self.globals = globals_
        self.qualname = qualname
        self.defaults: Value | None = None
        self.keyword_defaults: Value | None = None
        self.annotations: Value | None = None
        self.closure: Value | None = None
        self.attributes: dict[str, Value] = {}  # that were assigned, `__name__` and its like among them


class UnmadeClassValue(Value):
    """A class that the segment defines: what `class name(*bases)` with this body will make when the segment ends."""

    __slots__ = ("bases", "body", "name")

    def __init__(self, body: FunctionValue, name: str, bases: list[Value]) -> None:
        super().__init__()
        self.body = body
        self.name = name
        self.bases = bases

    @property
    def kind(self) -> str:
        return "class that is defined here"


class CellValue(Value):
    """A cell of a closure. `content` is UNBOUND for an empty one."""

    __slots__ = ("content", "is_written")

    def __init__(self, content: Any = UNBOUND, source: Source | None = None) -> None:
        super().__init__(source)
        self.content = content
        self.is_written = False  # of one that was there before: `content` is what it holds now
