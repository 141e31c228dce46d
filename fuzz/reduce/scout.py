"""Finds the statements at which a subject's values begin to differ from eager's: where a reduction should look first.

It runs the program once in eager and once on the subject, with every value returned, and judges nothing: a suspect is only a
place to try. Returning every value may change what the subject does, so there may be none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzz.program.editing import defined_names, uses_of
from fuzz.program.render import to_program
from fuzz.program.structure import FuzzProgram, Items, Ref
from oracle.configure import configured
from oracle.hygiene import restore, seed_everything, snapshot
from oracle.program.build import Instance, instantiate
from oracle.subjects.base import CompileRequest, Subject

_MOST = 3  # suspects returned
_ROUNDING = 2.0**-20  # a difference that every compiler may make in one statement, relative to the largest element
_LOUD = 16.0  # growth of the difference in one statement that makes it a suspect


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """The values of one run by name, their gradients, and the names of earlier values whose memory each shares."""

    values: dict[str, Any]
    gradients: dict[str, Any]
    shares: dict[str, frozenset[str]]


def suspects(program: FuzzProgram, subject: Subject) -> list[int]:
    """Positions of top-level statements, the most suspicious first. [] if one of the runs raises."""
    names = defined_names(program.statements)
    if program.derive or program.is_module or not names:
        return []
    shown = replace(program, result=Items(tuple(Ref(name) for name in names), "list"))
    before = snapshot()
    try:
        eager = _seen(shown, names, lambda instance: instance.target)
        subject.reset()
        with configured(program.config):
            other = _seen(shown, names, lambda instance: _compiled(instance, subject))
    except Exception:  # code of any program and of any compiler
        return []
    finally:
        restore(before)
    return _ranked(program, eager, other)


def _compiled(instance: Instance, subject: Subject) -> Callable[..., Any]:
    args, kwargs = instance.inputs(0)
    dynamic = instance.program.dynamic
    return subject.compile(CompileRequest(target=instance.target, args=args, kwargs=kwargs, dynamic=dynamic))


def _seen(program: FuzzProgram, names: Sequence[str], called: Callable[[Instance], Callable[..., Any]]) -> _Seen:
    """Run all calls; what the last one shows."""
    instance = instantiate(to_program(program, name="scout"))
    target, found, args = called(instance), [], ()
    for number, plan in enumerate(instance.program.calls):
        instance.prepare(number)
        args, kwargs = instance.inputs(number)
        seed_everything(instance.program.seed + number)
        with torch.no_grad() if plan.grad_mode == "no_grad" else torch.enable_grad():
            found = target(*args, **kwargs)
    values = dict(zip((*program.arguments, *names), (*args, *found), strict=True))
    tensors = {name: value for name, value in values.items() if isinstance(value, torch.Tensor)}
    gradients = _gradients(tensors) if program.calls[-1].backward else {}
    shares: dict[str, frozenset[str]] = {}
    for name, tensor in tensors.items():
        address = tensor.untyped_storage()._cdata
        shares[name] = frozenset(one for one in shares if tensors[one].untyped_storage()._cdata == address)
    return _Seen(values={**values, **{n: t.detach() for n, t in tensors.items()}}, gradients=gradients, shares=shares)


def _gradients(tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    """Gradients of the sum of all values with weights, for every value."""
    wanted = {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}
    for tensor in wanted.values():
        tensor.retain_grad()
    torch.manual_seed(0)
    roots = [tensor for tensor in wanted.values() if not tensor.is_leaf]
    torch.autograd.backward(roots, [torch.rand_like(tensor) + 0.5 for tensor in roots])
    return {name: tensor.grad for name, tensor in wanted.items()}


def _ranked(program: FuzzProgram, eager: _Seen, other: _Seen) -> list[int]:
    """Statements by the growth of the difference from what they read to what they compute, and in gradients the other way."""
    error = {name: _difference(value, other.values[name]) for name, value in eager.values.items()}
    for name, shared in eager.shares.items():
        if other.shares.get(name) != shared:
            error[name] = 1.0
    backward = {name: _difference(value, other.gradients.get(name)) for name, value in eager.gradients.items()}
    growth: dict[int, float] = {}
    for position, statement in enumerate(program.statements):
        read, made = uses_of(statement), statement.results
        forward = _growth([error.get(name, 0.0) for name in read], [error.get(name, 0.0) for name in made])
        back = _growth([backward.get(name, 0.0) for name in made], [backward.get(name, 0.0) for name in read])
        growth[position] = max(forward, back)
    loud = [position for position, size in growth.items() if size > _LOUD]
    return sorted(loud, key=lambda position: -growth[position])[:_MOST]


def _growth(before: list[float], after: list[float]) -> float:
    return max(after, default=0.0) / max([_ROUNDING, *before])


def _difference(one: Any, two: Any) -> float:
    """The largest difference of elements relative to the largest element; 1 for a difference of another kind."""
    if not isinstance(one, torch.Tensor) or not isinstance(two, torch.Tensor):
        return float(type(one) is not type(two))
    if (one.shape, one.dtype, one.layout) != (two.shape, two.dtype, two.layout) or one.layout is not torch.strided:
        return float((one.shape, one.dtype, one.layout) != (two.shape, two.dtype, two.layout))
    if one.stride() != two.stride():
        return 1.0
    wide = torch.complex128 if one.is_complex() else torch.float64
    a, b = one.detach().to(wide), two.detach().to(wide)
    if torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isfinite(), b.isfinite()):
        return 0.0
    if not (one.is_floating_point() or one.is_complex()) or not torch.equal(a.isfinite(), b.isfinite()):
        return 1.0
    largest = a[a.isfinite()].abs().max()
    return min(1.0, float((a - b)[a.isfinite()].abs().max() / (largest + 1e-300)))
