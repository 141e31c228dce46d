"""Recordings: the operator calls that a program makes, as lines of JSON, and each of them as the call of a program again.

`Recorder` is a mode that notes every call of an operator below autograd: the overload, its arguments, and of tensors the shape,
strides, dtype, device and range of values, never the values themselves (but for integers of up to 16 elements, which often are
sizes or offsets). Calls that differ only in values are one line with a count. Nothing is pickled.

The first line is `{"format": "torch-oracle recording", "schema": 1, ...}`; every other one is a call:

| field | meaning |
|---|---|
| op | the overload: "aten.addmm.default" |
| count | how often it was called so |
| args, kwargs | tagged JSON (`oracle.program.inputs`), but with tensors as below |
| unreplayable | instead of args and kwargs: why the call cannot be made again, such as an argument of a class of its own |

A tensor is `{"$": "tensor", "shape", "stride", "dtype"}` and, where they differ from a CPU tensor of its own, device,
requires_grad, storage (the same text for arguments that share memory), offset and storage_size (in elements). It has one of:

| field | meaning |
|---|---|
| range | [lowest, highest] finite value; for complex dtypes, of real and imaginary parts |
| ends | the same, if there are no values between (masks) |
| exact | all values in row-major order: integers of up to 16 elements, of the first such call |

and `special`, the list of "nan", "inf", "-inf" that occur. A tensor has no range if it has no elements, no
finite ones, or none that were written (`torch.empty`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from oracle.errors import UsageError
from oracle.program import Call
from oracle.program.encode import encode

FORMAT = "torch-oracle recording"
SCHEMA_VERSION = 1
_EXACT_ELEMENTS = 16
_STEPS = 16  # values that a tensor with special values is drawn from
_WIDEST = 1e30  # a wider range overflows when it is drawn from in float32
_OVERLOAD = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*){2}")
_SPECIAL = ("nan", "inf", "-inf")
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_TENSOR_FIELDS = frozenset(
    [
        "$", "shape", "stride", "dtype", "device", "requires_grad", "storage", "offset", "storage_size", "range", "ends",
        "exact", "special",
    ]
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One line of a recording. `args` and `kwargs` are as in the file; empty if the call is `unreplayable`."""

    line: int  # its number in the file, from 1
    op: str
    count: int
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    unreplayable: str = ""

    @property
    def dtype(self) -> str:
        """The dtype of the first floating-point tensor, else of the first tensor, else ""."""
        dtypes = [tensor["dtype"] for tensor in _tensors((self.args, self.kwargs))]
        return next((dtype for dtype in dtypes if "float" in dtype or "complex" in dtype), dtypes[0] if dtypes else "")

    @property
    def needs_grad(self) -> bool:
        return any(tensor.get("requires_grad") for tensor in _tensors((self.args, self.kwargs)))

    def to_call(self, *, backward: bool) -> Call:
        """The call on random values of the recorded ranges. Without `backward` no argument requires grad."""
        args = [_replayed(arg, backward) for arg in self.args]
        return Call(
            args=args, kwargs={key: _replayed(arg, backward) for key, arg in self.kwargs.items()}, backward=backward
        )


def find_overload(op: str) -> Any:
    """The overload of this name, or None if this torch has none."""
    found: Any = torch.ops
    for part in op.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, torch._ops.OpOverload) else None


# ----------------------------------------------------------------------------------------------------------- recording


class Recorder(TorchDispatchMode):
    """Notes the operator calls that are made while it is entered. `lines` are the calls so far."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self._found: dict[str, _Noted] = {}
        self._undefined: set[int] = set()  # addresses of storages that nothing has written to since torch.empty

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, torch._ops.OpOverload):
            return func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {})  # before the call, which may write to its arguments
        result = func(*args, **(kwargs or {}))
        results = {tensor.untyped_storage()._cdata for tensor in _leaves(result) if _is_plain(tensor)}
        if "empty" in func._schema.name:
            self._undefined |= results
        elif func._schema.is_mutable or not any(one.alias_info for one in func._schema.returns):
            self._undefined -= results  # written, or new memory at an address that was used before
        return result

    def lines(self) -> list[dict[str, Any]]:
        """The lines of the file, without the header, in the order of the first calls."""
        return [{**noted.line, "count": noted.count} for noted in self._found.values()]

    def _note(self, func: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.calls += 1
        op = str(func)
        try:
            shapes = _Shapes((args, kwargs))
            line: dict[str, Any] = {
                "op": op,
                "args": [shapes.encode(arg) for arg in args],
                "kwargs": {key: shapes.encode(arg) for key, arg in kwargs.items()},
            }
        except UsageError as error:
            line, tensors = {"op": op, "unreplayable": error.seen}, []
        else:
            tensors = shapes.tensors
        noted = self._found.setdefault(json.dumps(line, sort_keys=True), _Noted(line))
        noted.count += 1
        for spec, tensor in zip(_tensors(noted.line), tensors, strict=True):
            if tensor.untyped_storage()._cdata in self._undefined:
                continue
            if noted.count == 1:
                spec |= _values_of(tensor)
            else:
                _merge(spec, _values_of(tensor))


class _Noted:
    """One line, growing: how often it was called, and the ranges of all calls."""

    def __init__(self, line: dict[str, Any]) -> None:
        self.line = line
        self.count = 0


class _Shapes:
    """Encodes the arguments of one call without values. Raises UsageError for one that has no JSON form."""

    def __init__(self, arguments: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        users: dict[int, int] = {}
        for tensor in _leaves(arguments):
            if _is_plain(tensor):
                address = tensor.untyped_storage()._cdata
                users[address] = users.get(address, 0) + 1
        shared = [address for address, count in users.items() if count > 1]
        self._names = {address: f"s{i}" for i, address in enumerate(shared)}

    def encode(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if type(value) is list:
            return [self.encode(item) for item in value]
        if type(value) is tuple:
            return {"$": "tuple", "items": [self.encode(item) for item in value]}
        return encode(value)

    def _tensor(self, tensor: torch.Tensor) -> dict[str, Any]:
        if not _is_plain(tensor):
            raise UsageError(
                seen=f"a tensor of class {type(tensor).__qualname__}, layout {tensor.layout}",
                expected="a plain strided tensor",
                do="record a program without it",
            )
        self.tensors.append(tensor)
        spec: dict[str, Any] = {
            "$": "tensor",
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "dtype": str(tensor.dtype).removeprefix("torch."),
        }
        if tensor.device.type != "cpu":
            spec["device"] = str(tensor.device)
        if tensor.requires_grad:
            spec["requires_grad"] = True
        name = self._names.get(tensor.untyped_storage()._cdata)
        if name is not None:
            spec |= {"storage": name, "offset": int(tensor.storage_offset())}
            spec["storage_size"] = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
        return spec


def _is_plain(tensor: torch.Tensor) -> bool:
    is_strided = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_nested
    return type(tensor) in _PLAIN and is_strided and not tensor.is_conj() and not tensor.is_neg()


def _leaves(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item)
    elif isinstance(value, Mapping):
        yield from _leaves(list(value.values()))


def _values_of(tensor: torch.Tensor) -> dict[str, Any]:
    """The range of a tensor's values, or the values themselves: see above."""
    if tensor.is_meta or tensor.numel() == 0:
        return {}
    data = tensor.detach()
    if not data.dtype.is_floating_point and not data.dtype.is_complex:
        data = data.to(torch.int64)
        if data.numel() <= _EXACT_ELEMENTS and tensor.dtype is not torch.bool:
            return {"exact": data.flatten().tolist()}
        return _range_of(data)
    parts = torch.view_as_real(data) if data.dtype.is_complex else data
    parts = parts.to(torch.float64 if parts.dtype is torch.float64 else torch.float32).flatten()
    finite = parts[parts.isfinite()]
    texts = zip(_SPECIAL, (parts.isnan().any(), parts.isposinf().any(), parts.isneginf().any()), strict=True)
    special = [text for text, occurs in texts if occurs]
    return (_range_of(finite) if finite.numel() else {}) | ({"special": special} if special else {})


def _range_of(data: torch.Tensor) -> dict[str, Any]:
    low, high = data.min(), data.max()
    name = "ends" if bool(((data == low) | (data == high)).all()) else "range"
    return {name: [low.item(), high.item()]}


def _merge(spec: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Widen the range of a tensor by that of another call. Exact values stay those of the first."""
    if "exact" in spec:
        return
    old, new = (one.get("range") or one.get("ends") for one in (spec, more))
    if new is not None:
        is_ends = "range" not in spec and "range" not in more and old in (None, new)
        spec.pop("range", None)
        spec.pop("ends", None)
        both = [*(old or ()), *new]
        spec["ends" if is_ends else "range"] = [min(both), max(both)]
    special = {*spec.get("special", ()), *more.get("special", ())}
    if special:
        spec["special"] = [text for text in _SPECIAL if text in special]


def text_of(recorder: Recorder, *, source: str) -> str:
    """The text of a recording. `source` says what was run, such as "model.py:run"."""
    header = {
        "format": FORMAT,
        "schema": SCHEMA_VERSION,
        "torch": torch.__version__,
        "source": source,
        "calls": recorder.calls,
    }
    return "".join(json.dumps(line) + "\n" for line in (header, *recorder.lines()))


# ------------------------------------------------------------------------------------------------------------- reading


def read_recording(path: Path) -> list[RecordedCall]:
    """The calls of a recording.

    Raises UsageError for a file that is missing or is no recording, for one of a newer schema, and for a line that is corrupt,
    with its number.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            seen=f"{path}: {error}", expected="a recording", do="make one with `torch-oracle record FILE.py:fn`"
        ) from error
    header = _json(lines[0], path, 1) if lines else {}
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise _corrupt(path, 1, f"{lines[0][:80]!r}" if lines else "an empty file", f'a line with "format": "{FORMAT}"')
    schema = header.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA_VERSION:
        raise UsageError(
            seen=f"{path}: schema {schema!r}",
            expected=f"schema {SCHEMA_VERSION} or older",
            do="use the torch-oracle version that wrote it, or record again",
        )
    return [_call(_json(text, path, number), path, number) for number, text in enumerate(lines[1:], 2) if text.strip()]


def _json(text: str, path: Path, number: int) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise _corrupt(path, number, str(error), "a JSON object") from error


def _call(data: Any, path: Path, number: int) -> RecordedCall:
    def refuse(seen: str, expected: str) -> UsageError:
        return _corrupt(path, number, seen, expected)

    if not isinstance(data, dict):
        raise refuse(f"a {type(data).__name__}", "a JSON object")
    op, count = data.get("op"), data.get("count")
    if not isinstance(op, str) or not _OVERLOAD.fullmatch(op):
        raise refuse(f"op {op!r}", 'the name of an overload, such as "aten.add.Tensor"')
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise refuse(f"count {count!r}", "a positive integer")
    why = data.get("unreplayable", "")
    args, kwargs = data.get("args", []), data.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict) or not isinstance(why, str):
        raise refuse("args or kwargs of another type", "a list and an object")
    for tensor in _tensors((args, kwargs)):
        if problem := _problem_of(tensor):
            raise refuse(f"a tensor with {problem}", "a tensor as `torch-oracle record` writes it")
    return RecordedCall(line=number, op=op, count=count, args=args, kwargs=kwargs, unreplayable=why)


def _problem_of(tensor: Mapping[str, Any]) -> str:
    """The error in the fields of a tensor; "" if there is none."""
    if unknown := sorted(set(tensor) - _TENSOR_FIELDS):
        return f"fields {unknown}"
    shape: Any = tensor.get("shape")
    stride: Any = tensor.get("stride")
    dtype = tensor.get("dtype")
    if not _is_sizes(shape) or not _is_sizes(stride) or len(shape) != len(stride):
        return f"shape {shape!r} and stride {stride!r}"
    if not isinstance(dtype, str) or not isinstance(getattr(torch, dtype, None), torch.dtype):
        return f"dtype {dtype!r}"
    for name in ("range", "ends"):
        ends = tensor.get(name)
        if ends is not None and not (
            isinstance(ends, list) and len(ends) == 2 and all(map(_is_number, ends)) and ends[0] <= ends[1]
        ):
            return f"{name} {ends!r}"
    exact, special = tensor.get("exact", []), tensor.get("special", [])
    if not isinstance(exact, list) or not all(map(_is_number, exact)):
        return f"exact {exact!r}"
    if "exact" in tensor and len(exact) != math.prod(shape):
        return f"{len(exact)} exact values of shape {shape}"
    if not isinstance(special, list) or not set(map(str, special)) <= set(_SPECIAL):
        return f"special {special!r}"
    return ""


def _is_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _corrupt(path: Path, number: int, seen: str, expected: str) -> UsageError:
    return UsageError(
        seen=f"{path}, line {number}: {seen}",
        expected=expected,
        do="correct or delete the line, or record again with `torch-oracle record FILE.py:fn`",
    )


# ----------------------------------------------------------------------------------------------------------- replaying


def _tensors(tree: Any) -> Iterator[dict[str, Any]]:
    """The tensors of a tree of arguments, in order."""
    if isinstance(tree, dict):
        if tree.get("$") == "tensor":
            yield tree
        else:
            yield from _tensors(list(tree.values()))
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _tensors(item)


def _replayed(tree: Any, backward: bool) -> Any:
    """The tree with tensors as input specs (`oracle.program.inputs`)."""
    if isinstance(tree, dict):
        if tree.get("$") == "tensor":
            return _input_spec(tree, backward)
        return {key: _replayed(item, backward) for key, item in tree.items()}
    return [_replayed(item, backward) for item in tree] if isinstance(tree, list) else tree


def _input_spec(tensor: Mapping[str, Any], backward: bool) -> dict[str, Any]:
    kept = ("$", "shape", "stride", "dtype", "device", "storage", "offset", "storage_size")
    spec = {name: tensor[name] for name in kept if name in tensor}
    fill = _fill(tensor, getattr(torch, tensor["dtype"]))
    if fill is not None:
        spec["fill"] = fill
    if backward and tensor.get("requires_grad"):
        spec["requires_grad"] = True
    return spec


def _fill(tensor: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Any] | None:
    """The fill that draws values of the recorded range; None for the default one."""
    special = list(tensor.get("special", ()))
    found = tensor.get("range") or tensor.get("ends")
    if "exact" in tensor:
        if "storage" not in tensor:
            return {"kind": "values", "values": list(tensor["exact"])}
        found = [min(tensor["exact"]), max(tensor["exact"])]
    if found is None:
        return {"kind": "choice", "values": special} if special else None
    low, high = found
    if dtype is torch.bool:
        return {"kind": "bool"} if low != high else {"kind": "full", "value": bool(low)}
    if low == high and not special:
        return {"kind": "full", "value": low}
    if "ends" in tensor:
        return {"kind": "choice", "values": [low, high, *special]}
    if not dtype.is_floating_point and not dtype.is_complex:
        return {"kind": "integers", "low": low, "high": min(high + 1, torch.iinfo(dtype).max)}
    if special or high - low > _WIDEST:
        steps = [low + (high / _STEPS - low / _STEPS) * step for step in range(_STEPS + 1)]
        return {"kind": "choice", "values": [*steps, *special]}
    return {"kind": "uniform", "low": low, "high": high}
