"""The functional form of a mutating op (`add` for `add_`, `sort` for `sort.values`), found by its schema.

Counterpart: native_functions.yaml's `autogen` groups, torchgen/native_function_generation.py
Differs: looked up at run time among the registered overloads, so that ops of `torch.library` that are named like aten's (`scale_`
and `scale`, an `out=` overload beside a functional one) are found too.

A functional overload returns the results of the mutating one, in order, with new values in place of arguments among them; then
the new values of the other arguments that the mutating op writes to.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.functionalize.schemas import OpEffects, Parameter, effects_of

_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format"})
_OF_OWN_MEMORY = {"conj_physical": "_conj_physical"}  # conj_physical returns its argument if that is real


@dataclass(frozen=True, slots=True)
class FunctionalForm:
    """`target` takes the call's arguments without those named in `dropped`. `returns` has, for each of its results, the index
    of the mutating op's result, or the parameter whose new value it is. `options` are dtype and device, if `target` is a
    factory such as arange: the mutating op takes them from its `out` tensor."""

    target: Any
    dropped: frozenset[str]
    returns: tuple[int | Parameter, ...]
    options: frozenset[str] = frozenset()

    def arguments(
        self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn arguments for `op` into arguments for `target`. Defaults of `op` that `target` lacks are written out."""
        parameters = op._schema.arguments
        given = {parameters[i].name: arg for i, arg in enumerate(args)} | dict(kwargs)
        positional: list[Any] = []
        named: dict[str, Any] = {}
        is_gapless = True
        by_name = {parameter.name: parameter for parameter in parameters}
        for parameter in self.target._schema.arguments:
            name = parameter.name
            if name in given:
                value = given[name]
            elif not parameter.has_default_value() and name in by_name and by_name[name].has_default_value():
                value = by_name[name].default_value
            else:
                is_gapless = False
                continue
            if parameter.kwarg_only or not is_gapless:
                named[name] = value
            else:
                positional.append(value)
        return tuple(positional), named


@functools.cache
def functional_form(op: OpOverload) -> FunctionalForm | None:
    """The functional form of `op`; None if no functional overload with the same arguments is registered."""
    effects = effects_of(op)
    schema = op._schema
    dropped = frozenset(argument.name for argument in schema.arguments if argument.is_out)
    expected = {(a.name, str(a.type)) for a in schema.arguments if a.name not in dropped}
    returns = _returns(effects)
    for candidate in _candidates(op):
        found = candidate._schema
        if any(a.alias_info is not None and a.alias_info.is_write for a in found.arguments):
            continue
        arguments = {(a.name, str(a.type)) for a in found.arguments}
        extra = frozenset(name for name, _ in arguments - expected)
        if expected <= arguments and extra <= _OPTIONS and len(found.returns) == len(returns):
            if not extra or dropped:
                return FunctionalForm(candidate, dropped, returns, extra & {"dtype", "device"})
    return None


def _returns(effects: OpEffects) -> tuple[int | Parameter, ...]:
    returns: list[int | Parameter] = []
    for index, alias in enumerate(effects.results):
        returns.append(alias.parameter if alias is not None and alias.kind == "same" else index)
    returns.extend(parameter for parameter in effects.written if parameter not in returns)
    return tuple(returns)


def _candidates(op: OpOverload) -> list[Any]:
    """Overloads that may be the functional form; first those with the same overload name."""
    namespace, _, name = op._schema.name.partition("::")
    if name.startswith("__i") and name.endswith("__"):
        stems = [f"__{name[3:]}"]
    else:
        stem = name.removesuffix("_")
        stem = _OF_OWN_MEMORY.get(stem, stem)
        stems = [stem, f"{stem}_functional", f"{name}_functional"]
    found: list[Any] = []
    for stem in dict.fromkeys(stems):
        packet = getattr(getattr(torch.ops, namespace), stem, None)
        if packet is None:
            continue
        names = packet.overloads()
        found.extend(getattr(packet, overload) for overload in sorted(names, key=lambda n: n != op._overloadname))
    return found
