"""The default table of `run_decompositions`, in which composite operators can be kept by deleting them.

Counterpart: torch/export/decomp_utils.py CustomDecompTable, PRESERVED_ATEN_CIA_OPS; torch/_export/utils.py
  _collect_all_valid_cia_ops, _is_preservable_cia_op, _get_decomp_for_cia
Differs: composite operators are looked up when they are asked for, so an operator that is defined after the table is in it too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from refimpl._torch import OpOverload, has_composite_kernel, has_python_composite_kernel, names_of_composite_ops
from refimpl.trace.composite_kernels import has_own_kernel, run_composite
from refimpl.trace.decompositions import decomposition_table
from refimpl.trace.options import DecompositionTable
from refimpl.trace.recording_mode import may_share_memory


class CompositeTable(dict[Any, Any]):
    """Maps operators to their decompositions. Every composite operator is in it, unless it is deleted or shares memory with its
    arguments. The latter have to be decomposed, and no table names them.
    """

    def __init__(self, rules: Any = (), *, kept: Iterable[Any] = ()) -> None:
        super().__init__(rules)
        self.kept = set(kept)
        """Composite operators that are not decomposed."""

    def __missing__(self, op: Any) -> Callable[..., Any]:
        if op in self.kept or not is_keepable_composite(op):
            raise KeyError(op)
        return functools.partial(_decomposed, op)

    def __contains__(self, op: object) -> bool:
        return super().__contains__(op) or (op not in self.kept and is_keepable_composite(op))

    def get(self, op: Any, default: Any = None) -> Any:
        try:
            return self[op]
        except KeyError:
            return default

    def __setitem__(self, op: Any, rule: Any) -> None:
        self.kept.discard(op)
        super().__setitem__(op, rule)

    def __delitem__(self, op: Any) -> None:
        self.pop(op)

    def pop(self, op: Any, *default: Any) -> Any:
        """Remove the operator: it is kept. An operator outside of aten may be one that is defined later."""
        if op in self:
            rule = self[op]
            super().pop(op, None)
            self.kept.add(op)
            return rule
        if op not in self.kept and isinstance(op, OpOverload) and op.namespace != "aten":
            self.kept.add(op)
            return functools.partial(_decomposed, op)
        if default:
            return default[0]
        raise KeyError(op)

    def copy(self) -> CompositeTable:
        return CompositeTable(dict(super().items()), kept=self.kept)

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        for op in all_keepable_composites():
            if op not in self.kept and not super().__contains__(op):
                yield op

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return True

    def keys(self) -> Any:
        return dict.fromkeys(self).keys()

    def values(self) -> Any:
        return {op: self[op] for op in self}.values()

    def items(self) -> Any:
        return {op: self[op] for op in self}.items()


def default_decompositions() -> CompositeTable:
    """A copy of the default table of `run_decompositions`, for the caller to change: `del table[op]` keeps an operator."""
    aten = torch.ops.aten
    rules = {
        op: rule
        for op, rule in decomposition_table.items()
        if op is not aten.detach.default and not _is_core(op) and not has_own_kernel(op)
    }
    return CompositeTable({**rules, aten.lift_fresh_copy.default: aten.clone.default}, kept=_KEPT)


# Composite operators that the small set contains. Other core ones (pooling in one dimension) are decomposed to core operators.
_KEPT = (torch.ops.aten.upsample_bilinear2d.vec, torch.ops.aten.upsample_nearest2d.vec)


def read_table(table: DecompositionTable) -> DecompositionTable:
    """The table as one that `get` reads. Tables of torch inherit from dict, but keep their rules elsewhere."""
    if type(table) is dict or isinstance(table, CompositeTable):
        return table
    return {op: table[op] for op in table}


def _is_core(op: OpOverload) -> bool:
    """Whether the operator, or the one that it is the functional form of, is of the small set that decomposed programs have."""
    packet = op._schema.name.partition("::")[2]
    if packet.endswith("_functional"):
        op = getattr(getattr(torch.ops.aten, packet.removesuffix("_functional"), None), op._overloadname, op)
    return torch.Tag.core in op.tags


def composite_decompositions() -> CompositeTable:
    """A table that decomposes composite operators and no others."""
    return CompositeTable()


def is_keepable_composite(op: Any) -> bool:
    """Whether the operator is composite, and its results share no memory with its arguments."""
    if not isinstance(op, OpOverload):
        return False
    return _is_composite(op) and not _is_query(op) and not may_share_memory(op)


def _is_composite(op: OpOverload) -> bool:
    return has_composite_kernel(op) or has_python_composite_kernel(op)


def _is_query(op: OpOverload) -> bool:
    """Whether the operator reads metadata of tensors or a number: it is no step of a graph of tensors."""
    return not any("Tensor" in str(returned.type) for returned in op._schema.returns)


def all_keepable_composites() -> list[OpOverload]:
    """The composite operators that are defined now, by name."""
    found = []
    for name in names_of_composite_ops():
        space, _, rest = name.partition("::")
        packet, _, overload = rest.partition(".")
        op = getattr(getattr(getattr(torch.ops, space), packet, None), overload or "default", None)
        if is_keepable_composite(op):
            found.append(op)
    return found


def _decomposed(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    return run_composite(op, args, kwargs)
