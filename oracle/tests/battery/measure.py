"""Whether a subject is what it claims to be, measured on its values: a wrong one wrong beyond rounding, a right one different.

The honest result, the same in float64 and the subject's result are taken from runs of the program itself, without the judge.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map

from oracle.hygiene import seed_everything
from oracle.program import Program
from oracle.program.build import Instance, instantiate
from oracle.tests.battery.bits import unit_of
from oracle.tests.battery.entries import Entry, Target, dtype_name, is_float

CLIP = 8.0  # units of the last place: one element that cancels does not speak for the others
SIGNIFICANT = 6.0  # standard errors of the mean, beyond which a bias is no chance
COARSE = 2.0  # times the honest root mean square error


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one call returns and leaves as gradients, tensors and numbers in a fixed order."""

    values: tuple[Any, ...]


def is_as_claimed(entry: Entry) -> bool:
    """Whether a wrong subject differs by more than rounding does, and a right one differs from eager in some bit."""
    assert isinstance(entry.case, Program)
    honest, truth = _honest(entry.case), _truth(entry.case)
    subject = _seen(instantiate(entry.case), entry.wrap)
    if len(honest.values) != len(subject.values):
        return True
    pairs = list(zip(honest.values, subject.values, strict=True))
    if not entry.is_wrong:
        return any(not is_same(one, other) for one, other in pairs)
    truths = truth.values if truth is not None and len(truth.values) == len(pairs) else (None,) * len(pairs)
    return any(is_beyond_rounding(one, other, exact) for (one, other), exact in zip(pairs, truths, strict=True))


def is_same(one: Any, other: Any) -> bool:
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return bool(one == other)
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    return bool(torch.equal(torch.nan_to_num(_wide(one), 7e77), torch.nan_to_num(_wide(other), 7e77)))


def is_beyond_rounding(honest: Any, subject: Any, truth: Any) -> bool:
    """Whether no honest arithmetic gives `subject`: other integers, other non-finite values, a bias, a coarser rounding.

    A bias counts from 6 standard errors of the honest error's mean, a coarser rounding from twice the honest root mean square
    error, all in units of the last place and clipped to 8 of them. Without a truth the honest error is taken as one unit.
    """
    if not is_float(honest) or not is_float(subject):
        return not is_same(honest, subject)
    if honest.dtype != subject.dtype or honest.shape != subject.shape:
        return True
    one, other, unit = _wide(honest), _wide(subject), unit_of(honest)
    if not torch.equal(torch.where(torch.isfinite(one), 0.0, one).nan_to_num(7.0, 8.0, 9.0),
                       torch.where(torch.isfinite(other), 0.0, other).nan_to_num(7.0, 8.0, 9.0)):  # fmt: skip
        return True  # other infinities, other NaN
    used = torch.isfinite(one) & (one != 0)
    if truth is not None and is_float(truth) and truth.shape == one.shape:
        exact = _wide(truth)
        used &= torch.isfinite(exact)
    else:
        exact = one
    if not bool(used.any()):
        return not is_same(honest, subject)
    sign = one[used].sign()
    move = ((other - one)[used] / unit[used]).clamp(-CLIP, CLIP) * sign
    honest_error = ((one - exact)[used] / unit[used]).clamp(-CLIP, CLIP)
    error = ((other - exact)[used] / unit[used]).clamp(-CLIP, CLIP)
    spread = max(float(honest_error.square().mean().sqrt()), 0.29 if exact is not one else 1.0)
    is_biased = abs(float(move.mean())) * len(move) ** 0.5 >= SIGNIFICANT * spread
    is_coarse = float(error.square().mean().sqrt()) >= max(1.0, COARSE * spread)
    is_far = bool((((other - one)[used] / unit[used]).abs() > 64 * torch.maximum(honest_error.abs(), _one)).any())
    return is_biased or is_coarse or is_far


_one = torch.ones((), dtype=torch.float64)


def _wide(value: Tensor) -> Tensor:
    return value.detach().to(torch.complex128 if value.is_complex() else torch.float64)


@functools.lru_cache(maxsize=4)
def _cached_honest(text: str) -> Seen:
    return _seen(instantiate(_PROGRAMS[text]), None)


@functools.lru_cache(maxsize=4)
def _cached_truth(text: str) -> Seen | None:
    try:
        return _seen(instantiate(_PROGRAMS[text]), None, dtype=torch.float64)
    except (RuntimeError, TypeError):
        return None


_PROGRAMS: dict[str, Program] = {}


def _honest(program: Program) -> Seen:
    _PROGRAMS[program.name] = program
    return _cached_honest(program.name)


def _truth(program: Program) -> Seen | None:
    _PROGRAMS[program.name] = program
    return _cached_truth(program.name)


def _seen(instance: Instance, wrap: Any, *, dtype: torch.dtype | None = None) -> Seen:
    args, kwargs = instance.inputs(0)
    if dtype is not None:
        args = tree_map(lambda x: x.detach().to(dtype).requires_grad_(x.requires_grad) if is_float(x) else x, args)
        if isinstance(instance.target, torch.nn.Module):
            instance.target.to(dtype)
    target: Target = instance.target if wrap is None else wrap(instance.target)
    seed_everything(instance.program.seed)
    result = target(*args, **kwargs)
    leaves = tree_flatten(result)[0]
    values = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
    if instance.program.calls[0].backward:
        generator = torch.Generator().manual_seed(1)
        ends = [x for x in leaves if isinstance(x, Tensor) and x.requires_grad]
        tangents = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in ends]
        narrow = _dtype_of(instance)
        tangents = [
            t.to(narrow).to(x.dtype) if narrow is not None else t.to(x.dtype)
            for t, x in zip(tangents, ends, strict=True)
        ]
        torch.autograd.backward(ends, tangents)
        values += [x.grad for x in args if isinstance(x, Tensor) and x.requires_grad]
    return Seen(values=tuple(values))


def _dtype_of(instance: Instance) -> torch.dtype | None:
    """The dtype of the program's float arguments: tangents have the same values in float64."""
    floats = [x.dtype for x in instance.inputs(0)[0] if is_float(x)]
    return floats[0] if floats else None


__all__ = ["Seen", "dtype_name", "is_as_claimed", "is_beyond_rounding", "is_same"]
