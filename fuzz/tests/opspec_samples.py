"""Accepted calls of every operator specification, drawn once for all tests of specifications."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from fuzz.draw.choices import RandomDraw
from fuzz.draw.scene import Scene
from fuzz.draw.settings import Settings
from fuzz.program.structure import FuzzProgram, Items, OpCall, Ref
from fuzz.vocabulary.operators import OPERATORS
from oracle.program import Call
from oracle.program.inputs import decode

TRIES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A program of one call."""

    operator: str
    seed: str
    call: OpCall
    program: FuzzProgram


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What came of up to TRIES draws of one specification; drawing stops when half of TRIES are accepted."""

    accepted: int
    tried: int
    samples: Sequence[Sample]


def draw_sample(name: str, seed: str, settings: Settings | None = None) -> Sample | None:
    """One draw on a fresh scene; None when there is no call, or eager refuses it."""
    draw = RandomDraw(seed)
    scene = Scene(draw, settings or Settings(), seed=draw.integer(0, 1 << 30))
    call = OPERATORS[name].draw_call(draw, scene)
    if call is None or not scene.add(call):
        return None
    results = [result for result in call.results if result in scene.values]
    program = scene.to_program(Items(tuple(Ref(result) for result in results), "tuple"))
    wants_gradients = any(scene.values[result].requires_grad for result in results)
    plan = (Call(args=[*scene.specs.values()], backward=wants_gradients),)
    return Sample(operator=name, seed=seed, call=call, program=replace(program, calls=plan))


@functools.cache
def tallies() -> Mapping[str, Tally]:
    """The tally of every operator specification, by name."""
    return {name: _tally(name) for name in OPERATORS}


def _tally(name: str) -> Tally:
    samples: list[Sample] = []
    for i in range(TRIES):
        sample = draw_sample(name, f"{name}/{i}")
        if sample is not None:
            samples.append(sample)
        if len(samples) >= TRIES // 2:
            return Tally(accepted=len(samples), tried=i + 1, samples=samples)
    return Tally(accepted=len(samples), tried=TRIES, samples=samples)


def tensors_of(program: FuzzProgram, *, elsewhere: bool = False) -> list[object]:
    """The arguments, built anew; `elsewhere`: at other places in memory, with the same strides."""
    arguments = decode(program.calls[0].args, seed=program.seed)
    return [_moved(value) if elsewhere and isinstance(value, torch.Tensor) else value for value in arguments]


def _moved(tensor: torch.Tensor) -> torch.Tensor:
    """The same elements and strides four elements further on in a larger storage."""
    with torch.no_grad():
        raw = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        room = torch.zeros(raw.numel() + 8, dtype=tensor.dtype)
        room[4 : 4 + raw.numel()] = raw
        moved = room.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset() + 4)
        moved = moved.conj() if tensor.is_conj() else moved
        moved = torch._neg_view(moved) if tensor.is_neg() else moved
    return moved.detach().requires_grad_(tensor.requires_grad)
