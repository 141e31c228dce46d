"""Operators of TorchScript on numbers, strings and containers, as Python.

Counterpart: torch/_export/converter.py kind_to_standard_operators and the convert_* methods of TS2FXGraphConverter
Differs: they are run and not turned into nodes, so that containers never reach the graph. TorchScript names them as Python does:
which function a name means is looked up in Python, and only what differs stands in tables.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable, ItemsView, KeysView, Sequence, ValuesView
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES
from refimpl.export.torchscript.values import DTYPES, LAYOUTS, TruthOfTensor


def _add(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a + b if alpha == 1 else a + b * alpha


def _sub(a: Any, b: Any, alpha: Any = 1) -> Any:
    return a - b if alpha == 1 else a - b * alpha


def _div(a: Any, b: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return a / b
    if rounding_mode == "floor":
        return a // b
    return -(-a // b) if a * b < 0 else a // b


def _pow(a: Any, b: Any) -> Any:
    result = a**b
    return (
        math.nan
        if isinstance(result, complex) and not isinstance(a, complex) and not isinstance(b, complex)
        else result
    )


def _not(value: Any) -> Any:
    return TruthOfTensor(value.tensor.logical_not()) if isinstance(value, TruthOfTensor) else not value


def _int(value: Any) -> Any:
    return torch.sym_int(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else int(value)


def _float(value: Any) -> Any:
    return torch.sym_float(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else float(value)


def _slice(items: Any, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    return items[start:end:step]


def _print(*values: Any) -> None:
    print(*values)


def _warn(message: Any, stacklevel: int = 2) -> None:
    warnings.warn(str(message), stacklevel=stacklevel)


# Of numbers, strings and containers of these: what Python names or computes otherwise. The names are TorchScript's; each meaning
# is the thing itself, as the others below.
_NAMED_OTHERWISE: dict[str, Callable[..., Any]] = {
    "aten::add": _add, "aten::sub": _sub, "aten::rsub": lambda a, b: b - a, "aten::div": _div, "aten::pow": _pow,
    "aten::true_divide": operator.truediv, "aten::floor_divide": operator.floordiv, "aten::remainder": operator.mod,
    "aten::Int": _int, "aten::IntImplicit": _int, "aten::Float": _float, "aten::FloatImplicit": _float, "aten::Bool": bool,
    "aten::Complex": complex, "aten::ScalarImplicit": lambda value: value, "prim::NumToTensor": lambda value: value,
    "aten::slice": _slice, "aten::sort": lambda items, reverse=False: items.sort(reverse=reverse),
    "aten::format": str.format, "aten::join": str.join, "aten::warn": _warn, "prim::Print": _print,
}  # fmt: skip
# Functions that are operators of TorchScript under their own names, beside those of the module `operator`. Others of `math` raise
# where TorchScript gives NaN: its own operators run.
_PLAIN = (all, any, dict, divmod, len, list, max, min, round, sorted, str, sum)
_UNDER_ONE_NAME: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (*_PLAIN, math.ceil, math.exp, math.floor, math.log, math.sqrt)
}

# Of any values, tensors among them.
_ON_ANYTHING: dict[str, Callable[..., Any]] = {
    "aten::__is__": operator.is_, "aten::__isnot__": operator.is_not, "aten::__not__": _not,
    "aten::_set_item": operator.setitem, "aten::Delete": operator.delitem, "aten::list": list, "aten::dict": dict,
    "prim::TupleConstruct": lambda *values: tuple(values), "prim::ListConstruct": lambda *values: list(values),
    "prim::DictConstruct": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "prim::TupleIndex": operator.getitem, "prim::unchecked_cast": lambda value: value,
    "prim::data": lambda x: x.detach(), "prim::Uninitialized": lambda: None,
    "profiler::_record_function_enter": lambda *_: None, "profiler::_record_function_enter_new": lambda *_: None,
    "profiler::_record_function_exit": lambda *_: None,
}  # fmt: skip

_scalar_tensor: Any = torch.scalar_tensor  # takes symbolic numbers, which its types do not say


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> torch.Tensor:
    """A tensor of numbers, or of one that varies."""
    kind = None if dtype is None else DTYPES[dtype]
    if isinstance(data, SYMBOLIC_TYPES):
        default: dict[type, torch.dtype] = {
            torch.SymInt: torch.int64,
            torch.SymFloat: torch.get_default_dtype(),
            torch.SymBool: torch.bool,
        }
        made = _scalar_tensor(data, dtype=kind or default[type(data)], device=device)
    elif isinstance(data, torch.Tensor):
        made = data.clone().to(dtype=kind or data.dtype, device=device)
    elif isinstance(data, (list, tuple)) and any(
        isinstance(v, (torch.SymInt, torch.SymFloat, torch.Tensor)) for v in data
    ):
        made = torch.stack([tensor(value, dtype, device) for value in data])
    else:
        made = torch.tensor(data, dtype=kind, device=device)
    return made.requires_grad_(requires_grad)


# Of a tensor and more: what is not the tensor's method of that name.
_ON_TENSORS: dict[str, Callable[..., Any]] = {
    "aten::len": lambda x: x.shape[0], "aten::Bool": TruthOfTensor, "aten::Int": lambda x: _int(x.item()),
    "aten::Float": lambda x: _float(x.item()), "aten::Complex": lambda x: complex(x.item()),
    "aten::IntImplicit": lambda x: _int(x.item()), "aten::FloatImplicit": lambda x: _float(x.item()),
    "aten::ScalarImplicit": lambda x: x.item(), "aten::is_contiguous": lambda x, *_: x.is_contiguous(),
    "aten::requires_grad_": lambda x, on=True: x.requires_grad_(on), "aten::detach": lambda x: x.detach(),
    # What a trace writes down, with flags of the library behind it: those are the caller's. Before 2.12 it has no fake kernel.
    "aten::_convolution": lambda *values: torch.convolution(*values[:9]),
}  # fmt: skip


def on_anything(kind: str, values: Sequence[Any]) -> Callable[..., Any] | None:
    """The function of values of any kind, tensors among them: a method of a list or dict, an attribute of a tensor or device ...

    `aten::append` is `list.append`, `prim::is_cuda` an attribute. Where a dict's method gives a view, TorchScript's gives a list.
    """
    if kind in _ON_ANYTHING:
        return _ON_ANYTHING[kind]
    namespace, name = kind.split("::")
    first = values[0] if values else None
    if namespace == "aten" and isinstance(first, (list, dict)):
        function = _NAMED_OTHERWISE.get(kind) or getattr(type(first), name, None) or on_numbers(kind)
        return None if function is None else lambda *given: _without_view(function(*given))
    if namespace == "aten" and isinstance(first, tuple) and name == "__getitem__":
        return operator.getitem
    is_attribute = (
        isinstance(first, (torch.Tensor, torch.device)) and name in dir(first) and not callable(getattr(first, name))
    )
    return (lambda value: _numbered(getattr(value, name))) if namespace == "prim" and is_attribute else None


def on_tensor(kind: str, schema: str) -> Callable[..., Any] | None:
    """The function of a tensor that gives numbers: its method of this name, as in `aten::size`, with few exceptions."""
    if kind in _ON_TENSORS:
        return _ON_TENSORS[kind]
    namespace, name = kind.split("::")
    gives_numbers = schema.rpartition("->")[2].strip() in ("int", "int[]", "bool", "Scalar")
    if namespace != "aten" or not gives_numbers or not hasattr(torch.Tensor, name):
        return None
    return lambda x, *rest: _with_list(getattr(x, name)(*rest))


def on_numbers(kind: str) -> Callable[..., Any] | None:
    """The function of numbers, strings, and containers of them, if Python has it."""
    if kind in _NAMED_OTHERWISE:
        return _NAMED_OTHERWISE[kind]
    namespace, name = kind.split("::")
    if namespace not in ("aten", "prim"):
        return None
    return _UNDER_ONE_NAME.get(name) or getattr(operator, name, None)


def _without_view(value: Any) -> Any:
    return list(value) if isinstance(value, (KeysView, ValuesView, ItemsView)) else value


def _with_list(value: Any) -> Any:
    """Sizes and strides as a list."""
    return list(value) if isinstance(value, tuple) else value


def _numbered(value: Any) -> Any:
    """Dtypes and layouts as TorchScript's numbers."""
    if isinstance(value, torch.dtype):
        return DTYPES.index(value)
    return LAYOUTS.index(value) if isinstance(value, torch.layout) else value
