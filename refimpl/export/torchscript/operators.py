"""Operators of TorchScript on numbers, strings and containers, as Python.

Counterpart: torch/_export/converter.py kind_to_standard_operators and the convert_* methods of TS2FXGraphConverter
Differs: they are run and not turned into nodes, so that containers never reach the graph.
"""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from typing import Any

import torch

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


def _not(value: Any) -> Any:
    return TruthOfTensor(value.tensor.logical_not()) if isinstance(value, TruthOfTensor) else not value


def _int(value: Any) -> Any:
    return torch.sym_int(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else int(value)


def _float(value: Any) -> Any:
    return torch.sym_float(value) if isinstance(value, (torch.SymInt, torch.SymFloat)) else float(value)


def _ceil(value: Any) -> Any:
    return math.ceil(value)


def _set_item(container: Any, key: Any, value: Any) -> Any:
    container[key] = value
    return container


def _append(items: list[Any], value: Any) -> list[Any]:
    items.append(value)
    return items


def _extend(items: list[Any], values: Any) -> None:
    items.extend(values)


def _insert(items: list[Any], index: int, value: Any) -> None:
    items.insert(index, value)


def _slice(items: Any, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    return items[start:end:step]


def _print(*values: Any) -> None:
    print(*values)


def _warn(message: Any, stacklevel: int = 2) -> None:
    warnings.warn(str(message), stacklevel=stacklevel)


# By kind of node. They take what is no tensor; with tensors the operator of the same name is called.
PYTHON: dict[str, Callable[..., Any]] = {
    "aten::add": _add, "aten::sub": _sub, "aten::mul": operator.mul, "aten::div": _div, "aten::floordiv": operator.floordiv,
    "aten::floor_divide": operator.floordiv, "aten::remainder": operator.mod, "aten::mod": operator.mod,
    "aten::pow": operator.pow, "aten::neg": operator.neg, "aten::abs": abs, "prim::abs": abs, "aten::rsub": lambda a, b: b - a,
    "aten::true_divide": operator.truediv, "aten::divmod": divmod,
    "aten::eq": operator.eq, "aten::ne": operator.ne, "aten::lt": operator.lt, "aten::le": operator.le,
    "aten::gt": operator.gt, "aten::ge": operator.ge,
    "aten::__and__": operator.and_, "aten::__or__": operator.or_, "aten::__xor__": operator.xor,
    "aten::__lshift__": operator.lshift, "aten::__rshift__": operator.rshift,
    "aten::ceil": _ceil, "aten::floor": math.floor, "aten::round": round, "aten::sqrt": math.sqrt,
    "aten::exp": math.exp, "aten::log": math.log,
    "aten::Int": _int, "aten::Float": _float, "aten::Bool": bool, "aten::Complex": complex,
    "aten::IntImplicit": _int, "aten::FloatImplicit": _float, "aten::ScalarImplicit": lambda value: value,
    "aten::len": len, "aten::__getitem__": operator.getitem, "aten::_set_item": _set_item, "aten::append": _append,
    "aten::extend": _extend, "aten::insert": _insert, "aten::pop": lambda items, *at: items.pop(*at),
    "aten::reverse": lambda items: items.reverse(), "aten::copy": lambda items: items.copy(), "aten::clear": lambda i: i.clear(),
    "aten::Delete": operator.delitem, "aten::slice": _slice, "aten::list": list, "aten::index": lambda items, v: items.index(v),
    "aten::count": lambda items, v: items.count(v), "aten::sorted": sorted, "aten::sort": lambda i, r=False: i.sort(reverse=r),
    "aten::keys": lambda d: list(d.keys()), "aten::values": lambda d: list(d.values()), "aten::items": lambda d: list(d.items()),
    "aten::get": lambda d, *key: d.get(*key), "aten::dict": lambda *d: dict(*d), "aten::update": lambda d, o: d.update(o),
    "aten::str": str, "aten::format": lambda text, *values: text.format(*values), "aten::join": lambda s, items: s.join(items),
    "aten::warn": _warn, "prim::Print": _print,
    "prim::min": min, "prim::max": max, "aten::sum": sum, "aten::all": all, "aten::any": any,
    "prim::NumToTensor": lambda value: value,
}  # fmt: skip

# These take any value, tensors included.
ON_ANYTHING: dict[str, Callable[..., Any]] = {
    "aten::__is__": lambda a, b: a is b, "aten::__isnot__": lambda a, b: a is not b, "aten::__not__": _not,
    "aten::__contains__": lambda items, value: value in items,
    "aten::__getitem__": operator.getitem, "aten::append": _append, "aten::_set_item": _set_item,
    "aten::insert": _insert, "aten::extend": _extend, "aten::list": list, "aten::get": PYTHON["aten::get"],
    "aten::pop": PYTHON["aten::pop"], "aten::reverse": PYTHON["aten::reverse"], "aten::update": PYTHON["aten::update"],
    "aten::keys": PYTHON["aten::keys"], "aten::values": PYTHON["aten::values"], "aten::items": PYTHON["aten::items"],
    "aten::dict": PYTHON["aten::dict"], "aten::Delete": operator.delitem,
    "prim::TupleConstruct": lambda *values: tuple(values), "prim::ListConstruct": lambda *values: list(values),
    "prim::DictConstruct": lambda *items: dict(zip(items[::2], items[1::2], strict=True)),
    "prim::TupleIndex": operator.getitem, "prim::unchecked_cast": lambda value: value,
    "prim::data": lambda x: x.detach(), "prim::Uninitialized": lambda: None, "prim::requires_grad": lambda x: x.requires_grad,
    "prim::dtype": lambda x: DTYPES.index(x.dtype), "prim::device": lambda x: x.device,
    "prim::layout": lambda x: LAYOUTS.index(x.layout), "prim::is_cuda": lambda x: x.is_cuda,
    "prim::is_cpu": lambda x: x.device.type == "cpu", "prim::is_sparse": lambda x: x.is_sparse,
    "prim::is_quantized": lambda x: x.is_quantized, "prim::type": lambda device: device.type, "prim::index": lambda d: d.index,
    "prim::is_meta": lambda x: x.is_meta, "prim::itemsize": lambda x: x.dtype.itemsize, "prim::T": lambda x: x.T,
    "prim::shape": lambda x: list(x.shape),
    "profiler::_record_function_enter": lambda *_: None, "profiler::_record_function_enter_new": lambda *_: None,
    "profiler::_record_function_exit": lambda *_: None,
}  # fmt: skip


def size(x: torch.Tensor, dim: int | None = None) -> Any:
    """Of a tensor, as a list or one number."""
    return list(x.shape) if dim is None else x.shape[dim]


_scalar_tensor: Any = torch.scalar_tensor  # takes symbolic numbers, which its types do not say


def tensor(data: Any, dtype: Any = None, device: Any = None, requires_grad: bool = False) -> torch.Tensor:
    """A tensor of numbers, or of one that varies."""
    kind = None if dtype is None else DTYPES[dtype]
    if isinstance(data, (torch.SymInt, torch.SymFloat, torch.SymBool)):
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


# Operators on tensors that give numbers or containers, or take numbers for dtypes.
ON_TENSORS: dict[str, Callable[..., Any]] = {
    "aten::size": size, "aten::stride": lambda x, *dim: x.stride(*dim) if dim else list(x.stride()),
    "aten::dim": lambda x: x.dim(), "aten::numel": lambda x: x.numel(), "aten::len": lambda x: x.shape[0],
    "aten::Bool": TruthOfTensor, "aten::Int": lambda x: _int(x.item()), "aten::Float": lambda x: _float(x.item()),
    "aten::Complex": lambda x: complex(x.item()), "aten::item": lambda x: x.item(),
    "aten::IntImplicit": lambda x: _int(x.item()), "aten::FloatImplicit": lambda x: _float(x.item()),
    "aten::ScalarImplicit": lambda x: x.item(), "aten::is_floating_point": lambda x: x.is_floating_point(),
    "aten::is_complex": lambda x: x.is_complex(), "aten::storage_offset": lambda x: x.storage_offset(),
    "aten::get_device": lambda x: x.get_device(), "aten::is_contiguous": lambda x, *_: x.is_contiguous(),
    "aten::requires_grad_": lambda x, on=True: x.requires_grad_(on), "aten::detach": lambda x: x.detach(),
    # What a trace writes down, with flags of the library behind it: those are the caller's. Before 2.12 it has no fake kernel.
    "aten::_convolution": lambda *values: torch.convolution(*values[:9]),
}  # fmt: skip
