"""Where an object that a segment uses comes from: how it is read again when the segment is entered.

Counterpart: torch/_dynamo/source.py Source and its subclasses
Differs: a source says in Python how it is read from its base, no bytecode is made of it. Roots are the slots and stacks of
frames, since a segment may begin anywhere, and objects that the segment keeps.
"""

from __future__ import annotations

import keyword
import re
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# What reading can raise when objects are not as they were, and conditions that divide by a size: the segment then does not fit.
READ_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, ZeroDivisionError)


class Source(ABC):
    """A way to an object. Equal sources lead to the same object within one entry into a segment."""

    __slots__ = ()

    @property
    @abstractmethod
    def name(self) -> str:
        """Its text in graphs, guards and messages, as upstream writes it: `L['x']`, `G['f']`, `L['self']._modules['lin']`."""

    @property
    def base(self) -> Source | None:
        """What it is read from; None for a root."""
        return None

    @abstractmethod
    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        """Python that reads it. `base`: the expression of the base; `constant`: gives a name to an object that is kept."""

    def __str__(self) -> str:
        return self.name

    def way(self) -> Iterator[Source]:
        """The sources it is read through, the root first, itself last."""
        if self.base is not None:
            yield from self.base.way()
        yield self


@dataclass(frozen=True, slots=True)
class SlotSource(Source):
    """A local variable of a frame, by number of the frame (0 is the lowest) and slot."""

    frame: int
    slot: int
    variable: str

    @property
    def name(self) -> str:
        return f"{_frame_name(self.frame)}['{self.variable}']"

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"slots[{self.slot}]" if self.frame == 0 else f"frames[{self.frame}].slots[{self.slot}]"


@dataclass(frozen=True, slots=True)
class StackSource(Source):
    """A value on a frame's stack, lowest first: what an expression that broke had worked out already."""

    frame: int
    index: int

    @property
    def name(self) -> str:
        return f"{_frame_name(self.frame)}['stack{self.index}']"

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"stack[{self.index}]" if self.frame == 0 else f"frames[{self.frame}].stack[{self.index}]"


@dataclass(frozen=True, slots=True, eq=False)
class KeptSource(Source):
    """An object that the segment keeps: a function that was called, its globals, a class."""

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


@dataclass(frozen=True, slots=True)
class GlobalSource(Source):
    """A global variable of a function, in the dict that the namespace leads to."""

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
    """`base.__dict__[attribute]`: of an object whose class has no say in it, where several are read."""

    @property
    def base(self) -> Source:
        return AttributeSource(self.of, "__dict__")

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}[{self.attribute!r}]"


@dataclass(frozen=True, slots=True)
class PlainAttributeSource(AttributeSource):
    """`object.__getattribute__(base, attribute)`: of an object whose class finds attributes by code of the user's."""

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(object.__getattribute__)}({base}, {self.attribute!r})"


@dataclass(frozen=True, slots=True)
class ItemSource(Source):
    """`base[key]` of a list, tuple or dict; the key is a constant."""

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
        """`d[1]`, `d[True]` and `d[1.0]` are one item of a dict, but not always of an object."""
        return (
            isinstance(other, ItemSource)
            and type(other.key) is type(self.key)
            and other.key == self.key
            and other.of == self.of
        )


@dataclass(frozen=True, slots=True)
class DictKeySource(Source):
    """The n-th key of a dict, for keys that are no constants."""

    of: Source
    index: int

    @property
    def name(self) -> str:
        return f"list({self.of.name}.keys())[{self.index}]"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"[*{base}.keys()][{self.index}]"


@dataclass(frozen=True, slots=True)
class CellSource(Source):
    """What is in a cell: of a frame's slot, or of a closure (`f.__closure__[0]`). Reading an empty one is a ValueError."""

    of: Source

    @property
    def name(self) -> str:
        return f"{self.of.name}.cell_contents"

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}.cell_contents"


@dataclass(frozen=True, slots=True)
class PlainItemsSource(Source):
    """What is in an object of a class that derives from dict, as a plain dict of its own: no code of the class runs."""

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
    """What is in a read-only view of a dict, as a dict of its own."""

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(dict)}({base})"


@dataclass(frozen=True, slots=True)
class ArrayTensorSource(Source):
    """A tensor over the memory of an array of numpy, or of a number of it: a new one whenever it is read."""

    of: Source

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def base(self) -> Source:
        return self.of

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{constant(torch.as_tensor)}({base})"


def class_source(object_: Any) -> Source:
    """To the class of an object, which its guards hold it to."""
    class_ = type(object_)
    return KeptSource(class_, class_.__qualname__)


def plain_items(object_: dict[Any, Any]) -> dict[Any, Any]:
    """The items of an object of a class that derives from dict, in its order."""
    class_: Any = OrderedDict if issubclass(type(object_), OrderedDict) else dict
    return dict(class_.items(object_))


@dataclass(frozen=True, slots=True)
class DimensionSource(Source):
    """A size, stride or the storage offset of a tensor."""

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
    """What an iterator over a list, tuple or range is still to give. Reading it takes nothing."""

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
    """How such an iterator would be made again: what it goes through, and where it is unless it has ended."""

    @property
    def name(self) -> str:
        return f"{self.of.name}.__reduce__()"

    def expression(self, base: str, constant: Callable[[Any], str]) -> str:
        return f"{base}.__reduce__()"


@dataclass(frozen=True, slots=True)
class ReferentSource(Source):
    """What a weak reference refers to: None where that is no more. Reading it runs no code of the user's."""

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
    """What an iterator over a list, tuple or range is still to give, as one of these."""
    _, (over,), *at = iterator.__reduce__()
    return over[at[0] :] if at and at[0] else over


@dataclass(frozen=True, slots=True)
class CachedCallSource(Source):
    """`base(*args, **kwargs)` of a function behind a cache that does nothing but give a constant for these constants.

    Code of the user's runs where the cache has it no more. Guards on all that this code reads come first: it runs as it did
    when it was captured, when it did nothing that can be seen.
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


def placeholder_name(source: Source) -> str:
    """The target of the graph input that is read from the source: `L_self_modules_lin_parameters_weight_`."""
    return re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9]", "_", source.name))


def _frame_name(frame: int) -> str:
    return "L" if frame == 0 else f"F[{frame}]"


@dataclass
class ReaderBuilder:
    """Straight-line Python in which each source is read once.

    The function's argument is `frames`; more lines (guards) may be put between.
    """

    lines: list[str] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    _names: dict[Source, str] = field(default_factory=dict)
    _constant_names: dict[int, str] = field(default_factory=dict)

    def read(self, source: Source) -> str:
        """The local variable that holds what the source leads to."""
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

    def function(self, result: str, *, name: str = "read", of_slots: bool = False) -> Callable[..., Any]:
        """A function of the frames that runs the lines and returns the expression `result`, or None where reading fails.

        of_slots: of slots and stack of the first frame instead, for sources that begin there.
        """
        body = "".join(f"        {line}\n" for line in [*self.lines, f"return {result}"])
        first = f"def {name}(slots, stack):\n"
        if not of_slots:
            first = f"def {name}(frames):\n    slots, stack = frames[0].slots, frames[0].stack\n"
        source = f"{first}    try:\n{body}    except READ_ERRORS:\n        return None\n"
        namespace: dict[str, Any] = {**self.constants, "READ_ERRORS": READ_ERRORS, "__builtins__": __builtins__}
        exec(compile(source, f"<{name} of a segment>", "exec"), namespace)
        made = namespace[name]
        made.source = source
        return made
