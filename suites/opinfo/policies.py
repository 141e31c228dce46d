"""Policies: results that single operators leave open, as tables with reasons.

The default is a strict comparison. An operator is listed only if upstream's documentation leaves a choice, or if a value is
undefined. If upstream promises one answer (argmax, max(dim), cummax: which of two equal elements) it is not listed.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from oracle.program import ComparePolicy
from oracle.program.clone import clone_tree
from suites.opinfo.database import OpInfo, SampleInput
from suites.opinfo.generate import isolated_rng, tensors_of
from suites.opinfo.operators import operator_of, resets_the_seed

STRICT = ComparePolicy()


def policy_for(info: OpInfo, *, one: SampleInput | None, kind: str, direction: str) -> ComparePolicy:
    """The policy of one program; `one` is its sample, or None if upstream could not make it."""
    name = info.full_name
    if one is None:
        return STRICT
    if name.removeprefix("new_").startswith("empty"):
        return ComparePolicy(undefined_outputs=("output",), reason="the tensor is not initialised")
    if name.split(".")[-1] in INVARIANTS and direction == "forward":
        # Backward compares the result of upstream's output_process_fn_grad, which is unique.
        rule = INVARIANTS[name.split(".")[-1]]
        return ComparePolicy(invariant=rule.invariant, is_random=rule.is_random, reason=rule.reason)
    if name in INDICES:
        return _index_policy(INDICES[name], one)
    if resets_the_seed(info.op) and _draws(info, one):
        return ComparePolicy(is_random=True, reason="draws from the generator, even where two draws happen to be equal")
    return STRICT


# ---------------------------------------------------------------------------------------------------------- symmetries


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """A choice that mathematics leaves; `invariant` names the comparison in oracle.judge.symmetry."""

    invariant: str
    reason: str
    is_random: bool | None = None


_SVD = Symmetry(invariant="svd", reason="singular vectors have a phase, and a rotation where singular values repeat")
_RANDOM_SVD = Symmetry(
    invariant="svd", reason=f"{_SVD.reason}; the range is found by random projection", is_random=True
)
_EIGENVECTORS = Symmetry(
    invariant="eigenvectors", reason="eigenvectors have a phase, and a rotation where eigenvalues repeat"
)
_QR = Symmetry(invariant="qr", reason="each column of Q has a sign, which the row of R undoes")

# Keyed by the last part of the name, so that torch.svd and torch.linalg.svd share an entry.
INVARIANTS: Mapping[str, Symmetry] = MappingProxyType(
    {
        "svd": _SVD,
        "svd_lowrank": _RANDOM_SVD,
        "pca_lowrank": _RANDOM_SVD,
        "eig": _EIGENVECTORS,
        "eigh": _EIGENVECTORS,
        "qr": _QR,
    }
)

# --------------------------------------------------------------------------------------------------------------- indices


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexRule:
    """Which result has indices, and which argument is the dimension that they index."""

    output: str
    dim_position: int  # among all positional arguments, the input being 0
    dim_default: int | None  # None: without `dim` the operator returns no indices
    reason: str


_TIES = "upstream does not say which of several equal elements is taken"

INDICES: Mapping[str, IndexRule] = MappingProxyType(
    {
        "sort": IndexRule(output="output.indices", dim_position=1, dim_default=-1, reason=_TIES),
        "argsort": IndexRule(output="output", dim_position=1, dim_default=-1, reason=_TIES),
        "topk": IndexRule(output="output.indices", dim_position=2, dim_default=-1, reason=_TIES),
        "kthvalue": IndexRule(output="output.indices", dim_position=2, dim_default=-1, reason=_TIES),
        "mode": IndexRule(output="output.indices", dim_position=1, dim_default=-1, reason=_TIES),
        "median": IndexRule(output="output.indices", dim_position=1, dim_default=None, reason=_TIES),
        "nanmedian": IndexRule(output="output.indices", dim_position=1, dim_default=None, reason=_TIES),
    }
)


def _index_policy(rule: IndexRule, one: SampleInput) -> ComparePolicy:
    dim = _argument(one, rule.dim_position, "dim", rule.dim_default)
    if dim is None:
        return STRICT
    stable = bool(one.kwargs.get("stable", False))
    return ComparePolicy(
        index_outputs={rule.output: {"of": "args[0]", "dim": dim, "stable": stable}}, reason=rule.reason
    )


# --------------------------------------------------------------------------------------------------------------- random


def _draws(info: OpInfo, one: SampleInput) -> bool:
    """Whether eager draws random numbers for the sample: dropout does not if it drops nothing. Asked of random operators only.

    Two runs with different seeds do not show it where the result is a single number.
    """
    first, args, kwargs = clone_tree((one.input, one.args, one.kwargs))
    device = next((tensor.device for tensor in tensors_of(one)), torch.device("cpu"))
    with isolated_rng(0, device), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shown when the program runs
        before = _states(device)
        try:
            operator_of(info)(first, *args, **kwargs)
        except Exception:  # refused: exceptions are compared
            return False
        return any(not torch.equal(old, new) for old, new in zip(before, _states(device), strict=True))


def _states(device: torch.device) -> list[torch.Tensor]:
    """The states of the generators that an operator on the device may draw from."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def _argument(one: SampleInput, position: int, name: str, default: Any) -> Any:
    """The value of an argument, positional or keyword; position 0 is the input."""
    if name in one.kwargs:
        return one.kwargs[name]
    return one.args[position - 1] if position <= len(one.args) else default
