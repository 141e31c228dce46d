"""Lines that make one value for each row of a block, [XBLOCK, RBLOCK] -> [XBLOCK, 1]; or a running one for each point."""

from __future__ import annotations

from typing import Any

import torch

from refimpl.codegen.loop_ir import ReductionKind
from refimpl.codegen.printing.functions import TRITON_DTYPES, constant, expression
from refimpl.codegen.printing.values import KernelNamesState

HELPERS = {
    "_multiply": "@triton.jit\ndef _multiply(a, b):\n    return a * b\n",
}
"""Functions that lines call, by name."""

FULL = "[XBLOCK, RBLOCK]"
_IDENTITIES: dict[ReductionKind, Any] = {"sum": 0, "prod": 1, "any": 0, "all": 1}


def identity(kind: ReductionKind, dtype: torch.dtype) -> Any:
    """What changes no result."""
    if kind in _IDENTITIES:
        return float(_IDENTITIES[kind]) if dtype.is_floating_point else _IDENTITIES[kind]
    is_max = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return float("-inf") if is_max else float("inf")
    info = torch.iinfo(dtype)
    return info.min if is_max else info.max


def combined(kind: ReductionKind, total: str, value: str, dtype: torch.dtype) -> str:
    """Of two values."""
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
) -> tuple[list[str], list[str]]:
    """Lines before a loop over blocks, and lines in it, that keep a total for every lane; and its place, of argmax and argmin."""
    starts = [f"{total} = {constant(identity(kind, dtype), dtype, FULL)}"]
    value = names.new()
    lines = [f"{value} = {wide}"]
    if kind not in ("argmax", "argmin"):
        both = combined(kind, total, value, dtype)
        lines.append(f"{total} = tl.where({mask}, {both}, {total})" if mask else f"{total} = {both}")
        return starts, lines
    starts.append(f"{places} = tl.full({FULL}, {2**62}, tl.int64)")
    order = ">" if kind == "argmax" else "<"
    better = f"({value} {order} {total})"
    if dtype.is_floating_point:
        better = f"({better} & ({total} == {total})) | (({value} != {value}) & ({total} == {total}))"
    better = f"({better}) | ({places} == {2**62})"
    if mask:
        better = f"({better}) & {mask}"
    chosen = names.new("better")
    lines += [
        f"{chosen} = {better}",
        f"{places} = tl.where({chosen}, r.to(tl.int64), {places})",
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
) -> tuple[list[str], set[str]]:
    """From a block of values to one for each row, called `row`, in the dtype `to`; and the helpers that are called.

    mask: of the lanes that have values, where the others do not have the identity.
    """
    is_float = dtype.is_floating_point
    column = "[:, None]"
    if kind == "sum":
        return [f"{row} = tl.sum({values}, 1){column}.to({TRITON_DTYPES[to]})"], set()
    if kind == "prod":
        return [f"{row} = tl.reduce({values}, 1, _multiply){column}.to({TRITON_DTYPES[to]})"], {"_multiply"}
    if kind in ("any", "all"):
        return [f"{row} = tl.{'max' if kind == 'any' else 'min'}({values}, 1){column} != 0"], set()
    reduce = "max" if kind in ("max", "argmax") else "min"
    best = row if kind in ("max", "min") else names.new("best")
    lines: list[str] = []
    source, nan = values, ""
    if is_float:
        nan, clean = names.new("nan"), names.new()
        lowest = constant(float("-inf") if reduce == "max" else float("inf"), dtype, FULL)
        lines += [
            f"{nan} = tl.max(({values} != {values}).to(tl.int32), 1){column} != 0",
            f"{clean} = tl.where({values} != {values}, {lowest}, {values})",
        ]
        source = clean
    lines.append(f"{best} = tl.{reduce}({source}, 1){column}")
    if kind in ("max", "min"):
        if is_float:
            lines.append(f"{best} = tl.where({nan}, {constant(float('nan'), dtype, '[1, 1]')}, {best})")
        lines.append(f"{best} = {best}.to({TRITON_DTYPES[to]})")
        return lines, set()
    same = f"({values} == {best})"
    if is_float:
        same = f"tl.where({nan}, {values} != {values}, {values} == {best})"
    if mask:
        same = f"{same} & {mask}"
    none = constant(2**62, torch.int64, FULL)
    lines.append(f"{row} = tl.min(tl.where({same}, {places}, {none}), 1){column}")
    return lines, set()
