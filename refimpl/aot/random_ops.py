"""Functional random ops: they take the state of a generator as a tensor, and return the new state.

Counterpart: torch/_prims/rng_prims.py philox_rand, run_with_rng_state; torch/_decomp/decompositions_for_rng.py
Differs: there is an op for every random overload, for any distribution and any device whose generator has a state; philox_rand
draws uniform numbers on CUDA only. The state is the generator's own, so the numbers are those that eager draws.
"""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from refimpl._torch import OpOverload
from refimpl.errors import UnsupportedByRefimpl

RANDOM_LIBRARY = "refimpl_random"
_RANDOM = torch.Tag.nondeterministic_seeded
_LIBRARY = torch.library.Library(RANDOM_LIBRARY, "FRAGMENT")
_GENERATOR = re.compile(r"(, )?(\*, )?Generator\? generator(=None)?")
_DEFINING = threading.RLock()
_DRAWING = threading.RLock()  # with an op that can only draw from a device's default generator


@functools.cache
def functional_random_op(overload: OpOverload) -> OpOverload | None:
    """The op that takes (state, arguments without a generator) and returns the new state, then results. None if it draws nothing.

    Raises UnsupportedByRefimpl for an overload outside aten, one that mutates, or one whose results are not tensors.
    """
    if _RANDOM not in overload.tags:
        return None
    schema = overload._schema
    is_of_tensors = all(str(r.type) in ("Tensor", "SymInt", "int") for r in schema.returns)
    if overload.namespace != "aten" or schema.is_mutable or not is_of_tensors:
        raise UnsupportedByRefimpl(
            seen=f"{overload} with functional random numbers",
            supported="aten's random ops that write to nothing",
            do="leave functionalize_rng_ops off",
        )
    if all(str(r.type) == "int" for r in schema.returns):
        return None  # _fused_sdp_choice: it chooses a kernel, and draws nothing
    name = f"{schema.name.partition('::')[2]}_{overload._overloadname}"
    with _DEFINING:
        packet = getattr(getattr(torch.ops, RANDOM_LIBRARY), name, None)
        if packet is None:
            _LIBRARY.define(_schema(name, str(schema)))
            _LIBRARY.impl(name, functools.partial(_run, overload), "CompositeExplicitAutograd")
            torch.library.register_fake(
                f"{RANDOM_LIBRARY}::{name}", functools.partial(_run_fake, overload), lib=_LIBRARY
            )
            packet = getattr(getattr(torch.ops, RANDOM_LIBRARY), name)
        return packet.default


def _schema(name: str, schema: str) -> str:
    arguments, _, returns = schema.partition("(")[2].rpartition(") -> ")
    arguments = _GENERATOR.sub(_keep_star, arguments)
    arguments = re.sub(r"(, )?\*$", "", arguments)
    results = returns[1:-1] if returns.startswith("(") else returns
    is_named = " " in results.split(",")[0]
    state = "Tensor new_state" if is_named else "Tensor"
    results = ", ".join(
        f"{part} result{i}" if is_named and " " not in part.strip() else part
        for i, part in enumerate(results.split(", "))
    )
    separator = ", " if arguments else ""
    return f"{name}(Tensor state{separator}{arguments}) -> ({state}, {results})"


def _keep_star(match: re.Match[str]) -> str:
    return (match[1] or "") + "*" if match[2] else ""


def device_of(arguments: Sequence[Any], keywords: dict[str, Any]) -> torch.device:
    """The device of the numbers that a random op draws."""
    device = keywords.get("device")
    if device is not None:
        return torch.device(device)
    for value in (*arguments, *keywords.values()):
        if isinstance(value, torch.Tensor):
            return value.device
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], torch.Tensor):
            return value[0].device
    return torch.get_default_device()


def _run(overload: OpOverload, state: torch.Tensor, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
    device = device_of(arguments, keywords)
    with_generator = _with_generator(overload)
    if with_generator is not None:
        generator = torch.Generator(device)
        generator.set_state(state)
        return _results(generator, with_generator(*arguments, generator=generator, **keywords))
    with _DRAWING:
        generator = default_generator(device)
        before = generator.get_state()
        try:
            generator.set_state(state)
            return _results(generator, overload(*arguments, **keywords))
        finally:
            generator.set_state(before)


def _results(generator: torch.Generator, result: Any) -> tuple[Any, ...]:
    return generator.get_state(), *(result if isinstance(result, (tuple, list)) else (result,))


def _run_fake(overload: OpOverload, state: torch.Tensor, *arguments: Any, **keywords: Any) -> tuple[Any, ...]:
    result = overload(*arguments, **keywords)
    return torch.empty_like(state), *(result if isinstance(result, (tuple, list)) else (result,))


@functools.cache
def _with_generator(overload: OpOverload) -> Callable[..., Any] | None:
    """The overload itself if it takes a generator, else one with the same arguments that does. None if there is none."""
    own = [a.name for a in overload._schema.arguments]
    if "generator" in own:
        return overload
    packet = overload.overloadpacket
    for name in packet.overloads():
        other = getattr(packet, name)
        names = [a.name for a in other._schema.arguments]
        if "generator" in names and [n for n in names if n != "generator"] == own:
            if _types(other) == _types(overload):
                return other
    return None


def _types(overload: OpOverload) -> list[str]:
    return [str(a.type) for a in overload._schema.arguments if a.name != "generator"]


def default_generator(device: torch.device) -> torch.Generator:
    """The default generator of a device. Raises UnsupportedByRefimpl for a device without one."""
    if device.type == "cpu":
        return torch.default_generator
    module = getattr(torch, device.type, None)
    generators = getattr(module, "default_generators", None)
    if module is None or not generators:
        raise UnsupportedByRefimpl(
            seen=f"functional random numbers on {device}",
            supported="CPU, and devices whose torch module has default_generators",
            do="leave functionalize_rng_ops off",
        )
    return generators[module.current_device() if device.index is None else device.index]
