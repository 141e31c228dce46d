"""Runs candidates of a reduction in eager: whether they run and are defined, and which values they compute."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzz.draw.definedness import Definedness
from fuzz.program.render import to_program
from fuzz.program.structure import Definition, FuzzProgram, Lines, Statement
from oracle.hygiene import seed_everything
from oracle.observe import observe
from oracle.observe.outcome import Raised, Returned
from oracle.program.build import Instance, ProgramLoadError, instantiate

_INLINE = 256  # a spec writes out values of up to this many elements; larger ones are drawn again
_FEW = 4  # a large tensor of so many different numbers is a mask, say, and keeps these numbers
_NEAR = 0.5  # a mean and a deviation this close to 0 and 1 are those of plain random numbers


def undefined_kinds(program: FuzzProgram) -> frozenset[str] | None:
    """The kinds of undefined operations in an eager run of the whole plan; None if eager refuses.

    For a program that is meant to raise, its exception counts as a kind, so that a candidate must raise the same one.
    """
    kinds: set[str] = set()
    with _quiet():
        try:
            instance = instantiate(to_program(program, name="candidate"))
        except (ProgramLoadError, ValueError, SyntaxError):
            return None
        outcome = observe(instance, around_call=lambda: Definedness(kinds))
    if isinstance(outcome, Returned):
        return None if program.expects_raise else frozenset(kinds)
    if program.expects_raise and isinstance(outcome, Raised) and outcome.exception.call == len(program.calls) - 1:
        return frozenset({*kinds, f"raises {outcome.exception.type_name} in {outcome.exception.phase}"})
    return None


@dataclass(frozen=True, slots=True)
class LiveCall:
    """The values of one call: for each name its values after top-level statements (-1: before the first)."""

    recorded: tuple[tuple[int, str, Any], ...]
    written: frozenset[str] = frozenset()  # arguments whose contents changed in the call

    def value(self, name: str, *, before: int) -> Any:
        """The spec of a name's value when statement `before` began. Raises KeyError if it is not known."""
        found = [spec for position, recorded, spec in self.recorded if recorded == name and position < before]
        if not found:
            raise KeyError(name)
        return found[-1]


def values_of(program: FuzzProgram) -> list[LiveCall] | None:
    """For each call the values that top-level statements bind and read, and the module's tensors before the call.

    None if the program does not run. Values that no spec can hold are left out.
    """
    recorded: list[list[tuple[int, str, Any]]] = []
    written: list[frozenset[str]] = []
    state = [entry.name for entry in program.state or ()]

    def record(position: int, name: str, value: Any) -> None:
        try:
            recorded[-1].append((position, name, spec_of(value)))
        except TypeError:  # a value of another kind
            return

    with _quiet():
        try:
            instance = instantiate(to_program(_recording(program, state), name="recording"))
        except (ProgramLoadError, ValueError, SyntaxError):
            return None
        instance.namespace["_record"] = record
        for call in range(len(program.calls)):
            recorded.append([])
            written.append(frozenset())
            try:
                changed = _run_call(instance, call)
                written[-1] = frozenset(
                    name for name, is_new in zip(program.arguments, changed, strict=False) if is_new
                )
            except Exception:
                if not (program.expects_raise and call == len(program.calls) - 1):
                    return None
    return [LiveCall(tuple(values), names) for values, names in zip(recorded, written, strict=True)]


def _recording(program: FuzzProgram, state: list[str]) -> FuzzProgram:
    """The program with calls of `_record` for every value that it binds or reads."""
    statements: list[Statement] = [_recorder(-1, name) for name in state]
    for position, statement in enumerate(program.statements):
        names = dict.fromkeys((*statement.results, *statement.uses))
        statements += [statement, *(_recorder(position, name) for name in names)]
    definition = Definition(name="_record", text="def _record(position, name, value):\n    pass")
    return replace(program, statements=tuple(statements), definitions=(*program.definitions, definition))


def _recorder(position: int, name: str) -> Lines:
    # a result may be unbound after a branch, and a part of the state may not exist yet
    text = f"try:\n    _record({position}, {name!r}, {{{name}}})\nexcept (NameError, AttributeError):\n    pass"
    return Lines(text=text, uses=(name,), definitions=("_record",))


def _run_call(instance: Instance, call: int) -> list[bool]:
    """Run a call. Returns for each argument whether its contents changed."""
    plan = instance.program.calls[call]
    instance.prepare(call)
    args, kwargs, _ = instance.arguments(*instance.inputs(call))
    before = [_bytes_of(arg) for arg in args]
    seed_everything(instance.program.seed + call)
    with torch.no_grad() if plan.grad_mode == "no_grad" else torch.enable_grad():
        instance.target(*args, **kwargs)
    return [_bytes_of(arg) != old for arg, old in zip(args, before, strict=True)]


def _bytes_of(value: Any) -> bytes:
    if not isinstance(value, torch.Tensor) or value.layout is not torch.strided or value.is_quantized:
        return b""
    plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8).numpy().tobytes()


def spec_of(value: Any) -> Any:
    """The spec of a tensor or number, in memory of its own. Raises TypeError for other values."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"$": "float", "value": str(value)}
    if not isinstance(value, torch.Tensor) or type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(type(value).__name__)
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.device.type != "cpu":
        raise TypeError(f"{value.layout} on {value.device}")
    spec: dict[str, Any] = {"$": "tensor", "shape": list(value.shape), "dtype": str(value.dtype).removeprefix("torch.")}
    if not value.is_contiguous():
        spec["stride"] = list(value.stride())
    spec["fill"] = _fill_of(value)
    if value.requires_grad:
        spec["requires_grad"] = True
    return spec


def _fill_of(value: torch.Tensor) -> dict[str, Any]:
    if value.numel() > _INLINE:
        return _drawn_like(value.detach())
    flat = value.detach().resolve_conj().resolve_neg().reshape(-1)
    if flat.is_complex():
        return {"kind": "values", "values": [[_number(v.real), _number(v.imag)] for v in flat.tolist()]}
    if not flat.is_floating_point():
        return {"kind": "values", "values": flat.tolist()}
    return {"kind": "values", "values": [_number(v) for v in flat.double().tolist()]}


def _drawn_like(value: torch.Tensor) -> dict[str, Any]:
    """A fill with elements like those of a large tensor: as many signs, about as large, or from the same few numbers."""
    if value.is_complex() or value.dtype is torch.bool:
        return {"kind": "normal" if value.is_complex() else "bool", "seed": 0}
    if not value.is_floating_point():
        low, high = int(value.min()), int(value.max())
        return {"kind": "integers", "low": low, "high": high + 1 if high < 2**63 - 1 else high, "seed": 0}
    wide = value.double().reshape(-1)
    few = wide[:_INLINE].unique()
    if len(few) <= _FEW and torch.isin(wide, few).all():
        return {"kind": "choice", "values": [_number(v) for v in few.tolist()], "seed": 0}
    if not wide.isfinite().all():
        return {"kind": "normal", "seed": 0}
    low, high, mean, std = (float(f"{v:.3g}") for v in (*wide.aminmax(), wide.mean(), wide.std()))
    if low >= 0:
        return {"kind": "uniform", "low": low, "high": max(high, low), "seed": 0}
    if abs(mean) < _NEAR and 1 - _NEAR < std < 1 + _NEAR:
        return {"kind": "normal", "seed": 0}
    return {"kind": "normal", "mean": mean, "std": std, "seed": 0}


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
