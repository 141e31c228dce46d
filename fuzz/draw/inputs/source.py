"""Writes the inputs of a program as Python source: their elements, or an expression that draws the same elements.

The text of every storage is evaluated and compared with the storage bit by bit. If no text gives these bits, the bytes are
written.
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzz.program.structure import FuzzProgram
from oracle.errors import UsageError
from oracle.program import Program
from oracle.program.inputs import decode_call

SHOWN_ELEMENTS = 64  # a report writes out storages up to this size, and an expression for larger ones
_MOST_ELEMENTS = 512  # limit for writing out a storage if there is no expression


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSource:
    """The inputs of one call: statements that make tensors, then an expression for each argument."""

    lines: tuple[str, ...]
    args: tuple[str, ...]
    kwargs: tuple[tuple[str, str], ...] = ()


def input_source(program: FuzzProgram | Program, number: int, *, explicit: int) -> InputSource:
    """The inputs of call `number`, in Python that needs torch, base64 and zlib.

    A storage of at most `explicit` elements is written element by element, a larger one as the expression that draws it. Raises
    UsageError for an input that is neither a tensor, a number, text nor a container of these.
    """
    sources: dict[int, str] = {}
    args, kwargs = decode_call(program.calls[number], seed=program.seed, root=f"call {number}", sources=sources)
    return values_source(args, kwargs, explicit=explicit, sources=sources)


def values_source(
    args: Sequence[Any], kwargs: Mapping[str, Any], *, explicit: int, sources: Mapping[int, str]
) -> InputSource:
    """The same for inputs that exist. `sources`: address of a storage -> the expression that draws its elements."""
    writer = _WriterState(sources, explicit)
    return InputSource(
        args=tuple(writer.expression(value) for value in args),
        kwargs=tuple((name, writer.expression(value)) for name, value in kwargs.items()),
        lines=tuple(writer.lines),
    )


def shown_inputs(program: FuzzProgram) -> list[list[str]]:
    """For a report: the lines that make the inputs of each call, then the call. An input without a text is shown by its type."""
    shown = []
    for number in range(len(program.calls)):
        try:
            made = input_source(program, number, explicit=SHOWN_ELEMENTS)
        except UsageError as error:
            shown.append([error.seen])
            continue
        called = "target" if program.is_module else "program"
        words = ", ".join([*made.args, *(f"{name}={text}" for name, text in made.kwargs)])
        shown.append([*made.lines, f"{called}(*derive({words})[0])" if program.derive else f"{called}({words})"])
    return shown


class _WriterState:
    """Writes values as Python text. Storages and tensors that occur several times are made once."""

    def __init__(self, sources: Mapping[int, str], explicit: int) -> None:
        self.lines: list[str] = []
        self._sources = sources
        self._explicit = explicit
        self._storages: dict[int, tuple[str, torch.dtype]] = {}
        self._tensors: dict[int, str] = {}
        self._kept: list[torch.Tensor] = []  # keeps tensors alive, so that their ids stay unique

    def expression(self, value: Any) -> str:
        match value:
            case torch.Tensor():
                return self._tensor(value)
            case list():
                return f"[{', '.join(map(self.expression, value))}]"
            case tuple():
                return f"({', '.join(map(self.expression, value))}{',' if len(value) == 1 else ''})"
            case dict():
                return "{" + ", ".join(f"{k!r}: {self.expression(v)}" for k, v in value.items()) + "}"
            case float() if not math.isfinite(value):
                return f"float('{value}')"
            case slice() | range() | bool() | int() | float() | complex() | str() | bytes() | None:
                return repr(value)
            case _ if str(value).startswith("torch."):
                return str(value)
            case _:
                raise UsageError(
                    seen=f"an input of type {type(value).__name__}",
                    expected="tensors, numbers, text and containers of them",
                    do="write the script by hand",
                )

    def _tensor(self, tensor: torch.Tensor) -> str:
        if id(tensor) in self._tensors:
            return self._tensors[id(tensor)]
        self._kept.append(tensor)
        name = f"x{len(self._tensors)}"
        self._tensors[id(tensor)] = name
        text = self._strided(tensor)
        text += ".conj()" if tensor.is_conj() else ""
        text = f"torch._neg_view({text})" if tensor.is_neg() else text
        if isinstance(tensor, torch.nn.Parameter):
            text = f"torch.nn.Parameter({text}, requires_grad={tensor.requires_grad})"
        elif tensor.requires_grad:
            text += ".requires_grad_()"
        self.lines.append(f"{name} = {text}")
        return name

    def _strided(self, tensor: torch.Tensor) -> str:
        """One expression if the tensor is its whole storage; else a named storage and a view of it."""
        storage = tensor.untyped_storage()
        flat = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (storage.nbytes() // tensor.element_size(),), (1,))
        shape = tuple(tensor.shape)
        # compared with the result of reshape, so that strides of sizes 1 and 0 count too
        is_whole = flat.numel() == tensor.numel() and tensor.storage_offset() == 0
        is_whole = is_whole and tensor.stride() == torch.empty(flat.numel(), device="meta").reshape(shape).stride()
        is_shared = storage._cdata in self._storages or not is_whole
        if not is_shared:
            # named nevertheless if another input uses the same storage
            self._storages[storage._cdata] = (f"x{len(self._tensors) - 1}", tensor.dtype)
            return f"{self._values(flat)}.reshape({shape})" if len(shape) != 1 else self._values(flat)
        if storage._cdata not in self._storages:
            name = f"s{len(self._storages)}"
            self.lines.append(f"{name} = {self._values(flat)}")
            self._storages[storage._cdata] = (name, tensor.dtype)
        name, dtype = self._storages[storage._cdata]
        source = f"{name}.detach()" if name.startswith("x") else name
        source += f".reshape(-1).view({tensor.dtype})" if dtype != tensor.dtype else ""
        return f"{source}.as_strided({shape}, {tuple(tensor.stride())}, {tensor.storage_offset()})"

    def _values(self, flat: torch.Tensor) -> str:
        """An expression for the elements of a storage."""
        drawn = self._sources.get(flat.untyped_storage().data_ptr(), "")
        recipes = (drawn, f"{drawn}.view({flat.dtype})") if drawn else ()  # it may have been drawn as another dtype
        recipe = next((text for text in recipes if _gives(text, flat)), "")
        if flat.numel() <= (self._explicit if recipe else _MOST_ELEMENTS):
            text = _written_out(flat)
            if _gives(text, flat):
                return text
        return recipe or _as_bytes(flat)


def _written_out(flat: torch.Tensor) -> str:
    """Every element of a storage."""
    dtype = flat.dtype
    plain = flat.resolve_conj().resolve_neg()
    if dtype.is_floating_point:
        numbers = [_number(value, dtype) for value in plain.double().tolist()]
        if dtype.itemsize == 1:
            return f"torch.tensor([{', '.join(numbers)}]).to({dtype})"
    elif dtype.is_complex:
        numbers = [f"complex({_number(v.real, dtype)}, {_number(v.imag, dtype)})" for v in plain.tolist()]
    else:
        numbers = [repr(value) for value in plain.tolist()]
    return f"torch.tensor([{', '.join(numbers)}], dtype={dtype})"


def _bytes_of(flat: torch.Tensor) -> bytes:
    return flat.contiguous().view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _gives(text: str, flat: torch.Tensor) -> bool:
    """Whether evaluating the text gives these bytes. The text is our own: names of torch and numbers."""
    try:
        made = eval(text, {"torch": torch})
    except (RuntimeError, TypeError, ValueError, OverflowError):  # a dtype that torch does not draw or index
        return False
    return made.dtype == flat.dtype and _bytes_of(made) == _bytes_of(flat)


def _as_bytes(flat: torch.Tensor) -> str:
    packed = base64.b64encode(zlib.compress(_bytes_of(flat), 9)).decode()
    data = f"bytearray(zlib.decompress(base64.b64decode({packed!r})))"
    return f"torch.frombuffer({data}, dtype=torch.uint8).view({flat.dtype})"


def _number(value: float, dtype: torch.dtype) -> str:
    """The shortest text that gives this number in its dtype."""
    if not math.isfinite(value):
        return f"float('{value}')"
    if dtype is torch.float32:
        short = f"{value:.9g}"
        for digits in range(1, 9):
            text = f"{value:.{digits}g}"
            if torch.tensor(float(text), dtype=dtype).item() == value:
                short = text
                break
        return repr(float(short))
    return repr(value)
