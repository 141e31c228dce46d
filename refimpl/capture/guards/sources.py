"""Sources: from where a segment reads an object of the program again when it is entered.

Counterpart: torch/_dynamo/source.py Source and its subclasses
Differs: a source gives Python that reads it from its base; no bytecode is generated. The roots are slots and stack of a frame,
because a segment may begin anywhere, and objects that the segment keeps alive.
"""

from __future__ import annotations

import gc
import keyword
import random
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from refimpl._torch import function_mode_at
from refimpl.capture.public.numpy_interop import tensor_of_numpy

# Errors of reading a source that mean that the segment does not fit: an object has changed, or a condition divides by a size.
READ_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, ZeroDivisionError)


class Source(ABC):
    """Where an object is read from. Within one entry of a segment, equal sources give the same object."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """The source as text in graphs, guards and messages, in upstream's form: `L['x']`, `G['f']`,
        `L['self']._modules['lin']`.
        """

    @property
    def base(self) -> Source | None:
        """The source that it is read from; None for a root."""
        return None

    @abstractmethod
    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        """A Python expression that reads the object. `base`: the expression of the base; `constant`: names an object that the
        segment keeps.
        """

    def __str__(self) -> str:
        return self.name

    def way(self) -> Iterator[Source]:
        """The sources on the way to it, the root first, itself last."""
        if self.base is not None:
            yield from self.base.way()
        yield self


def slots_of(frame: int) -> str:
    """The variable of a reader that holds the slots of a frame."""
    return f"slots{frame or ''}"


def stack_of(frame: int) -> str:
    """The variable of a reader that holds the stack of a frame."""
    return f"stack{frame or ''}"


@dataclass(frozen=True, slots=True)
class SlotSource(Source):
    """A local variable, by the number of the frame (0 is the lowest) and of the slot."""

    frame: int
    slot: int
    variable: str

    @property
    def name(self) -> str:
        return f"{_frame_name(self.frame)}['{self.variable}']"

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{slots_of(self.frame)}[{self.slot}]"


@dataclass(frozen=True, slots=True)
class StackSource(Source):
    """A value on a frame's stack, counted from the bottom: an intermediate result of an expression in which the graph broke."""

    frame: int
    index: int

    @property
    def name(self) -> str:
        return f"{_frame_name(self.frame)}['stack{self.index}']"

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{stack_of(self.frame)}[{self.index}]"


def _frame_of(source: Source) -> int:
    """The number of the frame that the source reads; 0 for a source that reads none."""
    return source.frame if isinstance(source, (SlotSource, StackSource)) else 0


@dataclass(frozen=True, slots=True, eq=False)
class KeptSource(Source):
    """An object that the segment keeps alive: a function that was called, its globals, a class."""

    kept: Any
    text: str

    @property
    def name(self) -> str:
        return self.text

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return constant(self.kept)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeptSource) and other.kept is self.kept

    def __hash__(self) -> int:
        return id(self.kept)


class Draws:
    """The calls of functions of Python's `random` in a segment, in order. They are made when the segment is entered."""

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator
        self._calls: list[tuple[str, Sequence[Any], dict[str, Any]]] = []
        self._copy = random.Random()
        self._copy.setstate(generator.getstate())

    def example(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What the next call returns, from a copy of the generator."""
        return _as_tensor(getattr(self._copy, name)(*args, **kwargs))

    def add(self, name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> int:
        """Appends a call. Returns its index."""
        self._calls.append((name, args, kwargs))
        return len(self._calls) - 1

    def __call__(self) -> list[Any]:
        return [_as_tensor(getattr(self._generator, name)(*args, **kwargs)) for name, args, kwargs in self._calls]


def _as_tensor(drawn: Any) -> Any:
    """A number as a tensor, if one can hold it."""
    if type(drawn) is float:
        return torch.tensor(drawn, dtype=torch.float64)
    fits = type(drawn) is int and -(2**63) <= drawn < 2**63
    return torch.tensor(drawn, dtype=torch.int64) if fits else drawn


@dataclass(frozen=True, slots=True)
class DrawsSource(Source):
    """What the calls of Python's `random` return. No guard may read it: the numbers are drawn once, after all guards hold."""

    draws: Draws

    @property
    def name(self) -> str:
        return "random"

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(self.draws)}()"


@dataclass(frozen=True, slots=True)
class ModeSource(Source):
    """A mode that answers calls of torch's functions, by its place on the stack."""

    index: int

    @property
    def name(self) -> str:
        return f"function_mode_at({self.index})"

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(function_mode_at)}({self.index})"


@dataclass(frozen=True, slots=True)
class GlobalSource(Source):
    """A global variable, in the dict of the namespace."""

    namespace: Source
    variable: str

    @property
    def name(self) -> str:
        return f"G['{self.variable}']"

    @property
    def base(self) -> Source:
        return self.namespace

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}[{self.variable!r}]"


@dataclass(frozen=True, slots=True)
class AttributeSource(Source):
    """`base.attribute`. Not for properties: reading a source runs no code of the user's."""

    of: Source
    attribute: str

    @property
    def name(self) -> str:
        return f"{self.of.name}.{self.attribute}"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        if self.attribute.isidentifier() and not keyword.iskeyword(self.attribute):
            return f"{base}.{self.attribute}"
        return f"getattr({base}, {self.attribute!r})"


@dataclass(frozen=True, slots=True)
class OwnAttributeSource(AttributeSource):
    """`base.__dict__[attribute]`, which bypasses the class."""

    @property
    def base(self) -> Source:
        return AttributeSource(self.of, "__dict__")

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}[{self.attribute!r}]"


@dataclass(frozen=True, slots=True)
class PlainAttributeSource(AttributeSource):
    """`object.__getattribute__(base, attribute)`, for a class with its own `__getattribute__`."""

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(object.__getattribute__)}({base}, {self.attribute!r})"


@dataclass(frozen=True, slots=True)
class ItemSource(Source):
    """`base[key]` of a list, tuple or dict, with a constant key."""

    of: Source
    key: Any

    @property
    def name(self) -> str:
        return f"{self.of.name}[{self.key!r}]"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        is_literal = type(self.key) in (int, str, bool, type(None))
        return f"{base}[{self.key!r}]" if is_literal else f"{base}[{constant(self.key)}]"

    def __hash__(self) -> int:
        return hash((self.of, type(self.key), self.key))

    def __eq__(self, other: object) -> bool:
        """`d[1]`, `d[True]` and `d[1.0]` are the same item of a dict, but may differ for another object."""
        return (
            isinstance(other, ItemSource)
            and type(other.key) is type(self.key)
            and other.key == self.key
            and other.of == self.of
        )


@dataclass(frozen=True, slots=True)
class DictListSource(Source):
    """A list of the keys or of the items of a dict, which a reader makes once for all that it reads out of it."""

    of: Source
    which: str  # "keys" or "values"

    @property
    def name(self) -> str:
        return f"list({self.of.name}.{self.which}())"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"[*{base}.{self.which}()]"


@dataclass(frozen=True, slots=True)
class DictKeySource(Source):
    """The n-th key of a dict, for keys that are no constants."""

    of: Source
    index: int
    which: ClassVar[str] = "keys"

    @property
    def name(self) -> str:
        return f"{self.base.name}[{self.index}]"

    @property
    def base(self) -> Source:
        return DictListSource(self.of, self.which)

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}[{self.index}]"


@dataclass(frozen=True, slots=True)
class DictPlaceSource(DictKeySource):
    """The item of the n-th key of a dict, for keys that are no constants."""

    which: ClassVar[str] = "values"


@dataclass(frozen=True, slots=True)
class CellSource(Source):
    """The content of a cell: of a frame's slot, or of a closure (`f.__closure__[0]`). Reading an empty cell raises ValueError."""

    of: Source

    @property
    def name(self) -> str:
        return self.of.name if isinstance(self.of, SlotSource) else f"{self.of.name}.cell_contents"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}.cell_contents"


@dataclass(frozen=True, slots=True)
class PlainItemsSource(Source):
    """The items of an object of a dict subclass, as a new plain dict. No code of the class runs."""

    of: Source

    @property
    def name(self) -> str:
        return f"dict({self.of.name})"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(plain_items)}({base})"


@dataclass(frozen=True, slots=True)
class PlainMappingSource(PlainItemsSource):
    """The items of a mappingproxy, as a new dict."""

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(dict)}({base})"


@dataclass(frozen=True, slots=True)
class BehindProxySource(PlainItemsSource):
    """The dict behind a mappingproxy."""

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(gc.get_referents)}({base})[0]"


@dataclass(frozen=True, slots=True)
class MadeTensorSource(Source):
    """A new tensor that a function makes of a value of the program that is no tensor."""

    of: Source
    make: ClassVar[Callable[[Any], torch.Tensor]]

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(type(self).make)}({base})"


@dataclass(frozen=True, slots=True)
class ArrayTensorSource(MadeTensorSource):
    """A new tensor that shares memory with a numpy array or scalar."""

    make = staticmethod(tensor_of_numpy)


def float_tensor(number: float) -> torch.Tensor:
    """A float as a tensor of one element, whatever the default device is."""
    return torch.tensor(number, dtype=torch.float64, device="cpu")


@dataclass(frozen=True, slots=True)
class FloatTensorSource(MadeTensorSource):
    """A new tensor that holds a float: the form in which a graph takes a float that is a symbol."""

    make = staticmethod(float_tensor)


def class_source(object_: Any) -> Source:
    """The source of an object's class, which a guard on the object's type covers."""
    class_ = type(object_)
    return KeptSource(class_, class_.__qualname__)


def plain_items(object_: Any) -> Any:
    """The items of an object of a subclass of dict, list or tuple, in order: a dict or a list."""
    for base in (list, tuple):
        if issubclass(type(object_), base):
            return [*base.__iter__(object_)]
    class_: Any = OrderedDict if issubclass(type(object_), OrderedDict) else dict
    return dict(class_.items(object_))


@dataclass(frozen=True, slots=True)
class DimensionSource(Source):
    """A size, a stride or the storage offset of a tensor."""

    of: Source
    which: str  # "size", "stride" or "storage_offset"
    dim: int | None = None

    @property
    def name(self) -> str:
        return self.expression(self.of.name, repr)

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}.{self.which}()" if self.dim is None else f"{base}.{self.which}()[{self.dim}]"


@dataclass(frozen=True, slots=True)
class RestSource(Source):
    """The remaining items of an iterator over a list, tuple or range. Reading it does not advance the iterator."""

    of: Source

    @property
    def name(self) -> str:
        return f"rest({self.of.name})"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(items_ahead)}({base})"


@dataclass(frozen=True, slots=True)
class ReducedSource(RestSource):
    """`iterator.__reduce__()`: the container and the position, unless the iterator has ended."""

    @property
    def name(self) -> str:
        return f"{self.of.name}.__reduce__()"

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}.__reduce__()"


@dataclass(frozen=True, slots=True)
class ReferentSource(Source):
    """The object of a weak reference; None if it is gone. Reading it runs no code of the user's."""

    of: Source

    @property
    def name(self) -> str:
        return f"{self.of.name}()"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}()"


def items_ahead(iterator: Any) -> Sequence[Any]:
    """The remaining items of an iterator over a list, tuple or range."""
    _, (over,), *at = iterator.__reduce__()
    return over[at[0] :] if at and at[0] else over


@dataclass(frozen=True, slots=True)
class CachedCallSource(Source):
    """`base(*args, **kwargs)` of a cached function that returned a constant for constant arguments.

    If the cache has dropped the entry, reading it runs code of the user's. Guards on everything that this code reads come
    first, so it runs as during capture, where it had no visible effect.
    """

    of: Source
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...]

    @property
    def name(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs)]
        return f"{self.of.name}({', '.join(given)})"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}(*{constant(self.args)}, **{constant(dict(self.kwargs))})"


@dataclass(frozen=True, slots=True)
class FactsSource(Source):
    """`facts(base)`: what a function of torch or of a registration tells about an object."""

    of: Source
    facts: Callable[[Any], Any]

    @property
    def name(self) -> str:
        return f"{getattr(self.facts, '__name__', 'facts')}({self.of.name})"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(self.facts)}({base})"


def placeholder_name(name: str) -> str:
    """The target of the placeholder for the source of this name: `L_self_modules_lin_parameters_weight_`."""
    return re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9]", "_", name))


def _frame_name(frame: int) -> str:
    return "L" if frame == 0 else f"F[{frame}]"


@dataclass
class ReaderBuilder:
    """Builds straight-line Python that reads each source once.

    The function's argument is `frames`. Other lines, such as guards, may be added between.
    """

    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    _names: dict[Source, str] = field(default_factory=dict)
    _constant_names: dict[int, str] = field(default_factory=dict)
    _tuple_names: dict[tuple[str, ...], str] = field(default_factory=dict)

    def read(self, source: Source) -> str:
        """The local variable that holds the source's object."""
        known = self._names.get(source)
        if known is None:
            base = "" if source.base is None else self.read(source.base)
            expression = source.expression(base, self.constant)
            known = self._names[source] = f"v{len(self._names)}"
            self.lines.append(f"{known} = {expression}")
        return known

    def constant(self, kept: Any) -> str:
        """A global name of the function for an object."""
        name = self._constant_names.get(id(kept))
        if name is None:
            name = self._constant_names[id(kept)] = f"c{len(self._constant_names)}"
            self.constants[name] = kept
        return name

    def tuple_of(self, values: Sequence[str]) -> str:
        """The local variable that holds a tuple of local variables, which is made once."""
        known = self._tuple_names.get(tuple(values))
        if known is None:
            known = self._tuple_names[tuple(values)] = f"t{len(self._tuple_names)}"
            self.lines.append(f"{known} = ({''.join(f'{value}, ' for value in values)})")
        return known

    def function(self, result: str, *, name: str = "read", frames: int | None = None) -> Callable[..., Any]:
        """A function of the frames that runs the lines and returns the expression `result`, or None where reading a source
        fails.

        frames: take the slots and the stack of each of so many frames, the lowest frame's first, instead of the frames.
        """
        body = "".join(f"        {line}\n" for line in [*self.lines, f"return {result}"])
        if frames is None:
            unpacked = "".join(
                f"    {slots_of(number)}, {stack_of(number)} = frames[{number}].slots, frames[{number}].stack\n"
                for number in range(1 + max(map(_frame_of, self._names), default=0))
            )
            first = f"def {name}(frames):\n{unpacked}"
        else:
            parameters = ", ".join(f"{slots_of(number)}, {stack_of(number)}" for number in range(frames))
            first = f"def {name}({parameters}):\n"
        source = f"{first}    try:\n{body}    except READ_ERRORS:\n        return None\n"
        namespace: dict[str, Any] = {**self.constants, "READ_ERRORS": READ_ERRORS, "__builtins__": __builtins__}
        exec(compile(source, f"<{name} of a segment>", "exec"), namespace)
        made = namespace[name]
        made.source = source
        return made
