"""Guards that the program leaves out: the option `guard_filter_fn` of `compile`, and functions for it.

Counterpart: torch/_dynamo/types.py GuardFilterEntry; torch/compiler/__init__.py skip_guard_on_globals_unsafe and the like
Differs: upstream's helpers work on these entries too, whose `guard_type` has upstream's names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from refimpl.capture.guards.guard_list import Guard, GuardKind, GuardList
from refimpl.capture.guards.sources import GlobalSource, ReaderBuilder
from refimpl.errors import BadParameter

Filter = Callable[[Sequence[Any]], Sequence[bool]]
_NAMES = {
    GuardKind.TENSOR: "TENSOR_MATCH", GuardKind.WRAPPER: "TENSOR_SUBCLASS_METADATA_MATCH", GuardKind.TYPE: "TYPE_MATCH",
    GuardKind.ID: "ID_MATCH", GuardKind.EQUALS: "EQUALS_MATCH", GuardKind.LENGTH: "SEQUENCE_LENGTH",
    GuardKind.AT_LEAST: "SEQUENCE_LENGTH", GuardKind.KEYS: "DICT_KEYS_MATCH", GuardKind.LACKS: "DICT_CONTAINS",
    GuardKind.WITHOUT: "NOT_PRESENT_IN_GENERIC_DICT", GuardKind.EMPTY: "EMPTY_NN_MODULE_HOOKS_DICT",
    GuardKind.MARKS: "HASATTR", GuardKind.DISTINCT: "OBJECT_ALIASING", GuardKind.ALL_DISTINCT: "OBJECT_ALIASING",
    GuardKind.SAME: "DUPLICATE_INPUT", GuardKind.SHAPES: "SHAPE_ENV", GuardKind.INPUTS: "SHAPE_ENV",
    GuardKind.STATE: "GLOBAL_STATE", GuardKind.AUTOCAST: "AUTOCAST_STATE", GuardKind.MODES: "TORCH_FUNCTION_STATE",
}  # fmt: skip


@dataclass(frozen=True)
class GuardFilterEntry:
    """One guard as a filter sees it."""

    name: str
    has_value: bool
    value: object
    guard_type: str
    derived_guard_types: tuple[str, ...]
    is_global: bool
    orig_guard: Guard


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
    builder = ReaderBuilder()
    value = builder.function(builder.read(guard.source), name="value")(frames)
    is_global = any(isinstance(source, GlobalSource) for source in guard.source.way())
    return GuardFilterEntry(guard.source.name, True, value, _NAMES[guard.kind], (), is_global, guard)
