"""Protocols for ShapeEnv, used by modules that ShapeEnv imports, so that they do not import it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from refimpl.symbolic.dynamic_shapes import DimSpec
from refimpl.symbolic.facts import FactState
from refimpl.symbolic.guards import ShapeGuard
from refimpl.symbolic.ranges import Range
from refimpl.symbolic.sources import Source


class NodeEnvironment(Protocol):
    """The part of ShapeEnv that a SymNode uses."""

    records_origins: bool
    replacements_version: int
    made: dict[Any, Any]
    int_nodes: dict[int, Any]

    @property
    def facts(self) -> FactState: ...

    def replace(self, expr: Any) -> Any: ...

    def hint_of(self, expr: Any, pytype: type) -> Any: ...

    def size_hint(self, expr: Any, *, allow_none: bool = False) -> Any: ...

    def decided(self, condition: Any) -> bool | None: ...

    def value_of(
        self, node: Any, *, size_oblivious: bool = False, fallback: bool | None = None, place: tuple[str, int] = ("", 0)
    ) -> Any: ...

    def expect(self, node: Any, place: tuple[str, int] = ("", 0)) -> bool: ...


class SymbolSource(Protocol):
    """The part of ShapeEnv that makes symbols for the sizes and strides of an input."""

    def create_dim(self, size: int, source: Source, spec: DimSpec) -> Any: ...

    def create_symbol(self, val: Any, source: Any, dynamic_dim: Any = None) -> Any: ...

    def create_symintnode(self, sym: Any, *, hint: Any = None, source: Any = None) -> Any: ...


class Traced(Protocol):
    """The part of ShapeEnv that constraints are checked against after tracing."""

    guards: list[ShapeGuard]

    @property
    def facts(self) -> FactState: ...

    @property
    def promises(self) -> Sequence[Any]: ...

    @property
    def var_to_sources(self) -> Mapping[Any, Any]: ...

    def replace(self, expr: Any) -> Any: ...

    def source_name(self, symbol: Any) -> str: ...

    def own_ranges(self) -> FactState: ...

    def _default_value_range(self, do_not_specialize_zero_one: bool = False) -> Range: ...
