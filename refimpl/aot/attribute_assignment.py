"""Attributes that a module assigns while it is exported: told if they are tensors, and put back as they were.

Counterpart: torch/_functorch/_aot_autograd/frontend_utils.py _detect_attribute_assignment
Differs: as in 2.13 an assigned tensor is a warning; it was a ValueError once. What upstream leaves behind is put back too:
attributes that are new are removed, and a list or dictionary is the same object as before, with what it held before. Tensors in
a container that is new as a whole are told as well.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch

# What torch.nn.Module and its lazy kinds keep for themselves. Hooks are put back with the other attributes: a program that
# registers them once, and notes in an attribute that it has, would register them a second time.
_HOOKS = frozenset(name for name in torch.nn.Module().__dict__ if "_hooks" in name)
_OF_MODULES = frozenset(torch.nn.Module().__dict__) - _HOOKS | {"_initialize_hook", "_load_hook", "_compiled_call_impl"}


@dataclass(frozen=True, slots=True)
class _Content:
    """A value, and what it held if it is a list, tuple or dictionary."""

    value: Any
    items: tuple[tuple[Any, _Content], ...] = ()

    @classmethod
    def of(cls, value: Any, around: tuple[int, ...] = ()) -> _Content:
        """A container that contains itself is followed once."""
        if id(value) in around:
            return cls(value)
        return cls(value, tuple((key, cls.of(item, (*around, id(value)))) for key, item in _items(value)))

    def assigned_tensors(self, now: Any, path: str, known: Set[int], around: tuple[int, ...] = ()) -> Iterator[str]:
        """Paths below which there is another tensor now, and none that is known."""
        if isinstance(now, torch.Tensor) and now is not self.value and id(now) not in known:
            yield path
        if id(now) in around:
            return
        before = dict(self.items)
        for key, item in _items(now):
            yield from before.get(key, _NOTHING).assigned_tensors(item, f"{path}[{key!r}]", known, (*around, id(now)))

    def restore(self) -> None:
        """Fills containers with what they held. Those that are as they were are not touched."""
        for _, item in self.items:
            item.restore()
        present = [(key, id(item)) for key, item in _items(self.value)]
        if present == [(key, id(item.value)) for key, item in self.items]:
            return
        if isinstance(self.value, list):
            self.value[:] = [item.value for _, item in self.items]
        elif isinstance(self.value, dict):
            self.value.clear()
            self.value.update((key, item.value) for key, item in self.items)


_NOTHING = _Content(None)


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return list(value.items())
    return list(enumerate(value)) if isinstance(value, (list, tuple)) else ()


@contextlib.contextmanager
def _detect_attribute_assignment(mod: torch.nn.Module, state: Iterable[torch.Tensor] = ()) -> Iterator[None]:
    """When the block is left, attributes of the module and its submodules are as they were, buffers and parameters aside.

    Warns of tensors that were assigned, unless the block fails. `state`: what stands for parameters and buffers in it, of which
    a module may keep a list of its own (torch.nn.LSTM does): that is no warning.
    """
    known = {id(tensor) for tensor in state}
    before = {name: _attributes(submodule) for name, submodule in mod.named_modules()}
    contents = {name: {key: _Content.of(value) for key, value in before[name].items()} for name in before}
    try:
        yield
        assigned = [
            path
            for name, submodule in mod.named_modules()
            for key, value in _attributes(submodule).items()
            for path in contents.get(name, {}).get(key, _NOTHING).assigned_tensors(value, _path(name, key), known)
        ]
    finally:
        for name, submodule in mod.named_modules():
            if name in before:
                _restore(submodule, contents[name])
    if assigned:
        noun, verb = ("attributes", "were") if len(assigned) > 1 else ("attribute", "was")
        warnings.warn(
            f"The tensor {noun} {', '.join(assigned)} {verb} assigned during export. Such attributes must be "
            "registered as buffers using the `register_buffer` API; they have been put back as they were, and the exported "
            "graph does not change them.",
            stacklevel=3,
        )


def _attributes(module: torch.nn.Module) -> dict[str, Any]:
    own = _OF_MODULES | _HOOKS if _is_lazy(module) else _OF_MODULES
    return {key: value for key, value in module.__dict__.items() if key not in own}


def _is_lazy(module: torch.nn.Module) -> bool:
    """Whether its hooks are to make its parameters, and to be gone then."""
    return "_initialize_hook" in module.__dict__


def _restore(module: torch.nn.Module, contents: dict[str, _Content]) -> None:
    for key in _attributes(module).keys() - contents.keys():
        del module.__dict__[key]
    for key, content in contents.items():
        content.restore()
        module.__dict__[key] = content.value


def _path(module_name: str, attribute: str) -> str:
    return f"self.{module_name}.{attribute}" if module_name else f"self.{attribute}"
