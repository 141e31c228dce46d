"""Calls: makes a function and its arguments from a sample, one short function for each kind of call.

A subject compiles this function. It takes the operator's arguments, so that the sample's tensors are the graph's inputs; only
arguments that a graph cannot take (callables, generators) are bound beforehand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.utils import _pytree as pytree

from oracle.errors import InternalError
from oracle.program.clone import clone_tree
from suites.opinfo.database import OpInfo, SampleInput
from suites.opinfo.generate import isolated_rng, tensors_of
from suites.opinfo.operators import inplace_of, operator_of

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpCall:
    """A function with its arguments. The tensors are shared: clone them before use."""

    function: Callable[..., Any]
    args: Args
    kwargs: Kwargs


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One way to call an entry."""

    tag: str
    source: str  # one of upstream's generators: "sample", "reference", "error"
    directions: tuple[str, ...]
    has: Callable[[OpInfo, bool], bool]  # (entry, backward): does the entry have this kind at all
    fits: Callable[[OpInfo, SampleInput], bool]  # does the sample
    is_derived: bool = False  # a kind of ours, not upstream's: not planned if eager refuses it
    call: Callable[[OpInfo, SampleInput, bool], OpCall]  # (entry, sample, backward)


def direct(info: OpInfo, one: SampleInput, backward: bool) -> OpCall:
    """op(input, *args, **kwargs)."""
    op, args, kwargs = _without_callables(operator_of(info), (one.input, *one.args), one.kwargs)
    return OpCall(function=_processed(op, one) if backward else _plain(op), args=args, kwargs=kwargs)


def noncontiguous(info: OpInfo, one: SampleInput, backward: bool) -> OpCall:
    """Like `direct`, on tensors with gaps between their elements."""
    return direct(info, _noncontiguous_copy(one), backward)


def inplace(info: OpInfo, one: SampleInput, backward: bool) -> OpCall:
    """input.op_(*args, **kwargs). Forward writes into the argument; backward into a copy, since leaves refuse it."""
    op, args, kwargs = _without_callables(inplace_of(info), (_writable(one.input), *one.args), one.kwargs)
    return OpCall(function=_processed_on_copy(op, one) if backward else _plain(op), args=args, kwargs=kwargs)


def out(info: OpInfo, one: SampleInput, backward: bool) -> OpCall:
    """op(..., out=buffer), the buffer shaped and laid out like eager's result."""
    call = direct(info, one, backward)
    buffers = pytree.tree_map_only(torch.Tensor, _filled_like, _eager_result(info, one))
    return OpCall(function=call.function, args=call.args, kwargs={**call.kwargs, "out": _as_out(buffers)})


def out_strided(info: OpInfo, one: SampleInput, backward: bool) -> OpCall:
    """op(..., out=buffer), where buffer is every second element of a larger tensor: its strides must not change."""
    call = out(info, one, backward)
    buffers = pytree.tree_map_only(torch.Tensor, _filled_with_gaps_like, call.kwargs["out"])
    return OpCall(function=call.function, args=call.args, kwargs={**call.kwargs, "out": buffers})


# ------------------------------------------------------------------------------------------------ the functions compiled


def _plain(op: Callable[..., Any]) -> Callable[..., Any]:
    def program(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    return program


def _processed(op: Callable[..., Any], one: SampleInput) -> Callable[..., Any]:
    process = one.output_process_fn_grad  # makes the result differentiable, or unique (signs of eigenvectors)

    def program(*args: Any, **kwargs: Any) -> Any:
        return process(op(*args, **kwargs))

    return program


def _processed_on_copy(op: Callable[..., Any], one: SampleInput) -> Callable[..., Any]:
    process = one.output_process_fn_grad

    def program(first: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return process(op(first.clone(), *args, **kwargs))

    return program


def _without_callables(
    op: Callable[..., Any] | None, args: Args, kwargs: Mapping[str, Any]
) -> tuple[Any, Args, Kwargs]:
    """Bind arguments that are not data (a distance function, a module, a generator)."""
    if op is None:
        raise InternalError("a kind of call was planned for an entry that does not have it")
    bound = {key: value for key, value in kwargs.items() if callable(value) or isinstance(value, torch.Generator)}
    rest = {key: value for key, value in kwargs.items() if key not in bound}
    return (partial(op, **bound) if bound else op), args, rest


# --------------------------------------------------------------------------------------------------------------- buffers


def _noncontiguous_copy(one: SampleInput) -> SampleInput:
    # The copies of tensors that need gradients must be leaves that need them, as the originals are.
    needs_grad = [tensor.requires_grad for tensor in tensors_of(one)]
    copy = one.noncontiguous()
    for tensor, needed in zip(tensors_of(copy), needs_grad, strict=True):
        tensor.requires_grad_(needed)
    return copy


def _writable(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a dense copy if elements share memory (in-place operators refuse those)."""
    if torch._C._overlaps(tensor, tensor) and 0 in tensor.stride():
        return tensor.detach().clone(memory_format=torch.contiguous_format).requires_grad_(tensor.requires_grad)
    return tensor


def _eager_result(info: OpInfo, one: SampleInput) -> Any:
    """The operator's result in eager, on copies, without changing the RNG."""
    first, args, kwargs = clone_tree((one.input, one.args, one.kwargs))
    with torch.no_grad(), isolated_rng(0, _device_of(one)):
        return operator_of(info)(first, *args, **kwargs)


def eager_takes(kind: Kind, info: OpInfo, one: SampleInput, backward: bool) -> bool:
    """Whether eager accepts this kind of call (its forward), tried on copies without changing the RNG."""
    try:
        call = kind.call(info, one, backward)
        args, kwargs = clone_tree((call.args, call.kwargs))
        with isolated_rng(0, _device_of(one)), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # shown when the program runs
            call.function(*args, **kwargs)
    except Exception:  # refused; if the call is planned, a run compares the exception itself
        return False
    return True


def _device_of(one: SampleInput) -> torch.device:
    return next((tensor.device for tensor in tensors_of(one)), torch.device("cpu"))


def _filled_like(tensor: torch.Tensor) -> torch.Tensor:
    # Ones instead of uninitialised memory, so that an operator that does not write is always noticed.
    return torch.ones_like(tensor)


def _filled_with_gaps_like(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.new_ones((*tensor.shape, 2))[..., 0]


def _as_out(buffers: Any) -> Any:
    """Pass named tuples and lists of results as a plain tuple."""
    return tuple(buffers) if isinstance(buffers, (tuple, list)) else buffers


# ------------------------------------------------------------------------------------------------------------- the table


def _always(info: OpInfo, backward: bool) -> bool:
    return True


def _has_inplace(info: OpInfo, backward: bool) -> bool:
    return inplace_of(info) is not None and (not backward or bool(info.supports_inplace_autograd))


def _has_out(info: OpInfo, backward: bool) -> bool:
    return info.supports_out


def _any_sample(info: OpInfo, one: SampleInput) -> bool:
    return True


def _fits_inplace(info: OpInfo, one: SampleInput) -> bool:
    return isinstance(one.input, torch.Tensor)


def _fits_out(info: OpInfo, one: SampleInput) -> bool:
    return "out" not in one.kwargs


def _differs_noncontiguous(info: OpInfo, one: SampleInput) -> bool:
    return any(
        tensor.layout == torch.strided and tensor.is_contiguous() and tensor.numel() > 1 for tensor in tensors_of(one)
    )


BOTH = ("forward", "backward")
FORWARD = ("forward",)

# In the order in which programs are listed.
KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "sample": Kind(tag="sample", source="sample", directions=BOTH, has=_always, fits=_any_sample, call=direct),
        "inplace": Kind(
            tag="inplace",
            source="sample",
            directions=BOTH,
            has=_has_inplace,
            fits=_fits_inplace,
            call=inplace,
            is_derived=True,
        ),
        "out": Kind(
            tag="out",
            source="sample",
            directions=FORWARD,
            has=_has_out,
            fits=_fits_out,
            call=out,
            is_derived=True,
        ),
        "out_strided": Kind(
            tag="out",
            source="sample",
            directions=FORWARD,
            has=_has_out,
            fits=_fits_out,
            call=out_strided,
            is_derived=True,
        ),
        "noncontiguous": Kind(
            tag="noncontiguous",
            source="sample",
            directions=BOTH,
            has=_always,
            fits=_differs_noncontiguous,
            call=noncontiguous,
            is_derived=True,
        ),
        "reference": Kind(
            tag="reference", source="reference", directions=BOTH, has=_always, fits=_any_sample, call=direct
        ),
        "error": Kind(tag="error", source="error", directions=FORWARD, has=_always, fits=_any_sample, call=direct),
    }
)
