"""Decompositions of `_foreach_` ops into the op on each tensor of the lists.

Counterpart: torch/_decomp/decompositions.py and torch/_inductor/decomposition.py, _foreach_*
Differs: ops are found by their names; the schema says which arguments are lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.trace.decompositions.registry import aten, register
from refimpl.trace.refusals import is_expanded

Tensor = torch.Tensor
OnTensors = Callable[..., Tensor]


def _addcmul(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Tensor:
    return torch.addcmul(x, a, b, value=value)


def _addcdiv(x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Tensor:
    return torch.addcdiv(x, a, b, value=value)


def _norm(x: Tensor, ord: Any = 2, dtype: torch.dtype | None = None) -> Tensor:
    return torch.linalg.vector_norm(x, ord, dtype=dtype)


def _copied(x: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return aten.copy.default(x, source)


def _names() -> list[str]:
    return [name.removeprefix("_foreach_") for name in dir(torch) if name.startswith("_foreach_") and name[-1] != "_"]


_FUNCTIONS: dict[str, OnTensors] = {
    **{name: getattr(torch, name) for name in _names() if hasattr(torch, name)},
    # Those that take other arguments than the function of their name, or whose name torch does not have.
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "copy": _copied,
    "max": torch.amax,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "norm": _norm,
    "zero": torch.zeros_like,
}
# A tensor of scalars would have to be read.
_WITHOUT_RULE = {("addcmul", "Tensor"), ("addcdiv", "Tensor")}


def _is_list(argument: Any) -> bool:
    return str(argument.type) in ("List[Tensor]", "List[number]")


def _tensor_by_tensor(variant: OpOverload, function: OnTensors, *, is_in_place: bool) -> Any:
    """A rule that calls `function` for each position of the lists; other arguments are passed unchanged."""
    arguments = [a for a in variant._schema.arguments if not a.kwarg_only]

    def each(*args: Any, **kwargs: Any) -> Any:
        lists = [values for values, a in zip(args, arguments, strict=False) if _is_list(a)]
        count = len(lists[0])
        if any(len(values) != count for values in lists):
            return NotImplemented  # eager raises

        if is_in_place and any(map(is_expanded, args[0])):
            return NotImplemented  # some kernels write to expanded memory; copy_ refuses

        def result(i: int) -> Tensor:
            taken = [value[i] if _is_list(a) else value for value, a in zip(args, arguments, strict=False)]
            return function(*taken, **kwargs)

        results = [result(i) for i in range(count)]
        if not is_in_place:
            return results
        if any(
            r.shape != x.shape or not torch.can_cast(r.dtype, x.dtype) for r, x in zip(results, args[0], strict=True)
        ):
            return NotImplemented  # eager raises
        # Tensors in lists more than once are computed one after the other, as in eager, so that later ones read written values.
        given = [id(value) for values in lists for value in values]
        is_apart = len(set(given)) == len(given)
        for i, x in enumerate(args[0]):
            aten.copy_.default(x, results[i] if i == 0 or is_apart else result(i))
        return None

    each.__name__ = each.__qualname__ = f"{variant} tensor by tensor"
    return each


def _register_all() -> None:
    for name, function in _FUNCTIONS.items():
        for suffix in ("", "_"):
            packet = getattr(aten, f"_foreach_{name}{suffix}", None)
            for overload in packet.overloads() if packet is not None else ():
                variant = getattr(packet, overload)
                if any(a.is_out for a in variant._schema.arguments) or (name, overload) in _WITHOUT_RULE:
                    continue
                register(variant, _tensor_by_tensor(variant, function, is_in_place=suffix == "_"))


_register_all()
