"""Restores containers outside the module in which forward stored fake tensors, and warns of them.

Counterpart: none; with torch.export such containers keep fake tensors
Differs from attributes of the module (refimpl.aot.attribute_assignment): only containers that hold fake tensors afterwards are
restored. A counter or a cache of plain values changes in an export as in a call.

The search follows the names in the methods of the module's classes: globals, closures, objects of the program's classes, and the
functions among these. It does not follow code of torch and of the standard library.
"""

from __future__ import annotations

import contextlib
import dis
import warnings
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES, FakeTensor
from refimpl.symbolic.stacks import is_user_file

DEEPEST = 4  # levels of nested containers
MOST_ITEMS = 10_000  # larger containers are not searched
_LIBRARIES = ("torch", "builtins", "refimpl", "functools", "logging", "threading")  # their objects are not searched
_EMPTY = object()
_PLACES = (list, dict, set, deque)
_STORE_GLOBAL = bytes([dis.opmap["STORE_GLOBAL"]])


@contextlib.contextmanager
def containers_kept(module: torch.nn.Module) -> Iterator[None]:
    """Restore containers after the block. Warns of restored ones, unless the block raises."""
    search = _SearchState()
    search.module(module)
    told: list[str] = []
    try:
        yield
    finally:
        told = [place.name for place in search.places if place.restore()]
    if told:
        names = ", ".join(dict.fromkeys(told))
        warnings.warn(
            f"forward stored fake tensors of the export in {names}. The old contents have been restored, and the exported "
            "program does not change them; return such tensors instead of storing them.",
            stacklevel=4,
        )


@dataclass(slots=True)
class _Place:
    """A container, a closure cell or a global, and its contents before."""

    name: str
    value: Any
    held: Any
    key: str = ""  # the name of a global

    def restore(self) -> bool:
        """Restore the contents if they have fake values now. Returns whether they had."""
        now = _content(self.value, self.key)
        before = {id(item) for item in _items(self.held)}
        if not any(_has_fake(item, DEEPEST) for item in _items(now) if id(item) not in before):
            return False
        match self.value:
            case CellType() if self.held is _EMPTY:
                del self.value.cell_contents
            case CellType():
                self.value.cell_contents = self.held
            case dict() if self.key:
                _put(self.value, self.key, self.held)
            case dict() | set():
                self.value.clear()
                self.value.update(self.held)
            case _:
                self.value.clear()
                self.value.extend(self.held)
        return True


def _put(table: dict[str, Any], key: str, value: Any) -> None:
    if value is _EMPTY:
        table.pop(key, None)
    else:
        table[key] = value


def _content(value: Any, key: str) -> Any:
    """The contents of a place; for a container a copy."""
    if isinstance(value, CellType):
        try:
            return value.cell_contents
        except ValueError:
            return _EMPTY
    if key:
        return value.get(key, _EMPTY)
    return dict(value) if isinstance(value, dict) else list(value)


def _items(content: Any) -> list[Any]:
    if isinstance(content, dict):
        return list(content.values())
    return content if isinstance(content, list) else [content]


def _has_fake(value: Any, depth: int) -> bool:
    """Whether the value is or contains a fake tensor or a symbolic number."""
    if isinstance(value, (FakeTensor, *SYMBOLIC_TYPES)):
        return True
    if depth == 0:
        return False
    if isinstance(value, dict):
        return any(_has_fake(item, depth - 1) for item in value.values())
    if isinstance(value, (list, tuple, set, deque)):
        return any(_has_fake(item, depth - 1) for item in value)
    if isinstance(value, MethodType):
        return any(_has_fake(part, depth - 1) for part in (value.__self__, value.__func__))
    if isinstance(value, FunctionType):
        return any(_has_fake(_content(cell, ""), depth - 1) for cell in value.__closure__ or ())
    return _is_plain_object(value) and _has_fake(_attributes(value), depth - 1)


@dataclass(slots=True)
class _SearchState:
    """Searches the containers that the functions of a module can reach."""

    places: list[_Place] = field(default_factory=list)
    _seen: set[int] = field(default_factory=set)

    def module(self, module: torch.nn.Module) -> None:
        for name, inner in module.named_modules():
            for attribute, value in vars(inner).items():
                if isinstance(value, (FunctionType, MethodType)) or _is_plain_object(value):
                    self._look(value, f"self.{name}.{attribute}" if name else f"self.{attribute}", DEEPEST)
            if id(type(inner)) not in self._seen:
                self._seen.add(id(type(inner)))
                self._attribute_of_class(type(inner), "forward")

    def _attribute_of_class(self, class_: type, name: str) -> None:
        """Search an attribute of a class: a method, or a container that all instances share."""
        found = next((vars(base)[name] for base in class_.__mro__ if name in vars(base)), None)
        function = getattr(found, "__func__", None) or getattr(found, "fget", None) or found
        if isinstance(function, FunctionType):
            self._function(function, class_)
        elif isinstance(found, _PLACES):
            self._look(found, f"{class_.__qualname__}.{name}", DEEPEST)

    def _function(self, function: FunctionType, class_: type | None = None) -> None:
        code = function.__code__
        if id(function) in self._seen or not is_user_file(code.co_filename):
            return
        self._seen.add(id(function))
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            content = _content(cell, "")
            if content is not _EMPTY:
                self._look(content, name, DEEPEST)
            self.places.append(_Place(name, cell, content))
        self._names(code, function.__globals__, class_)

    def _names(self, code: CodeType, scope: dict[str, Any], class_: type | None) -> None:
        for name in code.co_names:
            value = scope.get(name, _EMPTY)
            if value is not _EMPTY:
                self._look(value, name, DEEPEST)
            if class_ is not None:
                self._attribute_of_class(class_, name)
        if _STORE_GLOBAL in code.co_code:  # the byte may be an argument; then more is restored than needed
            self.places += [_Place(name, scope, scope.get(name, _EMPTY), name) for name in code.co_names]
        for constant in code.co_consts:
            if isinstance(constant, CodeType):
                self._names(constant, scope, class_)

    def _look(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, (FunctionType, MethodType)):
            self._function(value.__func__ if isinstance(value, MethodType) else value)
            return
        if depth == 0 or id(value) in self._seen or isinstance(value, (torch.Tensor, torch.nn.Module, ModuleType)):
            return
        if isinstance(value, type):
            return
        if isinstance(value, _PLACES):
            if len(value) > MOST_ITEMS:
                return
            self._seen.add(id(value))
            held = _content(value, "")
            self.places.append(_Place(name, value, held))
            for item in _items(held):
                self._look(item, name, depth - 1)
        elif _is_plain_object(value):
            self._seen.add(id(value))
            attributes = _attributes(value)
            self.places.append(_Place(name, attributes, dict(attributes)))
            for attribute, item in list(attributes.items()):
                self._look(item, f"{name}.{attribute}", depth - 1)


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object, without calling its own `__getattribute__`."""
    return object.__getattribute__(value, "__dict__")


def _is_plain_object(value: Any) -> bool:
    """Whether the object is of a class that the program defines."""
    kind = type(value)
    if issubclass(kind, (type, FunctionType, MethodType, ModuleType, torch.Tensor, torch.nn.Module)):
        return False
    if kind.__module__.partition(".")[0] in _LIBRARIES and ".tests." not in kind.__module__:
        return False
    try:
        return type(_attributes(value)) is dict
    except AttributeError:
        return False
