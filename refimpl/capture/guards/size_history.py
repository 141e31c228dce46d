"""Automatic dynamic sizes: a size or number becomes a symbol if it changed between captures of a place, or if it is marked.

Counterpart: torch/_dynamo/variables/builder.py _automatic_dynamic; torch/_dynamo/pgo.py FrameStateSizeEntry
"""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch

from refimpl.capture.config import config
from refimpl.capture.guards.sources import SlotSource, Source
from refimpl.capture.guards.static_shapes import tensor_always_has_static_shape
from refimpl.capture.public.marks import DYNAMIC, WEAKLY_DYNAMIC
from refimpl.errors import BadParameter
from refimpl.symbolic.dynamic_shapes import DimSpec, InputPolicy, marked_policy

_OFTEN_CONSTANT = (-1, 0, 1)  # usually flags, directions and dimensions


@dataclass(slots=True)
class SizeHistory:
    """The inputs seen at one place, by source."""

    _sizes: dict[Hashable, tuple[int | float, ...]] = field(default_factory=dict)
    _varying: dict[Hashable, set[int]] = field(
        default_factory=dict
    )  # source -> dimensions that vary; for a number, one entry
    prefers_assertions: bool = False  # keep the program's assertions on sizes as assertions, and not as guards
    holds_floats: bool = False  # floats are constants, because capture or the backend failed on symbols
    takes_fakes: bool = False  # capture fake tensors of the program's own modes like other tensors

    def policy(self, source: Hashable, tensor: torch.Tensor) -> InputPolicy:
        """Which dimensions of an input are symbols. Marks decide first, then the rules for static tensors, then what was seen."""
        default = "STATIC" if config.assume_static_by_default else "DUCK"
        varying = self._seen(source, tuple(tensor.shape)) if config.automatic_dynamic_shapes else set[int]()
        if isinstance(source, Source) and tensor_always_has_static_shape(tensor, True, source)[0]:
            default, varying = "STATIC", set[int]()
        values = _dynamic_values()
        dims = {
            dim: self._spec(source, dim, dim in varying or size in values, default)
            for dim, size in enumerate(tensor.shape)
        }
        marked = marked_policy(tensor)
        if marked is None:
            return InputPolicy(dims)
        dims |= marked.dims
        strong: set[int] = getattr(tensor, DYNAMIC, set())
        may_be_numbers: set[int] = getattr(tensor, WEAKLY_DYNAMIC, set()) - strong
        if config.allow_ignore_mark_dynamic:
            may_be_numbers |= strong
        for dim in may_be_numbers & {dim for dim, spec in dims.items() if spec.policy == "DYNAMIC"}:
            dims[dim] = DimSpec("DUCK")
        return InputPolicy(dims)

    def _spec(self, source: Hashable, dim: int, varies: bool, default: Any) -> DimSpec:
        """One size that nothing marks: named, seen to vary, or by default."""
        if _is_named(config.unbacked_sources, source, dim):
            return DimSpec.unbacked()
        if _is_named(config.dynamic_sources, source, dim):
            return DimSpec("DUCK")
        return _varying_spec() if varies else DimSpec(default)

    def is_varying(self, source: Hashable, number: int) -> bool:
        """Whether an integer is a symbol."""
        if _is_named(config.dynamic_sources, source) or number in _dynamic_values():
            return True
        if config.specialize_int:
            return False
        varies = 0 in self._seen(source, (number,)) if config.automatic_dynamic_shapes else False
        return number not in _OFTEN_CONSTANT and (varies or not config.assume_static_by_default)

    def is_varying_float(self, source: Hashable, number: float) -> bool:
        """Whether a float is a symbol."""
        if config.specialize_float or self.holds_floats:
            return False
        if _is_named(config.dynamic_sources, source):
            return True
        varies = 0 in self._seen(source, (number,)) if config.automatic_dynamic_shapes else False
        return varies or not config.assume_static_by_default

    def note(self, frame: Any) -> None:
        """Notes tensors and numbers in the variables of a frame that is not captured."""
        for slot, (value, name) in enumerate(zip(frame.slots, frame.code.slots, strict=True)):
            source = SlotSource(0, slot, name)
            if type(value) in (int, float):
                self._seen(source, (value,))
            elif isinstance(value, torch.Tensor) and not value.is_nested:
                self._seen(source, tuple(value.shape))

    def promise(self, source: Hashable) -> DimSpec | None:
        """The range and marks of an integer that varies."""
        return None

    def _seen(self, source: Hashable, sizes: tuple[int | float, ...]) -> set[int]:
        before = self._sizes.get(source)
        if before is None or len(before) != len(sizes):
            self._varying.pop(source, None)
        elif before != sizes:
            differ = (dim for dim, (old, new) in enumerate(zip(before, sizes, strict=True)) if old != new)
            self._varying.setdefault(source, set()).update(differ)
        self._sizes[source] = sizes
        return self._varying.get(source, set())


def _varying_spec() -> DimSpec:
    """The symbol of a size that was seen to vary. Raises ValueError for a setting that is none."""
    kinds = {"dynamic": DimSpec("DUCK"), "unbacked": DimSpec.unbacked()}
    if config.automatic_dynamic_shapes_mark_as not in kinds:
        raise ValueError(
            f"invalid automatic_dynamic_shapes_mark_as = {config.automatic_dynamic_shapes_mark_as!r}\n"
            f"  expected: one of {', '.join(kinds)}"
        )
    return kinds[config.automatic_dynamic_shapes_mark_as]


def _dynamic_values() -> set[int]:
    """Sizes and integers that `dynamic_values` makes symbols wherever they occur."""
    return {int(word) for word in config.dynamic_values.split(",") if word.strip()} if config.dynamic_values else set()


def _is_named(setting: str, source: Hashable, dim: int | None = None) -> bool:
    """Whether a setting names the source: by its name or a regular expression of it, for one dimension after a colon."""
    if not setting or not isinstance(source, Source):
        return False
    return any(
        (dim is None or only is None or only == dim) and (text == source.name or pattern.match(source.name) is not None)
        for text, pattern, only in _named_sources(setting)
    )


@functools.lru_cache(maxsize=8)
def _named_sources(setting: str) -> tuple[tuple[str, re.Pattern[str], int | None], ...]:
    """The entries of the setting: text, the same as a regular expression, and the dimension. Raises BadParameter."""
    found: list[tuple[str, re.Pattern[str], int | None]] = []
    for entry in filter(None, setting.replace(" ", "").split(",")):
        before, _, after = entry.rpartition(":")
        text, only = (before, int(after)) if before and after.isdecimal() else (entry, None)
        try:
            pattern = re.compile(text)
        except re.error as error:
            raise BadParameter(
                seen=f"{text!r} in a list of sources: {error}",
                expected="names of sources or regular expressions of them",
            ) from error
        found.append((text, pattern, only))
    return tuple(found)
