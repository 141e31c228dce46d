"""Inputs written as text: `f32[4, 8], i64[4] < 100, scale=0.5` becomes the input specs of a call. Nothing is evaluated.

| text | argument |
|---|---|
| `f32[4, 8]` | a tensor of normal numbers; integers from 0 to 9; booleans. `f32[]` has no dimension |
| `i64[4] < 100` | integers from 0 to 99 |
| `f32[4, 8].grad` | a leaf that requires grad |
| `f32[4, 8].t` | the same shape, with the strides of a transposed tensor (the last two dimensions exchanged) |
| `f32[4, 8].stride(1, 4)` | with these strides |
| `f32[2, 3, 8, 8].channels_last` | in this memory format |
| `f32[3].values(1, 2.5, 'nan')` | these elements |
| `3`, `-1.5`, `True`, `None`, `'sum'`, `[...]`, `(...)`, `{'a': ...}` | Python values, also with tensors inside |
| `dtype=bfloat16`, `mask=bool[4]` | keyword arguments; a dtype by its name |

Does not import torch.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping
from typing import Any

from oracle.errors import UsageError
from oracle.program import Call

_BITS = {"float": (16, 32, 64), "bfloat": (16,), "complex": (64, 128), "int": (8, 16, 32, 64), "uint": (8,)}
_LETTERS = {"float": "f", "bfloat": "bf", "complex": "c", "int": "i", "uint": "u"}
_SHORT = {f"{_LETTERS[kind]}{bits}": f"{kind}{bits}" for kind, sizes in _BITS.items() for bits in sizes}
DTYPES: Mapping[str, str] = {**_SHORT, **{name: name for name in (*_SHORT.values(), "bool")}}
_NO_DIMENSION = re.compile(r"(?<=\w)\[\s*\]")  # not Python's syntax
_BELOW = 10  # integers are drawn below this number if no limit is given
_EXAMPLE = "for example --inputs 'f32[4, 8], i64[4] < 100, scale=0.5'"


def parse_call(text: str) -> Call:
    """The call that a text describes. Raises UsageError with the part that is wrong."""
    try:
        call = ast.parse(f"f({_NO_DIMENSION.sub('[()]', text)}\n)", mode="eval").body
    except SyntaxError as error:
        raise _bad(
            text, f"{error.msg} near {(error.text or '').strip()[:40]!r}", "arguments separated by commas"
        ) from error
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "f":
        raise _bad(text, "more than one list of arguments", "arguments separated by commas")
    reader = _Reader(text)
    kwargs = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise _bad(text, "**", "keyword arguments by name")
        kwargs[keyword.arg] = reader.value(keyword.value)
    return Call(args=[reader.value(node) for node in call.args], kwargs=kwargs or None)


def _bad(text: str, seen: str, expected: str) -> UsageError:
    return UsageError(seen=f"--inputs {text!r}: {seen}", expected=expected, do=_EXAMPLE)


class _Reader:
    """Turns the nodes of one text into specs."""

    def __init__(self, text: str) -> None:
        self._text = text

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Compare(left=tensor, ops=[ast.Lt()], comparators=[ast.Constant(value=int() as below)]):
                return self._below(tensor, below)
            case ast.Subscript() | ast.Attribute() | ast.Call():
                return self._tensor(node)
            case ast.List(elts=elements):
                return [self.value(element) for element in elements]
            case ast.Tuple(elts=elements):
                return {"$": "tuple", "items": [self.value(element) for element in elements]}
            case ast.Dict(keys=keys, values=values) if all(isinstance(key, ast.Constant) for key in keys):
                names = [key.value for key in keys if isinstance(key, ast.Constant)]
                items = [self.value(value) for value in values]
                return {"$": "dict", "items": [[name, item] for name, item in zip(names, items, strict=True)]}
            case ast.Name(id=name) if name in DTYPES:
                return {"$": "dtype", "name": DTYPES[name]}
            case _:
                return self._literal(node)

    def _literal(self, node: ast.expr) -> Any:
        try:
            value = ast.literal_eval(node)
        except ValueError:
            value = node
        if isinstance(value, complex):
            return {"$": "complex", "real": value.real, "imag": value.imag}
        if isinstance(value, float) and not math.isfinite(value):
            return {"$": "float", "value": str(value)}
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise self._unknown(node)

    def _unknown(self, node: ast.expr) -> UsageError:
        known = ", ".join(
            key for key in DTYPES if key[-1].isdigit() and not key.startswith(("float", "int", "complex"))
        )
        return _bad(
            self._text, ast.unparse(node), f"a tensor such as f32[4, 8] (dtypes: {known}, bool), or a Python value"
        )

    def _below(self, node: ast.expr, below: int) -> dict[str, Any]:
        spec = self._tensor(node)
        if "int" not in spec["dtype"] or below < 1:
            raise _bad(self._text, f"{ast.unparse(node)} < {below}", "integers below a number of at least 1")
        return {**spec, "fill": {"kind": "integers", "low": 0, "high": below}}

    def _tensor(self, node: ast.expr) -> dict[str, Any]:
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=index) if name in DTYPES:
                spec: dict[str, Any] = {"$": "tensor", "shape": self._sizes(index), "dtype": DTYPES[name]}
                if "int" in DTYPES[name]:
                    spec["fill"] = {"kind": "integers", "low": 0, "high": _BELOW}
                return spec
            case ast.Attribute(value=inner, attr="grad"):
                return self._with_grad(self._tensor(inner))
            case ast.Attribute(value=inner, attr="t"):
                return self._transposed(self._tensor(inner))
            case ast.Attribute(value=inner, attr=("channels_last" | "channels_last_3d") as name):
                return {**self._tensor(inner), "memory_format": name}
            case ast.Call(func=ast.Attribute(value=inner, attr="stride"), args=strides, keywords=[]):
                return {**self._tensor(inner), "stride": [self._size(stride) for stride in strides]}
            case ast.Call(func=ast.Attribute(value=inner, attr="values"), args=elements, keywords=[]):
                return self._with_values(self._tensor(inner), elements)
            case _:
                raise self._unknown(node)

    def _with_grad(self, spec: dict[str, Any]) -> dict[str, Any]:
        if not spec["dtype"].startswith(("float", "bfloat", "complex")):
            raise _bad(self._text, f"{spec['dtype']} with .grad", "a dtype of real or complex numbers")
        return {**spec, "requires_grad": True}

    def _transposed(self, spec: dict[str, Any]) -> dict[str, Any]:
        shape = spec["shape"]
        if len(shape) < 2:
            raise _bad(self._text, f".t of shape {shape}", "two dimensions or more")
        exchanged = [*shape[:-2], shape[-1], shape[-2]]
        strides = [math.prod(exchanged[at + 1 :]) for at in range(len(exchanged))]
        return {**spec, "stride": [*strides[:-2], strides[-1], strides[-2]]}

    def _with_values(self, spec: dict[str, Any], elements: list[ast.expr]) -> dict[str, Any]:
        values = [self._literal(element) for element in elements]
        if len(values) != math.prod(spec["shape"]):
            raise _bad(
                self._text, f"{len(values)} values for shape {spec['shape']}", f"{math.prod(spec['shape'])} values"
            )
        return {**spec, "fill": {"kind": "values", "values": values}}

    def _sizes(self, node: ast.expr) -> list[int]:
        return [self._size(size) for size in (node.elts if isinstance(node, ast.Tuple) else [node])]

    def _size(self, node: ast.expr) -> int:
        if isinstance(node, ast.Constant) and isinstance(node.value, int) and not isinstance(node.value, bool):
            return node.value
        raise _bad(self._text, f"size {ast.unparse(node)}", "a number of at least 0")
