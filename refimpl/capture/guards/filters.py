"""Guards that the program leaves out: the option `guard_filter_fn` of `compile`, and functions for it.

Counterpart: torch/_dynamo/types.py GuardFilterEntry; torch/compiler/__init__.py skip_guard_on_globals_unsafe and the like
Differs: upstream's helpers work on these entries too: `guard_type` has upstream's names, and `orig_guard.source` says whether
the guard is on a module.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl.capture.guards.guard_list import Guard, GuardKind, GuardList
from refimpl.capture.guards.sources import READ_ERRORS, GlobalSource, ReaderBuilder, Source
from refimpl.errors import BadParameter

_OF_LOCALS = re.compile(r"^L\['(\w+)'\]")
_BUILTIN = ("torch.nn.modules.", "torch.ao.")
_CONTAINERS = "torch.nn.modules.container"
Filter = Callable[[Sequence[Any]], Sequence[bool]]
_NAMES = {
    GuardKind.TENSOR: "TENSOR_MATCH", GuardKind.WRAPPER: "TENSOR_SUBCLASS_METADATA_MATCH", GuardKind.TYPE: "TYPE_MATCH",
    GuardKind.ID: "ID_MATCH", GuardKind.ADDRESS: "ID_MATCH", GuardKind.EQUALS: "EQUALS_MATCH",
    GuardKind.LENGTH: "SEQUENCE_LENGTH",
    GuardKind.AT_LEAST: "SEQUENCE_LENGTH", GuardKind.KEYS: "DICT_KEYS_MATCH", GuardKind.LACKS: "DICT_CONTAINS",
    GuardKind.WITHOUT: "NOT_PRESENT_IN_GENERIC_DICT", GuardKind.EMPTY: "EMPTY_NN_MODULE_HOOKS_DICT",
    GuardKind.HAS: "HASATTR",
    GuardKind.MARKS: "HASATTR", GuardKind.DISTINCT: "OBJECT_ALIASING", GuardKind.ALL_DISTINCT: "OBJECT_ALIASING",
    GuardKind.SAME: "DUPLICATE_INPUT", GuardKind.SHAPES: "SHAPE_ENV", GuardKind.INPUTS: "SHAPE_ENV",
    GuardKind.STATE: "GLOBAL_STATE", GuardKind.AUTOCAST: "AUTOCAST_STATE", GuardKind.MODES: "TORCH_FUNCTION_STATE",
}  # fmt: skip


@dataclass(frozen=True)
class GuardOrigin:
    """Tells whether a guard is on a module or on something read from one. Torch's guard filters call its methods."""

    classes: tuple[type, ...]  # of the modules on the way to what is guarded, the outermost first

    def is_unspecialized_nn_module(self) -> bool:
        """A module, or something read from one."""
        return bool(self.classes)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        """A module on the way to it is of a class of torch that is no container."""
        return any(
            class_.__module__.startswith(_BUILTIN) and class_.__module__ != _CONTAINERS for class_ in self.classes
        )


@dataclass(frozen=True)
class OriginalGuard:
    """The guard of an entry, and where what it guards comes from."""

    guard: Guard
    source: GuardOrigin


@dataclass(frozen=True)
class GuardFilterEntry:
    """One guard as a filter sees it."""

    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: OriginalGuard


def skip_guard_on_all_nn_modules_unsafe(entries: Sequence[Any]) -> list[bool]:
    """A filter that keeps guards on what is not read from a module."""
    return [not entry.orig_guard.source.is_unspecialized_nn_module() for entry in entries]


def skip_guard_on_inbuilt_nn_modules_unsafe(entries: Sequence[Any]) -> list[bool]:
    """A filter that leaves out guards on modules whose classes are torch's."""
    return [not entry.orig_guard.source.is_unspecialized_builtin_nn_module() for entry in entries]


def filtered(guards: GuardList, keep: Filter, frames: Any) -> GuardList:
    """The guards that the filter keeps. Raises BadParameter if it does not answer for each."""
    listed = list(guards)
    entries = [_entry(guard, frames) for guard in listed]
    kept = list(keep(entries))
    if len(kept) != len(entries) or not all(type(answer) is bool for answer in kept):
        raise BadParameter(
            seen=f"guard_filter_fn gave {len(kept)} answers for {len(entries)} guards",
            expected="a bool for each guard, in their order",
        )
    made = GuardList()
    for guard, is_kept in zip(listed, kept, strict=True):
        if is_kept:
            made.add(guard)
    return made


def _entry(guard: Guard, frames: Any) -> GuardFilterEntry:
    value = _read(guard.source, frames)
    is_global = any(isinstance(source, GlobalSource) for source in guard.source.way())
    original = OriginalGuard(guard, GuardOrigin(_modules_on_the_way(guard.source, frames)))
    return GuardFilterEntry(_without_scope(guard.source.name), True, value, _NAMES[guard.kind], (), is_global, original)


def _without_scope(name: str) -> str:
    """`x.y` for `L['x'].y`: a filter sees a local variable by its name."""
    return _OF_LOCALS.sub(r"\1", name)


def _modules_on_the_way(source: Source, frames: Any) -> tuple[type, ...]:
    classes: list[type] = []
    for step in source.way():
        try:
            value = _read(step, frames)
        except READ_ERRORS:
            continue
        if isinstance(value, torch.nn.Module):
            classes.append(type(value))
    return tuple(classes)


def _read(source: Source, frames: Any) -> Any:
    builder = ReaderBuilder()
    return builder.function(builder.read(source), name="value")(frames)
