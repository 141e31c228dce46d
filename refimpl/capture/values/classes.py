"""Questions about classes that run no code of the user's."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from enum import EnumMeta, Flag
from types import FunctionType, GenericAlias, SimpleNamespace, UnionType, WrapperDescriptorType
from typing import Any
from weakref import WeakKeyDictionary

MISSING = object()
_OF_NAMED_TUPLES = frozenset(
    ["__new__", "__repr__", "__str__", "__getnewargs__", "__replace__", "__annotate__", "__annotate_func__"]
)
_BUILTINS = (
    object, dict, list, tuple, set, frozenset, int, float, str, bytes, OrderedDict, defaultdict, deque, SimpleNamespace,
    BaseException, threading.local,
)  # fmt: skip


_GET_OF_PROPERTY = property.__dict__["__get__"]
_OF_FLAGS = ("__or__", "__and__", "__xor__", "_missing_")
_TRUTHS_OF_FLAGS = (Flag.__dict__["__bool__"], int.__dict__["__bool__"])
_MAKERS: WeakKeyDictionary[type, Callable[[], type]] = WeakKeyDictionary()


def note_maker(class_: type, make: Callable[[], type]) -> None:
    """Notes how to make the class again, for a class that every call of the program makes anew."""
    _MAKERS[class_] = make


def maker_of(object_: Any) -> Callable[[], type] | None:
    """How to make the class again; None for other objects."""
    return _MAKERS.get(object_) if type(object_) is type else None


def is_a(object_: Any, kinds: Any) -> bool:
    """`isinstance` by the real class: `__class__` may be code of the user's."""
    return issubclass(type(object_), kinds)


def in_mro(class_: type, name: str) -> Any:
    """The attribute of the class or its first base that has it; MISSING if there is none."""
    for base in class_.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return MISSING


def own_attributes(object_: Any) -> dict[str, Any]:
    """The `__dict__` of the object, of a `threading.local` that of this thread; an empty one for an object without."""
    if is_a(object_, threading.local):
        return threading.local.__getattribute__(object_, "__dict__")
    try:
        return object.__getattribute__(object_, "__dict__")
    except AttributeError:
        return {}


def has_own_attributes(object_: Any) -> bool:
    """Whether the object has a `__dict__`."""
    return type(object_).__dictoffset__ != 0 or is_a(object_, threading.local)


def writes(found: Any) -> bool:
    """Whether this class attribute receives assignments to instances, and deletions: it has `__set__` or `__delete__`."""
    return hasattr(type(found), "__set__") or hasattr(type(found), "__delete__")


def ends_with_code(object_: Any) -> bool:
    """Whether code of the program may run when the object is freed, so that the place where it is dropped can be seen.

    That code is a `__del__` or a `weakref.finalize`, of the object or of one of its attributes. Nothing is known of how many
    other references there are: a later call may have others.
    """
    attributes = partial_attributes(object_) if type(object_) is functools.partial else own_attributes(object_)
    return _ends_itself_with_code(object_) or any(map(_ends_itself_with_code, attributes.values()))


def partial_attributes(found: functools.partial[Any]) -> dict[str, Any]:
    """The attributes of a partial function. Reading its `__dict__` makes one, and then a partial function of it nests."""
    reduced: Any = found.__reduce__()
    return reduced[2][3] or {}


def _ends_itself_with_code(object_: Any) -> bool:
    if type(in_mro(type(object_), "__del__")) is FunctionType:
        return True
    references = [seen for seen in weakref.getweakrefs(object_) if type(seen) is weakref.ref]
    return any(is_a(seen.__callback__, weakref.finalize) for seen in references)


def is_read_property(found: Any) -> bool:
    """Whether this is a property, also of a subclass that reads as one, with something to call."""
    return is_a(found, property) and in_mro(type(found), "__get__") is _GET_OF_PROPERTY and found.fget is not None


def is_plain_class(object_: Any) -> bool:
    """Whether `|` of this class (or union of classes) gives a union."""
    return is_a(object_, UnionType) or (is_a(object_, type) and type(object_).__or__ is type.__or__)


def is_enumeration(object_: Any) -> bool:
    """Whether this is an enumeration whose iteration gives its members."""
    return (
        is_a(object_, EnumMeta)
        and type(object_).__iter__ is EnumMeta.__iter__
        and type(object_).__len__ is EnumMeta.__len__
    )


def combines_as_flag(object_: Any) -> bool:
    """Whether this is a member of a `Flag` with the operators and the truth of `Flag`, which run no code of the user's."""
    class_ = type(object_)
    if not issubclass(class_, Flag) or not any(in_mro(class_, "__bool__") is found for found in _TRUTHS_OF_FLAGS):
        return False
    return all(in_mro(class_, name) is Flag.__dict__[name] for name in _OF_FLAGS)


def is_named_tuple(class_: type) -> bool:
    """Whether `collections.namedtuple` made the class, or it derives from such a class and adds no constructor or special
    methods.
    """
    made = next((base for base in class_.__mro__ if "_fields" in base.__dict__ and base.__base__ is tuple), None)
    return (
        made is not None
        and isinstance(made.__dict__["_fields"], tuple)
        and class_.__new__ is made.__new__
        and type(class_).__call__ is type.__call__
        and not any(_says_what_it_is(base) for base in class_.__mro__[: class_.__mro__.index(tuple)])
    )


def is_struct_sequence(class_: type) -> bool:
    """Whether this is a class of results of torch's operators, such as torch.return_types.max."""
    return class_.__base__ is tuple and class_.__module__ == "torch.return_types" and hasattr(class_, "n_fields")


def _says_what_it_is(class_: type) -> bool:
    """Whether the class adds special methods to those of every named tuple."""
    return any(
        name.startswith("__") and name.endswith("__") and name not in _OF_NAMED_TUPLES and callable(found)
        for name, found in class_.__dict__.items()
    )


def finds_plainly(class_: type) -> bool:
    """Whether attribute lookup is `object.__getattribute__`, which some builtin classes have under another name."""
    getter = class_.__getattribute__
    return isinstance(getter, WrapperDescriptorType) and getter.__objclass__ in _BUILTINS


def defining_package(class_: type) -> str:
    """The top-level package of the module that defines the class."""
    return str(class_.__module__).partition(".")[0]


def is_annotation(object_: Any) -> bool:
    """Whether `|` of this object makes a union type: a class, `list[int]` or a union."""
    return is_a(object_, (GenericAlias, UnionType)) or is_plain_class(object_)


def is_data_descriptor(found: Any) -> bool:
    """Whether reading this class attribute of an instance calls its `__get__`, also if the instance's `__dict__` has the name.

    One without `__get__` is read after the `__dict__`, as it is.
    """
    return hasattr(type(found), "__get__") and writes(found)
