"""Attributes that a module assigns while it is exported: tensors cause a warning, and all attributes are restored.

Counterpart: torch/_functorch/_aot_autograd/frontend_utils.py _detect_attribute_assignment
Differs: an assigned tensor is a warning, as in torch 2.13; it was a ValueError in earlier versions. More is restored than
upstream restores: new attributes are removed, and a list or dictionary is the same object as before, with its old items. Tensors
in a new container cause a warning as well.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch

# Attributes of torch.nn.Module and lazy modules, which are not restored. Hooks are: if a program registers a hook once and sets
# a flag, and only the flag were restored, the program would register the hook a second time.
_HOOKS = frozenset(name for name in torch.nn.Module().__dict__ if "_hooks" in name)
_OF_MODULES = frozenset(torch.nn.Module().__dict__) - _HOOKS | {"_initialize_hook", "_load_hook", "_compiled_call_impl"}


@dataclass(frozen=True, slots=True)
class _Content:
    """A value and, if it is a list, tuple or dictionary, its items."""

    value: Any
    items: tuple[tuple[Any, _Content], ...] = ()

    @classmethod
    def of(cls, value: Any, around: tuple[int, ...] = ()) -> _Content:
        """Record a value and its items. A container that contains itself is followed once."""
        if id(value) in around:
            return cls(value)
        return cls(value, tuple((key, cls.of(item, (*around, id(value)))) for key, item in _items(value)))

    def assigned_tensors(self, now: Any, path: str, known: Set[int], around: tuple[int, ...] = ()) -> Iterator[str]:
        """Paths where `now` has a tensor that was not there before. Tensors with an id in `known` are left out."""
        if isinstance(now, torch.Tensor) and now is not self.value and id(now) not in known:
            yield path
        if id(now) in around:
            return
        before = dict(self.items)
        for key, item in _items(now):
            yield from before.get(key, _NOTHING).assigned_tensors(item, f"{path}[{key!r}]", known, (*around, id(now)))

    def restore(self) -> None:
        """Restore the items of lists and dictionaries. Those that did not change are not touched."""
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
    """Restore attributes of the module and its submodules at the end of the block, except parameters and buffers.

    Warns of tensors that were assigned, unless the block raises. `state`: the tensors that replace parameters and buffers in the
    block. A module may keep a list of these, as torch.nn.LSTM does, without a warning.
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
    """Whether this is a lazy module without parameters yet: its hooks create them, and then remove themselves."""
    return "_initialize_hook" in module.__dict__


def _restore(module: torch.nn.Module, contents: dict[str, _Content]) -> None:
    # The hooks of a lazy module are new: they were left out of the contents while it had no parameters.
    for key in _attributes(module).keys() - contents.keys() - _HOOKS:
        del module.__dict__[key]
    for key, content in contents.items():
        content.restore()
        module.__dict__[key] = content.value


def _path(module_name: str, attribute: str) -> str:
    return f"self.{module_name}.{attribute}" if module_name else f"self.{attribute}"
