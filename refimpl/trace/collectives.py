"""Collectives of torch.distributed in functional form: operators that return new tensors and know their group by its name.

The operators that eager runs write to tensors and take the objects of process groups. A graph with those can neither be saved nor
made functional.

Counterpart: torch/distributed/_functional_collectives.py traceable_collective_remaps; torch/_export/non_strict_utils.py
_NonStrictTorchFunctionHandler
Differs: collectives that return a handle (`async_op=True`) run as they are.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

_MODULE = "torch.distributed.distributed_c10d"
_KERNELS = "torch.distributed._functional_collectives"  # loading it registers the operators' fake kernels


def functional_form(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], None] | None:
    """The functional form of a call of a collective; None for other functions, and for collectives without one, also where this
    process is not in the group."""
    if getattr(func, "__module__", None) != _MODULE or kwargs.get("async_op"):
        return None
    rule = _RULES.get(func.__name__)
    if rule is None:
        return None
    group = kwargs.get("group") or torch.distributed.group.WORLD
    is_named = hasattr(kwargs.get("op", torch.distributed.ReduceOp.SUM), "name")  # a scaled sum has no name
    if not isinstance(group, torch.distributed.ProcessGroup) or not is_named:
        return None
    importlib.import_module(_KERNELS)
    options = {name: value for name, value in kwargs.items() if name not in ("group", "async_op")}
    return functools.partial(rule, group, *args, **options)


def _operator(name: str, *args: Any) -> torch.Tensor:
    """The result of a functional collective, when it has arrived."""
    operators = torch.ops._c10d_functional
    return operators.wait_tensor(getattr(operators, name)(*args))


def _name_of(op: Any) -> str:
    """The name of a reduction, `sum`."""
    return op.name.lower()


def _all_reduce(group: Any, tensor: torch.Tensor, *, op: Any) -> None:
    tensor.copy_(_operator("all_reduce", tensor, _name_of(op), group.group_name))


def _gathered(group: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The tensors of all ranks, one below the other."""
    return _operator("all_gather_into_tensor", tensor, group.size(), group.group_name)


def _all_gather_single(group: Any, output: torch.Tensor, tensor: torch.Tensor) -> None:
    output.copy_(_gathered(group, tensor).view(output.shape))


def _all_gather(group: Any, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
    rows = tensor if tensor.dim() else tensor.view(1)
    for output, part in zip(outputs, _gathered(group, rows).chunk(group.size()), strict=True):
        output.copy_(part.view(output.shape))


def _reduce_scatter_single(group: Any, output: torch.Tensor, tensor: torch.Tensor, *, op: Any) -> None:
    rows = tensor if tensor.dim() == output.dim() else tensor.flatten(0, 1)  # a stack of the parts of all ranks
    found = _operator("reduce_scatter_tensor", rows, _name_of(op), group.size(), group.group_name)
    output.copy_(found.view(output.shape))


def _all_to_all_single(
    group: Any,
    output: torch.Tensor,
    tensor: torch.Tensor,
    *,
    output_split_sizes: Sequence[Any] | None = None,
    input_split_sizes: Sequence[Any] | None = None,
) -> None:
    received, sent = (
        list(sizes) if sizes is not None else [of.shape[0] // group.size()] * group.size()
        for sizes, of in ((output_split_sizes, output), (input_split_sizes, tensor))
    )
    output.copy_(_operator("all_to_all_single", tensor, received, sent, group.group_name))


# By the name of the function that a call arrives as; the second names are those of torch before 2.13.
_RULES: dict[str, Callable[..., None]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "all_gather_into_tensor": _all_gather_single,
    "reduce_scatter_single": _reduce_scatter_single,
    "reduce_scatter_tensor": _reduce_scatter_single,
    "all_to_all_single": _all_to_all_single,
}
