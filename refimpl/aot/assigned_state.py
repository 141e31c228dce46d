"""Tensors that a module assigns to its buffers and attributes: undone after the trace, and assigned again by every run.

Counterpart: the side effects of torch/_dynamo/side_effects.py on attributes of modules; upstream's AOT autograd loses them
Differs: tensors only. Other changes that a module makes to itself happen once, when it is traced.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import functional_call

from refimpl._torch import FakeTensor, pytree
from refimpl.aot.functional_call import first_names
from refimpl.errors import UnsupportedByRefimpl

_OF_MODULES = frozenset(torch.nn.Module().__dict__) | {"_initialize_hook", "_load_hook", "_compiled_call_impl"}
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """An assignment to one attribute or buffer. `before` is the value of the attribute before the trace."""

    path: str
    name: str
    is_new_buffer: bool = False
    is_persistent: bool = True
    is_attribute: bool = False
    before: Any = _MISSING

    def apply(self, module: torch.nn.Module, value: Any) -> None:
        """Repeat the assignment with a run's value."""
        owner = module.get_submodule(self.path)
        if self.is_new_buffer:
            owner.register_buffer(self.name, value, persistent=self.is_persistent)
        else:
            setattr(owner, self.name, value)

    def is_as_traced(self, module: torch.nn.Module) -> bool:
        """Whether the attribute has the value it had before the trace, because the program may have read it."""
        return (
            not self.is_attribute
            or _attributes(module.get_submodule(self.path)).get(self.name, _MISSING) is self.before
        )


def call_and_read_assigned(
    mod: torch.nn.Module, names: Iterable[str], values: Sequence[Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, list[Assignment], list[Any]]:
    """Run `mod` with `values` as its parameters and buffers. Returns the result, the assignments, and the assigned values.

    The module is restored. Raises UnsupportedByRefimpl if it put tensors into a list, tuple or dictionary among its attributes.
    """
    names = list(names)
    places = first_names(mod, names)
    given = {name: value for name, value in zip(names, values, strict=True) if name in places}
    before = {path: _Before(owner) for path, owner in mod.named_modules()}
    assigned: list[tuple[Assignment, Any]] = []

    def read(*called_with: Any) -> None:
        for path, owner in mod.named_modules():
            if path in before:
                assigned.extend(before[path].changes(path, owner, given))

    hook = mod.register_forward_hook(read)
    try:
        result = functional_call(mod, given, tuple(args), kwargs, tie_weights=False)
    finally:
        hook.remove()
        own = {id(value) for value in values}
        filled = {path: state.restore(mod.get_submodule(path), own) for path, state in before.items()}
    for path, containers in filled.items():
        if containers:
            raise UnsupportedByRefimpl(
                seen=f"tensors put into the container {containers[0]} of the module {path!r}",
                supported="tensors assigned to attributes and buffers",
                do="keep them in attributes, or return them",
            )
    return result, [assignment for assignment, _ in assigned], [value for _, value in assigned]


class _Before:
    """Buffers and attributes of one module before the trace."""

    def __init__(self, owner: torch.nn.Module) -> None:
        self._buffers = frozenset(owner._buffers)
        self._attributes = _attributes(owner)
        self._contents = {
            key: value.copy() for key, value in self._attributes.items() if isinstance(value, (list, dict))
        }

    def changes(self, path: str, owner: torch.nn.Module, given: dict[str, Any]) -> Iterable[tuple[Assignment, Any]]:
        prefix = f"{path}." if path else ""
        for name, value in owner._buffers.items():
            if name not in self._buffers:
                is_persistent = name not in owner._non_persistent_buffers_set
                yield Assignment(path=path, name=name, is_new_buffer=True, is_persistent=is_persistent), value
            elif prefix + name in given and value is not given[prefix + name]:
                yield Assignment(path=path, name=name), value
        for name, value in _attributes(owner).items():
            old = self._attributes.get(name, _MISSING)
            if isinstance(value, torch.Tensor) and value is not old:
                yield Assignment(path=path, name=name, is_attribute=True, before=old), value

    def restore(self, owner: torch.nn.Module, own: Set[int]) -> list[str]:
        """Undo the assignments of tensors. Returns the names of attributes that are containers of fake tensors of the trace.

        A list that a module keeps of its own parameters, as torch.nn.LSTM does, is not returned: `own` has the ids of these.
        """
        filled: list[str] = []
        for name in owner._buffers.keys() - self._buffers:
            delattr(owner, name)
        for name, value in _attributes(owner).items():
            if isinstance(value, torch.Tensor) and value is not self._attributes.get(name, _MISSING):
                if name in self._attributes:
                    owner.__dict__[name] = self._attributes[name]
                else:
                    del owner.__dict__[name]
        for name, value in _attributes(owner).items():
            fakes = _fakes_in(value)
            if not fakes:
                continue
            if not all(id(fake) in own for fake in fakes):
                filled.append(name)
            if name not in self._attributes:
                del owner.__dict__[name]
                continue
            container = owner.__dict__[name] = self._attributes[name]
            if _fakes_in(container):
                content = self._contents[name]
                container.clear()
                if isinstance(container, list):
                    container.extend(content)
                else:
                    container.update(content)
        return filled


def _fakes_in(container: Any) -> list[FakeTensor]:
    if not isinstance(container, (list, dict, tuple)):
        return []
    return [value for value in pytree.tree_leaves(container) if isinstance(value, FakeTensor)]


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    return {key: value for key, value in module.__dict__.items() if key not in _OF_MODULES}
