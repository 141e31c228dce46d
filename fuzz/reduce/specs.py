"""Passes over the arguments: fewer of them, contiguous memory, common dtypes, simple values, small shapes."""

from __future__ import annotations

import base64
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from fuzz.program.editing import (
    Edit,
    drop_arguments,
    input_names,
    renamed_statement,
    specs_of,
    tidied,
    with_specs,
)
from fuzz.program.structure import Expr, FuzzProgram, Items, OpCall, Operand, renamed
from fuzz.reduce.search import SearchState
from oracle.program import Call

Spec = dict[str, Any]
_LAYOUT_FIELDS = ("stride", "offset", "memory_format", "storage_size", "conj", "neg")


def drop_unused(state: SearchState) -> None:
    """Drop unused arguments, including those that share memory."""
    state.accept(tidied(state.current))
    state.accept_edits([_without_argument(name) for name in state.current.arguments])


def _without_argument(name: str) -> Edit:
    def edit(program: FuzzProgram) -> FuzzProgram | None:
        return drop_arguments(program, {name}) if name in program.arguments else None

    return edit


def merge_arguments(state: SearchState) -> None:
    """Use one argument in place of another of the same shape and dtype, if neither is written to."""
    program, live = state.current, state.live
    if program.derive or live is None:
        return
    written = {name for call in live for name in call.written}
    for name in reversed(program.arguments[1:]):
        for other in program.arguments[: program.arguments.index(name)]:
            if (
                {name, other} <= set(state.current.arguments)
                and not {name, other} & written
                and _alike(state.current, name, other)
            ):
                state.accept(_merged(state.current, name, other))


def _alike(program: FuzzProgram, name: str, other: str) -> bool:
    pairs = zip(specs_of(program, name), specs_of(program, other), strict=True)
    return all(
        _is_tensor(one) and _is_tensor(two) and (one["shape"], one["dtype"]) == (two["shape"], two["dtype"])
        for one, two in pairs
    )


def _merged(program: FuzzProgram, name: str, other: str) -> FuzzProgram:
    statements = tuple(renamed_statement(s, {name: other}) for s in program.statements)
    merged = replace(program, statements=statements, result=renamed(program.result, {name: other}))
    return drop_arguments(merged, {name})


# ------------------------------------------------------------------------------------------------------- memory and dtype


def reduce_memory(state: SearchState) -> None:
    """Give as many arguments as possible contiguous memory of their own."""
    state.accept_edits([_each_call(name, _unshared) for name in input_names(state.current)])
    state.accept_edits([_each_call(name, _dense) for name in input_names(state.current)])


def _each_call(name: str, change: Callable[[Spec, Call], Spec | None]) -> Edit:
    """Change one argument's spec in every call."""

    def edit(program: FuzzProgram) -> FuzzProgram | None:
        if name not in input_names(program):
            return None
        specs = specs_of(program, name)
        changed = [
            (change(spec, call) if isinstance(spec, dict) and "$" in spec else None) or spec
            for spec, call in zip(specs, program.calls, strict=True)
        ]
        return with_specs(program, name, changed) if changed != specs else None

    return edit


def _unshared(spec: Spec, call: Call) -> Spec | None:
    if spec.get("$") == "same":
        twin = next((s for s in call.args if isinstance(s, dict) and s.get("id") == spec["id"]), None)
        return None if twin is None or twin is spec else {k: v for k, v in twin.items() if k != "id"}
    if "storage" not in spec:
        return None
    slim = {key: value for key, value in spec.items() if key != "storage"}
    if not slim.get("fill"):
        filler = (s for s in call.args if isinstance(s, dict) and s.get("storage") == spec["storage"] and s.get("fill"))
        slim["fill"] = next((s["fill"] for s in filler), None)
    if not slim["fill"] or slim["fill"].get("kind") in ("values", "raw"):
        slim.pop("fill")
    return slim


def _dense(spec: Spec, call: Call) -> Spec | None:
    if not _is_tensor(spec) or not any(field in spec for field in _LAYOUT_FIELDS):
        return None
    if spec.get("fill", {}).get("kind") == "raw":
        return None
    return {key: value for key, value in spec.items() if key not in _LAYOUT_FIELDS}


_PLAIN_DTYPES = {
    "float": "float32",
    "bfloat": "float32",
    "complex": "float32",
    "int": "int64",
    "uint": "int64",
    "bool": "",
}


def reduce_dtypes(state: SearchState) -> None:
    """Try float32 and int64 instead of other dtypes: for all arguments of a dtype, then for single arguments."""
    dtypes = sorted({spec["dtype"] for call in state.current.calls for spec in call.args if _is_tensor(spec)})
    exotic = [dtype for dtype in dtypes if _plain_dtype(dtype) not in ("", dtype)]
    state.accept_edits([_dtype_everywhere(dtype, _plain_dtype(dtype)) for dtype in exotic])
    for name in input_names(state.current):
        state.accept_edits([_each_call(name, _with_plain_dtype)])


def _plain_dtype(dtype: str) -> str:
    return _PLAIN_DTYPES.get(dtype.rstrip("0123456789_fnuzme"), "float32" if dtype.startswith("float8") else "")


def _with_plain_dtype(spec: Spec, call: Call) -> Spec | None:
    return _with_dtype(spec, _plain_dtype(spec["dtype"])) if _is_tensor(spec) and _plain_dtype(spec["dtype"]) else None


def _with_dtype(spec: Spec, dtype: str) -> Spec | None:
    fill = spec.get("fill", {})
    if fill.get("kind") == "raw" or "storage" in spec:
        return None
    if fill.get("kind") == "values" and any(isinstance(value, list) for value in fill["values"]):
        fill = {**fill, "values": [value[0] if isinstance(value, list) else value for value in fill["values"]]}
    changed = {**spec, "dtype": dtype, **({"fill": fill} if fill else {})}
    return {k: v for k, v in changed.items() if k not in ("conj",)} if not dtype.startswith("complex") else changed


def _dtype_everywhere(old: str, new: str) -> Edit:
    def change(spec: Any) -> Any:
        if not _is_tensor(spec) or spec["dtype"] != old:
            return spec
        return _with_dtype(spec, new) or spec

    def of_leaf(operand: Operand) -> Operand:
        is_dtype = isinstance(operand, Expr) and operand.text == f"torch.{old}"
        return Expr(f"torch.{new}") if is_dtype else operand

    def edit(program: FuzzProgram) -> FuzzProgram:
        calls = tuple(replace(call, args=[change(spec) for spec in call.args]) for call in program.calls)
        return _with_operands(replace(program, calls=calls), of_leaf)

    return edit


# ---------------------------------------------------------------------------------------------------------------- values


def reduce_values(state: SearchState) -> None:
    """Try plain random numbers, or 0, 1, 2 ..., instead of other values."""
    names = input_names(state.current)
    for change in (_counting, _drawn):
        state.accept_edits([_each_call(name, change) for name in names])


def _counting(spec: Spec, call: Call) -> Spec | None:
    if not _is_tensor(spec) or spec["dtype"] == "bool" or spec.get("fill", {}).get("kind") == "arange":
        return None
    return {**spec, "fill": {"kind": "arange"}}


def _drawn(spec: Spec, call: Call) -> Spec | None:
    fill = spec.get("fill", {})
    if not _is_tensor(spec) or fill.get("kind") == "arange":
        return None
    if fill.get("kind") == "normal" and not {"mean", "std"} & set(fill):
        return None
    if not spec["dtype"].startswith(("float", "bfloat", "complex")):
        return None
    return {**spec, "fill": {"kind": "normal", "seed": spec.get("fill", {}).get("seed", 0)}}


# ---------------------------------------------------------------------------------------------------------------- shapes


def reduce_shapes(state: SearchState) -> None:
    """Try smaller sizes, each size everywhere at once; then fewer dimensions; then single arguments."""
    tried: set[tuple[int, int]] = set()
    while sizes := [pair for size in _sizes(state.current) for pair in _smaller(size) if pair not in tried]:
        old, new = sizes[0]
        tried.add((old, new))
        if not state.accept(_resized(state.current, old, new, in_operands=True)):
            state.accept(_resized(state.current, old, new, in_operands=False))
    while any(state.accept(_without_dimension(state.current, at)) for at in (0, -1)):
        pass
    for name in input_names(state.current):
        for spec in specs_of(state.current, name)[:1]:
            rank = len(spec["shape"]) if _is_tensor(spec) else 0
            for dim in range(rank):
                state.accept_edits([_each_call(name, _shrinking(dim))])


def _sizes(program: FuzzProgram) -> list[int]:
    found = {size for call in program.calls for spec in call.args if _is_tensor(spec) for size in spec["shape"]}
    return sorted((size for size in found if size > 1), reverse=True)


def _smaller(size: int) -> list[tuple[int, int]]:
    """Sizes to try instead of one: small ones, then half of it, then one less."""
    wanted = [2, size // 2, size - 1] if size > 2 else [1]
    return [(size, new) for new in dict.fromkeys(wanted) if 0 < new < size]


def _resized(program: FuzzProgram, old: int, new: int, *, in_operands: bool) -> FuzzProgram:
    """Change every dimension of this size, and with `in_operands` every equal number in a statement."""

    def of_leaf(operand: Operand) -> Operand:
        is_size = isinstance(operand, int) and not isinstance(operand, bool) and operand == old
        return new if is_size else operand

    def of_spec(spec: Any) -> Any:
        if not _is_tensor(spec) or old not in spec["shape"]:
            return spec
        return reshaped(spec, [new if size == old else size for size in spec["shape"]])

    calls = tuple(replace(call, args=[of_spec(spec) for spec in call.args]) for call in program.calls)
    resized = replace(program, calls=calls)
    return _with_operands(resized, of_leaf) if in_operands else resized


def _with_operands(program: FuzzProgram, of_leaf: Callable[[Operand], Operand]) -> FuzzProgram:
    """Change the operands of all operator calls, also inside lists and tuples."""

    def changed(operand: Operand) -> Operand:
        if isinstance(operand, Items):
            return replace(operand, items=tuple(map(changed, operand.items)))
        return of_leaf(operand)

    statements = tuple(
        replace(
            statement,
            args=tuple(map(changed, statement.args)),
            kwargs=tuple((key, changed(arg)) for key, arg in statement.kwargs),
        )
        if isinstance(statement, OpCall)
        else statement
        for statement in program.statements
    )
    return replace(program, statements=statements)


def _without_dimension(program: FuzzProgram, at: int) -> FuzzProgram | None:
    """Remove the first or last dimension of all tensors of the highest rank."""
    specs = [spec for call in program.calls for spec in call.args if _is_tensor(spec)]
    rank = max((len(spec["shape"]) for spec in specs), default=0)
    if rank < 2:
        return None

    def of_spec(spec: Any) -> Any:
        if not _is_tensor(spec) or len(spec["shape"]) != rank:
            return spec
        dim = at % rank
        one = reshaped(spec, [1 if i == dim else size for i, size in enumerate(spec["shape"])])
        slim = {**one, "shape": [size for i, size in enumerate(one["shape"]) if i != dim]}
        if "stride" in slim:
            slim["stride"] = [step for i, step in enumerate(slim["stride"]) if i != dim]
        slim.pop("memory_format", None)
        return slim

    return replace(
        program, calls=tuple(replace(call, args=[of_spec(spec) for spec in call.args]) for call in program.calls)
    )


def _shrinking(dim: int) -> Callable[[Spec, Call], Spec | None]:
    def change(spec: Spec, call: Call) -> Spec | None:
        if not _is_tensor(spec) or dim >= len(spec["shape"]) or spec["shape"][dim] <= 1:
            return None
        return reshaped(spec, [1 if i == dim else size for i, size in enumerate(spec["shape"])])

    return change


def reshaped(spec: Spec, shape: Sequence[int]) -> Spec:
    """A smaller tensor with the same layout and the first values in every dimension.

    If a dimension had no elements and gets some, these are arbitrary numbers.
    """
    old = spec["shape"]
    changed = {**spec, "shape": [*shape]}
    changed.pop("storage_size", None)
    if "stride" in spec:
        changed["stride"] = _stride_like(spec["stride"], old, shape)
    fill = spec.get("fill", {})
    if fill.get("kind") == "values" and all(new <= size for new, size in zip(shape, old, strict=True)):
        changed["fill"] = {**fill, "values": _first_values(fill["values"], old, shape)}
    elif fill.get("kind") == "raw" and (data := _first_elements(spec, changed)):
        changed["fill"] = {**fill, "base64": base64.b64encode(data).decode()}
    elif fill.get("kind") in ("values", "raw"):
        changed["fill"] = {"kind": "arange"} if spec["dtype"] != "bool" else {"kind": "bool"}
    return changed


def _stride_like(stride: Sequence[int], old: Sequence[int], new: Sequence[int]) -> list[int]:
    """Strides for another shape: the same order of dimensions in memory, the same gaps, the same overlaps."""
    changed = list(stride)
    old_step = new_step = 1
    for dim in sorted(range(len(stride)), key=lambda i: (stride[i], -i)):
        if stride[dim] == 0 or stride[dim] < old_step:
            continue
        gap, rest = divmod(stride[dim], old_step)
        changed[dim] = new_step * (gap if rest == 0 else math.ceil(stride[dim] / old_step))
        old_step = stride[dim] * max(1, old[dim])
        new_step = changed[dim] * max(1, new[dim])
    return changed


def _first_values(values: Sequence[Any], old: Sequence[int], new: Sequence[int]) -> list[Any]:
    found = [*values]
    for dim in range(len(old)):
        # as (before, old size of this dimension, after), sizes before it already new
        after = math.prod(old[dim + 1 :])
        before = math.prod(new[:dim])
        found = [
            found[(b * old[dim] + i) * after + a] for b in range(before) for i in range(new[dim]) for a in range(after)
        ]
    return found


def _first_elements(old: Spec, new: Spec) -> bytes:
    """The memory of a smaller tensor: the same first elements, and between them what was there; b"" if that is not known.

    What lies between elements may be the point: samples with gaps have NaN there, which a wrong compiler reads.
    """
    if "storage" in old or "memory_format" in old or any(map(int.__gt__, new["shape"], old["shape"])):
        return b""
    strides = [spec.get("stride") or _dense_stride(spec["shape"]) for spec in (old, new)]
    first = old.get("offset", 0)
    counts = [_extent(spec["shape"], stride) for spec, stride in zip((old, new), strides, strict=True)]
    data = base64.b64decode(old["fill"]["base64"])
    size, rest = divmod(len(data), old.get("storage_size") or first + counts[0])
    if rest or not size or 0 in new["shape"]:
        return b""
    found = bytearray(data[: (first + counts[1]) * size])
    for index in itertools.product(*map(range, new["shape"])):
        source, target = (size * (first + sum(map(int.__mul__, index, stride))) for stride in strides)
        found[target : target + size] = data[source : source + size]
    return bytes(found)


def _dense_stride(shape: Sequence[int]) -> list[int]:
    return [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]


def _extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements of memory from the first element to the last."""
    return 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))


def _is_tensor(spec: Any) -> bool:
    return isinstance(spec, dict) and spec.get("$") == "tensor" and "shape" in spec and "indices" not in spec
