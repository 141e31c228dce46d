"""What the program's objects and objects made in the segment share: special methods of their class, and what is inside of an
object whose class derives from dict, list or tuple.

Counterpart: torch/_dynamo/variables/user_defined.py UserDefinedObjectVariable, UserDefinedDictVariable
Differs: for a class that derives from dict or OrderedDict, methods written in C act on the items, a DictValue; for one that
derives from list or tuple, on an InsideValue. A change of the items of one of the program's objects is made by the methods of
dict and list themselves after the graph, so that it runs no code of the class twice.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict, defaultdict
from types import FunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import TYPE_CHECKING, Any

import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.guards.guard_list import GuardKind
from refimpl.capture.guards.sources import AttributeSource, Source
from refimpl.capture.values import polyfills
from refimpl.capture.values.bound import MethodValue
from refimpl.capture.values.classes import MISSING, in_mro, is_named_tuple, is_struct_sequence
from refimpl.capture.values.constant import ConstantValue
from refimpl.capture.values.mapping import DictValue
from refimpl.capture.values.sequence import SequenceValue
from refimpl.capture.values.value import Value, raising, unsupported

if TYPE_CHECKING:
    from refimpl.capture.symbolic_execution.symbolic_domain import SymbolicDomain

_BASES = (OrderedDict, dict)
_SEQUENCES = (list, tuple)
_READING_SEQUENCES = frozenset(["index", "count", "copy", "__getitem__", "__contains__", "__len__", "__iter__"])
_OF_SEQUENCES = frozenset(
    ["append", "extend", "insert", "pop", "reverse", "copy", "index", "count", "remove", "sort", "clear"]
)
_READING = frozenset(
    ["get", "keys", "values", "items", "copy", "__getitem__", "__contains__", "__len__", "__iter__", "__init__"]
)
_CHANGING = frozenset(
    ["pop", "setdefault", "update", "clear", "move_to_end", "popitem", "__setitem__", "__delitem__"]
)  # fmt: skip
_SETTERS = ("__setitem__", "__delitem__")
_CALLING_SETTERS = (
    "pop",
    "popitem",
    "setdefault",
    "update",
    "__init__",
)  # of OrderedDict; those of dict call no other method
_TEXTS = {"s": ("__str__", "__repr__"), "r": ("__repr__",)}
_UNARY = {"-": "__neg__", "+": "__pos__", "~": "__invert__"}


class ProgramObject(Value):
    """An object of a class that may have methods written in Python."""

    __slots__ = ()

    @abstractmethod
    def way_to_class(self) -> Source:
        """The source of its class."""

    def class_of_operand(self) -> type:
        return self.class_of()

    # ---------------------------------------------------------------------------------------- methods of its class

    def special(self, domain: SymbolicDomain, name: str) -> MethodValue | None:
        found = in_mro(self.class_of(), name)
        if not isinstance(found, FunctionType):
            return None
        return MethodValue(domain.state.wrap(found, AttributeSource(self.way_to_class(), name)), self)

    def call_special(self, domain: SymbolicDomain, name: str, args: list[Value]) -> Any:
        method = self.special(domain, name)
        if method is None:
            return self.call_native_special(domain, name, args)
        return domain.enter_function(method.function, [self, *args], {})

    def call_native_special(self, domain: SymbolicDomain, name: str, args: list[Value]) -> Any:
        """Calls a special method written in C. Only methods of dict, list and tuple are known."""
        if not self._is_native(name):
            unsupported(name, self)
        given = self.call_method_inside(domain, name, args, {})
        return None if name in ("__setitem__", "__delitem__") else given

    def _is_native(self, name: str) -> bool:
        return self.has_inside and is_native_method(in_mro(self.class_of(), name), self.class_of())

    def truth(self, domain: SymbolicDomain) -> Any:
        class_ = self.class_of()
        if hasattr(class_, "__bool__"):
            return self._by_python(domain, polyfills.truth_by, "__bool__")
        if not hasattr(class_, "__len__"):
            for name in ("__bool__", "__len__"):
                domain.state.guard(GuardKind.WITHOUT, self.way_to_class(), name)
            return True
        length = self._by_python(domain, polyfills.truth_by_length, "__len__")
        return bool(length.value) if isinstance(length, ConstantValue) else length

    def _by_python(self, domain: SymbolicDomain, polyfill: Any, name: str, *more: Value) -> Any:
        """A special method, by a polyfill that also checks its result where the method is written in Python."""
        method = self.special(domain, name)
        if method is None:
            return self.call_native_special(domain, name, [])
        return domain.enter_polyfill(polyfill, [method.function, self, *more])

    def as_number(self, domain: SymbolicDomain, kind: type) -> Any:
        """`int(value)`, `float(value)` or `complex(value)` by a special method written in Python."""
        name = f"__{kind.__name__}__"
        of_class = f"{self.class_of().__name__}." if kind is float else ""
        returned = ConstantValue(f"{of_class}{name} returned non-{kind.__name__}")
        return self._by_python(domain, polyfills.number_by, name, domain.object(kind), returned)

    def hashed(self, domain: SymbolicDomain) -> Any:
        """`hash(value)` by a special method written in Python."""
        return self._by_python(domain, polyfills.hash_by, "__hash__")

    def unary(self, domain: SymbolicDomain, sign: str) -> Any:
        return self.call_special(domain, _UNARY[sign], []) if self.is_object else super().unary(domain, sign)

    def binary(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        natively = _by_what_is_inside(domain, sign, left, right)
        if natively is not None:
            return natively
        if self.is_object:
            return domain.binary_of_objects(sign, left, right)
        return super().binary(domain, sign, left, right)

    def compare(self, domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
        pair = [_compared_natively(domain, sign, each) for each in (left, right)]
        if all(each is not None for each in pair):
            return domain.compare(sign, *pair)
        if self.is_object:
            return domain.compare_objects(sign, left, right)
        return super().compare(domain, sign, left, right)

    def text(self, domain: SymbolicDomain, kind: str) -> Any:
        return self._text_of_class(domain, kind) if self.is_object else super().text(domain, kind)

    def _text_of_class(self, domain: SymbolicDomain, kind: str) -> Any:
        for name in _TEXTS.get(kind, ()):
            found = in_mro(self.class_of(), name)
            if isinstance(found, FunctionType):
                return self._by_python(domain, polyfills.text_by, name, ConstantValue(name))
            if any(found is base.__dict__.get(text) for base in (int, str, float) for text in ("__str__", "__repr__")):
                return domain.convert(kind, self.plain_of_member())
            if found is not object.__str__:
                break
        unsupported({"s": "str()", "r": "repr()"}.get(kind, "ascii()"), self)

    def format(self, domain: SymbolicDomain, spec: Any) -> Any:
        if not self.is_object:
            return super().format(domain, spec)
        given = ConstantValue("") if spec is None else domain.state.realize(spec)
        if self.special(domain, "__format__") is not None:
            return self._by_python(domain, polyfills.format_by, "__format__", given)
        class_, plain = self.class_of(), self.plain_of_member()
        if any(class_.__format__ is base.__format__ for base in (int, str, float)) and plain is not self:
            if not domain.constant_of(given, "a format"):
                return self._text_of_class(domain, "s")  # without a specification they call `str`
            return domain.folded(format, [plain, given], {})
        if class_.__format__ is not object.__format__ or domain.constant_of(given, "a format"):
            unsupported("format()", self)
        return self._text_of_class(domain, "s")

    # ------------------------------------------------------------------------------------------------ what is in it

    def length(self, domain: SymbolicDomain) -> Any:
        return self._by_python(domain, polyfills.length_by, "__len__")

    def get_item(self, domain: SymbolicDomain, key: Value) -> Any:
        return self.call_special(domain, "__getitem__", [domain.known_key(key)])

    def set_item(self, domain: SymbolicDomain, key: Value, item: Any) -> Any:
        return self.call_special(domain, "__setitem__", [domain.known_key(key), item])

    def delete_item(self, domain: SymbolicDomain, key: Value) -> Any:
        return self.call_special(domain, "__delitem__", [key])

    def contains(self, domain: SymbolicDomain, item: Value, inverted: bool) -> Any:
        wanted = ConstantValue(not inverted)
        if self.has_native_inside("__contains__"):
            return self.inside_of(domain).contains(domain, item, inverted)
        method = method_of_class(domain, self, "__contains__")
        if method is not None:
            return domain.enter_polyfill(polyfills.contained_by, [method, self, item, wanted])
        if not self.runs_code(domain):
            unsupported("`in`", self)
        return domain.enter_polyfill(polyfills.contained, [self, item, wanted])

    def runs_code(self, domain: SymbolicDomain) -> bool:
        return self.special(domain, "__iter__") is not None

    def elements(self, domain: SymbolicDomain) -> list[Value]:
        return (
            self.inside_of(domain).elements(domain) if self.has_native_inside("__iter__") else super().elements(domain)
        )

    def iterate(self, domain: SymbolicDomain) -> Any:
        return self._by_python(domain, polyfills.iterated_by, "__iter__")

    # ------------------------------------------------------------------------------------------ arguments of operators

    def fields_of(self, state: Any) -> dict[str, Value] | None:
        """The fields of an instance of a frozen dataclass, as its generated `__init__` takes them; None for other objects."""
        return None

    def fake_of_fields(self, state: Any, what: str) -> Any:
        """An instance with fakes in its fields. Breaks the graph for an object of another class."""
        fields = self.fields_of(state)
        if fields is None:
            raise GraphBreak("not_a_graph_argument", what=self.kind)
        return self.class_of()(**{name: state.fake_of(value, what) for name, value in fields.items()})

    def node_of_fields(self, state: Any) -> Any:
        """A node that makes the instance."""
        fields = self.fields_of(state)
        if fields is None:
            raise GraphBreak("not_a_graph_argument", what=self.kind)
        given = {name: state.argument_of(value) for name, value in fields.items()}
        return state.graph.call("call_function", self.class_of(), (), given, self.fake_of_fields(state, self.kind))

    # --------------------------------------------------------------------------------------------- what is inside

    @property
    @abstractmethod
    def has_inside(self) -> bool:
        """Whether its class derives from dict, list or tuple, and the items are known."""

    @abstractmethod
    def inside_of(self, domain: SymbolicDomain) -> DictValue | SequenceValue:
        """The items of an object whose class derives from dict, list or tuple."""

    @property
    def keeps_inside(self) -> bool:
        """Whether the items can only be read."""
        return False

    def has_native_inside(self, name: str) -> bool:
        """Whether this method is that of the builtin class itself."""
        return self._is_native(name)

    def call_method(
        self, domain: SymbolicDomain, frame: Any, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if self.has_inside:
            return self.call_method_inside(domain, name, args, kwargs)
        return super().call_method(domain, frame, name, args, kwargs)

    def call_method_inside(self, domain: SymbolicDomain, name: str, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """`dict.name(self, ...)`, or of list or tuple."""
        inside = self.inside_of(domain)
        if isinstance(inside, SequenceValue):
            return self._call_method_of_sequence(domain, inside, name, args, kwargs)
        if name not in _READING and (name not in _CHANGING or self.keeps_inside):
            unsupported(f"method {name}", self)
        if inside.builtin_class() is OrderedDict and self._is_called_by_ordered_dict(name):
            unsupported(f"method {name}", self)
        match name:
            case "__init__":
                inside.update(domain, [*plain_dict_of(domain, args, kwargs).items.values()])
                return ConstantValue(None)
            case "__getitem__" | "__setitem__" | "__delitem__" | "__contains__" | "__len__" | "__iter__" if kwargs:
                raise GraphBreak("op_raises_on_fake", what=name, error="TypeError")
            case "__getitem__" if (
                hasattr(self.class_of(), "__missing__") and domain.hash_key(args[0]) not in inside.items
            ):
                return self.call_special(domain, "__missing__", args)
            case "__getitem__":
                return domain.get_item(inside, *args)
            case "__setitem__":
                domain.set_item(inside, *args)
                return ConstantValue(None)
            case "__delitem__":
                domain.delete_item(inside, *args)
                return ConstantValue(None)
            case "__contains__":
                return domain.contains(args[0], inside, False)
            case "__len__":
                return ConstantValue(len(inside.items))
            case "__iter__":
                return inside.iterate(domain)
            case _:
                return inside.call_method(domain, None, name, args, kwargs)

    def _is_called_by_ordered_dict(self, name: str) -> bool:
        """Whether a method of OrderedDict itself calls the object's class, for a copy, or one of its methods."""
        own = [each for each in _SETTERS if not is_native_method(in_mro(self.class_of(), each), self.class_of())]
        return name == "copy" or (bool(own) and name in _CALLING_SETTERS)

    def _call_method_of_sequence(
        self, domain: SymbolicDomain, inside: SequenceValue, name: str, args: list[Any], kwargs: dict[str, Any]
    ) -> Any:
        if self.keeps_inside and name not in _READING_SEQUENCES:
            unsupported(f"method {name}", self)
        match name, args:
            case "__init__", [] if not kwargs:
                inside.items.clear()
            case "__init__", [iterable] if not kwargs and not domain.runs_code(iterable):
                inside.items[:] = domain.elements(iterable)
            case "__getitem__", [key]:
                return domain.get_item(inside, key)
            case "__setitem__", [key, item]:
                domain.set_item(inside, key, item)
            case "__delitem__", [key]:
                domain.delete_item(inside, key)
            case "__contains__", [item]:
                return domain.contains(item, inside, False)
            case "__len__", []:
                return ConstantValue(len(inside.items))
            case "__iter__", []:
                return inside.iterate(domain)
            case _ if name in _OF_SEQUENCES:
                return inside.call_method(domain, None, name, args, kwargs)
            case _:
                unsupported(f"method {name}", self)
        return ConstantValue(None)


class InsideValue(SequenceValue):
    """The items of an object whose class derives from list or tuple."""

    __slots__ = ("owner",)

    def __init__(self, class_: type, items: list[Value], owner: ProgramObject) -> None:
        super().__init__(class_, items)
        self.owner = owner

    @property
    def changed_source(self) -> Source | None:
        return self.owner.source

    def rebuilt(self, emitter: Any) -> str:
        """The expression of the object itself: an iterator over its items is rebuilt as an iterator over the object."""
        if not is_native_method(in_mro(self.owner.class_of(), "__iter__"), self.owner.class_of()):
            raise GraphBreak("cannot_rebuild", kind=f"part of a {self.owner.kind}")
        return emitter.expression(self.owner)

    def write_back(self, emitter: Any, name: str, log: Any) -> None:
        """Overrides SequenceValue: the class may have a `__setitem__` of its own."""
        emitter.line(f"{emitter.constant(list.__setitem__)}({name}, slice(None), [{emitter.listed(self.items)}])")


class InsideDictValue(DictValue):
    """The items of one of the program's objects whose class derives from dict."""

    __slots__ = ("owner",)

    def __init__(self, items: dict[Any, tuple[Value, Value]], class_: type, owner: ProgramObject) -> None:
        super().__init__(items, None, class_)
        self.owner = self.holder = owner

    @property
    def changed_source(self) -> Source | None:
        return self.owner.source

    def copy(self) -> DictValue:
        return DictValue(dict(self.items))

    def rebuilt(self, emitter: Any) -> str:
        raise GraphBreak("cannot_rebuild", kind=f"part of a {self.owner.kind}")

    def method_written(self, emitter: Any, name: str, method: str, *args: str) -> str:
        """Overrides DictValue: the class may have a method of its own."""
        return f"{emitter.constant(getattr(self.builtin_class(), method))}({', '.join((name, *args))})"


def _by_what_is_inside(domain: SymbolicDomain, sign: str, left: Value, right: Value) -> Any:
    """`left + right` and the like by list or tuple itself; None where a class has a method of its own, or for other operands."""
    stem = {"+": "add", "*": "mul"}.get(sign.removesuffix("="))
    sides = [_sequence_of(domain, each) for each in (left, right)]
    if stem is None or not any(isinstance(each, InsideValue) for each in sides):
        return None
    first, second = (each if inside is None else inside for each, inside in zip((left, right), sides, strict=True))
    is_changed = sign in ("+=", "*=") and isinstance(first, SequenceValue) and first.class_ is list
    if is_changed and isinstance(left, ProgramObject) and left.keeps_inside:
        return None
    names = (f"__{stem}__", f"__r{stem}__", *([f"__i{stem}__"] if is_changed else []))
    if not all(_is_native_or_missing(each, name) for each in (left, right) for name in names):
        return None
    if not isinstance(first, (SequenceValue, ConstantValue)) or not isinstance(second, (SequenceValue, ConstantValue)):
        return None
    domain.binary(sign, first, second) if is_changed else None
    return left if is_changed else domain.binary(sign, first, second)


def _sequence_of(domain: SymbolicDomain, value: Value) -> SequenceValue | None:
    """The value if it is a list or tuple, or what is inside of it; None for others."""
    if isinstance(value, ProgramObject) and value.has_inside:
        inside = value.inside_of(domain)
        return inside if isinstance(inside, SequenceValue) else None
    return value if isinstance(value, SequenceValue) and value.class_ in _SEQUENCES else None


def _is_native_or_missing(value: Value, name: str) -> bool:
    found = in_mro(value.class_of_operand(), name)
    return not value.is_object or found is MISSING or is_native_method(found, value.class_of_operand())


def _compared_natively(domain: SymbolicDomain, sign: str, value: Value) -> SequenceValue | None:
    """The items to compare; None for an object whose class compares otherwise than list and tuple."""
    names = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
    return _sequence_of(domain, value) if _is_native_or_missing(value, f"__{names[sign]}__") else None


def method_of_class(domain: SymbolicDomain, value: Value, name: str, *, is_first: bool = False) -> Value | None:
    """The Python function that the object's class has under the name, or None. Breaks the graph for a method written in C.

    is_first: whether Python calls what it finds before any other method, so that None there raises TypeError.
    """
    if not value.is_object:
        return None
    found = in_mro(value.class_of_operand(), name)
    if found is None and is_first:
        raising(TypeError)
    if found is MISSING or found is None:
        return None
    method = value.special(domain, name)
    return method.function if method is not None else unsupported(name, value)


def is_mapping(domain: SymbolicDomain, value: Any, taker: type) -> bool:
    """Whether `dict(value)` and `d.update(value)` ask this object for its keys, and for the item of each.

    Others are iterated over. A mapping whose class runs no code for that gives its items by `items_of_mapping`.
    taker: the class of the dict that takes the items.
    """
    if not isinstance(value, ProgramObject) or items_of_mapping(domain, value, taker) is not None:
        return False
    if isinstance(in_mro(value.class_of(), "keys"), (FunctionType, MethodDescriptorType)):
        return True
    found = domain.has_attribute(value, "keys")
    return unsupported("keys()", value) if found is None else found


def items_of_mapping(domain: SymbolicDomain, value: Any, taker: type) -> DictValue | None:
    """What `dict(value)` takes of an object whose class derives from dict, if no code of the class runs; None for others.

    A dict copies another one as it is if its class iterates as dict does. Where one of the two is an OrderedDict, methods are
    called.
    """
    if not isinstance(value, ProgramObject) or not value.has_inside:
        return None
    inside = value.inside_of(domain)
    if not isinstance(inside, DictValue):
        return None
    is_copied = OrderedDict not in (inside.builtin_class(), taker)
    asked = ("__iter__",) if is_copied else ("__iter__", "keys", "__getitem__")
    return inside if all(value.has_native_inside(name) for name in asked) else None


def dict_base(class_: type) -> type | None:
    """The builtin dict from which the class derives, if it does not also derive from another C class."""
    base = next((base for base in _BASES if issubclass(class_, base)), None)
    is_plain = class_ not in (OrderedDict, dict) and not issubclass(class_, defaultdict)
    return base if is_plain and class_.__new__ is dict.__new__ else None


def sequence_base(class_: type) -> type | None:
    """list or tuple, if the class derives from it and adds nothing in C."""
    base = next((base for base in _SEQUENCES if issubclass(class_, base)), None)
    is_plain = class_ not in _SEQUENCES and not is_named_tuple(class_) and not is_struct_sequence(class_)
    return base if is_plain and class_ is not torch.Size else None


def is_native_method(found: Any, class_: type) -> bool:
    """Whether a class attribute is a method of the builtin dict, list or tuple that the class derives from."""
    if type(found) not in (MethodDescriptorType, WrapperDescriptorType):
        return False
    if found.__objclass__ in _BASES:
        return dict_base(class_) is not None
    return found.__objclass__ in _SEQUENCES and sequence_base(class_) is not None


def plain_dict_of(domain: SymbolicDomain, args: list[Any], kwargs: dict[str, Any]) -> DictValue:
    """The items of `dict(*args, **kwargs)`, for at most one argument that is a plain dict."""
    given = [domain.state.realize(arg) for arg in args]
    if len(given) > 1 or (given and not (isinstance(given[0], DictValue) and given[0].class_ in _BASES)):
        raise GraphBreak("call_of_native_code", what="dict.__init__")
    made = DictValue(dict(given[0].items) if given else {})
    for name, value in kwargs.items():
        made.items[domain.hash_key(ConstantValue(name))] = (ConstantValue(name), value)
    return made
