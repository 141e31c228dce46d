"""Prints reductions of a block, [XBLOCK, RBLOCK] -> [XBLOCK, 1], and scans, which give a running result at every point."""

from __future__ import annotations

import torch

from refimpl.codegen.loop_ir import ReductionKind, identity
from refimpl.codegen.printing.functions import TRITON_DTYPES, constant, expression
from refimpl.codegen.printing.values import KernelNamesState

HELPERS = {
    "_multiply": "@triton.jit\ndef _multiply(a, b):\n    return a * b\n",
    "_maximum": "@triton.jit\ndef _maximum(a, b):\n    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
    "_minimum": "@triton.jit\ndef _minimum(a, b):\n    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)\n",
}
"""Helper functions of kernels, by name."""

NOWHERE: dict[torch.dtype, int] = {torch.int32: 2**31 - 1, torch.int64: 2**62}
"""A number greater than any index, by the dtype of indices."""

FULL = "[XBLOCK, RBLOCK]"


def combined(kind: ReductionKind, total: str, value: str, dtype: torch.dtype) -> str:
    """Combines two values."""
    if kind in ("sum", "prod"):
        return f"{total} {'+' if kind == 'sum' else '*'} {value}"
    function = "maximum" if kind in ("max", "any") else "minimum"
    return expression(function, [total, value], [dtype, dtype], dtype)


def accumulate_lines(
    kind: ReductionKind,
    total: str,
    places: str,
    wide: str,
    dtype: torch.dtype,
    *,
    mask: str | None,
    names: KernelNamesState,
    place_dtype: torch.dtype,
) -> tuple[list[str], list[str]]:
    """Lines before a loop over blocks, and lines in it, that keep a running result per lane; for argmax and argmin also its
    index."""
    starts = [f"{total} = {constant(identity(kind, dtype), dtype, FULL)}"]
    if kind not in ("argmax", "argmin"):
        both = combined(kind, total, wide, dtype)
        return starts, [f"{total} = tl.where({mask}, {both}, {total})" if mask else f"{total} = {both}"]
    value, chosen, nowhere = names.new(), names.new("better"), NOWHERE[place_dtype]
    starts.append(f"{places} = {constant(nowhere, place_dtype, FULL)}")
    order = ">" if kind == "argmax" else "<"
    better = f"({value} {order} {total})"
    if dtype.is_floating_point:
        better = f"({better} & ({total} == {total})) | (({value} != {value}) & ({total} == {total}))"
    better = f"({better}) | ({places} == {nowhere})"
    if mask:
        better = f"({better}) & {mask}"
    lines = [
        f"{value} = {wide}",
        f"{chosen} = {better}",
        f"{places} = tl.where({chosen}, r, {places})",
        f"{total} = tl.where({chosen}, {value}, {total})",
    ]
    return starts, lines


def finish_lines(
    kind: ReductionKind,
    row: str,
    values: str,
    places: str,
    dtype: torch.dtype,
    to: torch.dtype,
    *,
    mask: str | None,
    names: KernelNamesState,
    place_dtype: torch.dtype,
    axis: int = 1,
) -> tuple[list[str], set[str]]:
    """Lines that reduce a block of values to one per row, called `row`, in the dtype `to`, and the helpers that they call. With
    `axis` 0 the result is one per column.

    mask: the lanes that have values, if the others do not hold the identity.
    """
    along = "[:, None]" if axis == 1 else "[None, :]"
    cast = "" if to == dtype else f".to({TRITON_DTYPES[to]})"
    if kind == "sum":
        return [f"{row} = tl.sum({values}, {axis}){along}{cast}"], set()
    if kind in ("any", "all"):
        return [f"{row} = tl.{'max' if kind == 'any' else 'min'}({values}, {axis}){along} != 0"], set()
    is_float = dtype.is_floating_point
    if kind == "prod" or is_float:  # tl.max and tl.min know no NaN
        helper = "_multiply" if kind == "prod" else "_maximum" if kind in ("max", "argmax") else "_minimum"
        best, helpers = f"tl.reduce({values}, {axis}, {helper}){along}", {helper}
    else:
        best, helpers = f"tl.{'max' if kind in ('max', 'argmax') else 'min'}({values}, {axis}){along}", set[str]()
    if kind not in ("argmax", "argmin"):
        return [f"{row} = {best}{cast}"], helpers
    name, found = names.new("best"), names.new("found")
    is_here = f"({values} == {name}) | ({values} != {values})" if is_float else f"{values} == {name}"
    if mask:
        is_here = f"({is_here}) & {mask}"
    lines = [
        f"{name} = {best}",
        f"{found} = tl.where({is_here}, {places}, {NOWHERE[place_dtype]})",
        f"{row} = tl.min({found}, {axis}){along}{'' if place_dtype == to else f'.to({TRITON_DTYPES[to]})'}",
    ]
    return lines, helpers
