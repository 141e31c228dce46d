"""Functions, partial functions, closure cells and classes that are made in the segment.

Counterpart: torch/_dynamo/variables/functions.py NestedUserFunctionVariable, FunctoolsPartialVariable
"""

from __future__ import annotations

import builtins
import functools
import sys
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, Source
from refimpl.capture.interpreter.frame import UNBOUND
from refimpl.capture.values.bound import NativeMethodValue, bound_by_get
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.hashing import Member
from refimpl.capture.values.mapping import DictValue
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.value import TEXTS, Value, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_OF_FUNCTIONS = (
    "__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__", "__closure__", "__annotations__",
)  # fmt: skip
_MARKS_DOCUMENTATION, _IS_DOCUMENTED = sys.version_info >= (3, 13), 1 << 26  # a bit of `co_flags`
BUILD_CLASS = getattr(builtins, "__build_class__")


class FunctionValue(Value):
    """A function defined in the segment."""

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
        self.attributes: dict[str, Value] = {}  # assigned attributes, including `__name__` and `__doc__`

    def class_of(self) -> type:
        return FunctionType

    @property
    def equality_is_identity(self) -> bool:
        return True

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        if sign not in ("==", "!="):
            return super().compare(domain, sign, left, right)
        if isinstance(left, ConstantValue) or isinstance(right, ConstantValue):
            return ConstantValue(sign == "!=")
        if not (left.equality_is_identity and right.equality_is_identity):
            return super().compare(domain, sign, left, right)
        return domain.identical(left, right, sign == "!=")

    def hash_key(self, domain: SymbolicDomain) -> Any:
        return Member(self)

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return domain.enter_function(self, args, kwargs)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Value:
        return bound_by_get(domain, self, args, kwargs) if name == "__get__" else unsupported(f"method {name}", self)

    def load_attr(self, domain: SymbolicDomain, name: str) -> Value:
        if name in self.attributes:
            return self.attributes[name]
        match name:
            case "__name__":
                return ConstantValue(self.code.co_name)
            case "__qualname__":
                return ConstantValue(self.qualname or self.code.co_qualname)
            case "__code__":
                return ConstantValue(self.code)
            case "__module__" if type(self.globals.get("__name__")) is str:
                return ConstantValue(self.globals["__name__"])
            case "__get__":
                return NativeMethodValue(self, name)
            case "__annotations__":
                return self._named_annotations(domain)
            case "__doc__" if _MARKS_DOCUMENTATION and not self.code.co_flags & _IS_DOCUMENTED:
                return ConstantValue(None)
            case "__doc__":
                first = self.code.co_consts[0] if self.code.co_consts else None
                return ConstantValue(first if type(first) is str else None)
            case _ if not hasattr(FunctionType, name):
                raising(AttributeError)
            case _:
                unsupported(f"attribute {name}", self)

    def _named_annotations(self, domain: SymbolicDomain) -> Value:
        """The dict `__annotations__`, which is made when it is first asked for."""
        made = None if self.annotations is None else domain.state.realize(self.annotations)
        if made is None:
            made = DictValue({})
        elif isinstance(made, SequenceValue):
            pairs = DictValue({})
            for key, item in zip(made.items[::2], made.items[1::2], strict=True):
                pairs.put(domain, key, item)
            made = pairs
        elif not isinstance(made, DictValue):
            unsupported("attribute __annotations__", self)
        self.annotations = made
        return made

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool:
        return name in self.attributes or hasattr(FunctionType, name)

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> None:
        if name not in ("__name__", "__doc__") and hasattr(FunctionType, name):
            super().store_attr(domain, name, attribute)
        self.attributes[name] = attribute

    def set_part(self, domain: SymbolicDomain, which: str, value: Any) -> None:
        """Sets a part of a new function, as the bytecode does: "defaults", "kwdefaults", "annotations" or "closure"."""
        match which:
            case "defaults":
                self.defaults = value
            case "kwdefaults":
                self.keyword_defaults = domain.state.realize(value)
            case "annotations":
                self.annotations = value
            case "closure":
                self.closure = value
            case _:
                unsupported(which, self)

    def rebuilt(self, emitter: Any) -> str:
        # placeholders until the closure is set
        cells = "".join(f"{emitter.constant(CellType)}(), " for _ in self.code.co_freevars)
        closure = f"({cells})" if cells else "None"
        if self.closure is not None:
            closure = emitter.expression(self.closure)
        if (known := emitter.name_of(self)) is not None:
            return known  # rebuilding the closure has rebuilt the function, because one of its cells contains it
        made = f"{emitter.constant(FunctionType)}({emitter.constant(self.code)}, {emitter.constant(self.globals)}"
        name = emitter.named(self, f"{made}, None, None, {closure})")
        if self.qualname is not None:
            emitter.line(f"{name}.__qualname__ = {self.qualname!r}")
        if self.defaults is not None:
            emitter.line(f"{name}.__defaults__ = {emitter.expression(self.defaults)}")
        if self.keyword_defaults is not None:
            emitter.line(f"{name}.__kwdefaults__ = {emitter.expression(self.keyword_defaults)}")
        for attribute, content in self.attributes.items():
            emitter.line(f"setattr({name}, {attribute!r}, {emitter.expression(content)})")
        if self.annotations is not None:
            made = f"{emitter.constant(_annotations)}({emitter.expression(self.annotations)})"
            emitter.line(f"{name}.__annotations__ = {made}")
        return name


class LocalFunctionValue(FunctionValue):
    """A function of the program that another function made, as each call of it does again.

    Guards compare its code, not the object: the next call brings another function with the same code. Its defaults and its
    closure are read from it, and so are attributes of its own, which only one that is excluded from capture may have. Where the
    object itself matters, as in comparisons, it gets a guard too.
    """

    __slots__ = ("object",)

    def __init__(self, function: FunctionType, source: Source) -> None:
        super().__init__(function.__code__, function.__globals__, function.__qualname__)
        self.object = function
        self.source = source

    def hash_key(self, domain: SymbolicDomain) -> Any:
        assert self.source is not None
        domain.state.guard(GuardKind.ID, self.source, self.object)
        return self.object

    def load_attr(self, domain: SymbolicDomain, name: str) -> Value:
        assert self.source is not None
        written = domain.state.effects.attribute(self, name)
        if written is not None:
            return written
        if name in _OF_FUNCTIONS:
            return domain.state.wrap(getattr(self.object, name), AttributeSource(self.source, name))
        if name in self.object.__dict__:
            return domain.state.wrap(self.object.__dict__[name], AttributeSource(self.source, name))
        if self.object.__dict__ and not hasattr(FunctionType, name):
            domain.state.guard(GuardKind.WITHOUT, self.source, name)
        return super().load_attr(domain, name)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool:
        if domain.state.effects.attribute(self, name) is not None:
            return True
        if name not in self.object.__dict__ and self.object.__dict__ and not hasattr(FunctionType, name):
            assert self.source is not None
            domain.state.guard(GuardKind.WITHOUT, self.source, name)
        return name in self.object.__dict__ or super().has_attribute(domain, name)

    def guard_attribute(self, domain: SymbolicDomain, name: str) -> None:
        if name in self.object.__dict__:
            assert self.source is not None
            domain.state.guard(GuardKind.HAS, self.source, name)

    def text(self, domain: SymbolicDomain, kind: str) -> ConstantValue:
        return ConstantValue(TEXTS[kind](domain.state.real_of(self)))

    def format(self, domain: SymbolicDomain, spec: Any) -> ConstantValue:
        return ConstantValue(
            format(domain.state.real_of(self), "" if spec is None else domain.constant_of(spec, "a format"))
        )

    def store_attr(self, domain: SymbolicDomain, name: str, attribute: Any) -> None:
        if hasattr(FunctionType, name):
            unsupported(f"an assignment to attribute {name}", self)
        domain.state.effects.set_attribute(self, name, attribute)

    def set_part(self, domain: SymbolicDomain, which: str, value: Any) -> None:
        unsupported(which, self)


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

    def class_of(self) -> type:
        return functools.partial

    def hash_key(self, domain: SymbolicDomain) -> Any:
        return Member(self)

    def call(self, domain: SymbolicDomain, frame: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        return domain.call(frame, self.function, [*self.args, *args], {**self.keywords, **kwargs})

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        match name:
            case "func":
                return self.function
            case "args" | "keywords" if self.source is not None:
                found = getattr(domain.state.object_of(self), name)
                return domain.state.wrap(found, AttributeSource(self.source, name))
            case "args":
                return SequenceValue(tuple, list(self.args))
            case "keywords":
                return domain.named(self.keywords)
            case _:
                return super().load_attr(domain, name)

    def has_attribute(self, domain: SymbolicDomain, name: str) -> bool:
        """A partial function with attributes of its own has no value of this kind."""
        return hasattr(functools.partial(len), name)

    def rebuilt(self, emitter: Any) -> str:
        pairs = ", ".join(f"{name!r}: {emitter.expression(item)}" for name, item in self.keywords.items())
        named = f", **{{{pairs}}}" if pairs else ""
        args = "".join(f", {emitter.expression(arg)}" for arg in self.args)
        made = f"{emitter.constant(functools.partial)}({emitter.expression(self.function)}{args}{named})"
        return emitter.named(self, made)


class GetterValue(PartialValue):
    """`operator.itemgetter`, `attrgetter` or `methodcaller`. `function` is a Python function that does the same when called
    with `args` first.
    """

    __slots__ = ("class_", "written")

    def __init__(
        self, class_: type, function: Value, args: list[Value], keywords: dict[str, Value], source: Source | None = None
    ) -> None:
        super().__init__(function, args, keywords, source)
        self.class_ = class_
        self.written: tuple[list[Value], dict[str, Value]] = ([], {})  # the arguments of the class

    def class_of(self) -> type:
        return self.class_

    def load_attr(self, domain: SymbolicDomain, name: str) -> Any:
        unsupported(f"attribute {name}", self)

    def rebuilt(self, emitter: Any) -> str:
        args, keywords = self.written
        pairs = ", ".join(f"{name!r}: {emitter.expression(item)}" for name, item in keywords.items())
        return emitter.named(self, f"{emitter.constant(self.class_)}({emitter.listed([*args])}, **{{{pairs}}})")


class UnmadeClassValue(Value):
    """A class defined in the segment. The class statement runs when the segment ends."""

    __slots__ = ("bases", "body", "name")

    def __init__(self, body: FunctionValue, name: str, bases: list[Value]) -> None:
        super().__init__()
        self.body = body
        self.name = name
        self.bases = bases

    @property
    def kind(self) -> str:
        return "class that is defined here"

    def rebuilt(self, emitter: Any) -> str:
        parts = f"{emitter.expression(self.body)}, {self.name!r}, {emitter.listed(self.bases)}"
        if (known := emitter.name_of(self)) is not None:
            return known
        return emitter.named(self, f"{emitter.constant(BUILD_CLASS)}({parts})")


class CellValue(Value):
    """A closure cell. `content` is UNBOUND for an empty one."""

    __slots__ = ("content", "is_written")

    def __init__(self, content: Any = UNBOUND, source: Source | None = None) -> None:
        super().__init__(source)
        self.content = content
        self.is_written = False  # for a cell of the program: whether `content` replaces what the cell holds

    def rebuilt(self, emitter: Any) -> str:
        name = emitter.named(self, f"{emitter.constant(CellType)}()")
        if self.content is not UNBOUND:
            self.write_back(emitter, name, None)
        return name

    def write_back(self, emitter: Any, name: str, log: Any) -> None:
        is_empty = self.content is UNBOUND
        cell = f"{name}.cell_contents"
        emitter.line(f"del {cell}" if is_empty else f"{cell} = {emitter.expression(self.content)}")


def _annotations(pairs: Any) -> dict[Any, Any]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True)) if isinstance(pairs, tuple) else pairs
