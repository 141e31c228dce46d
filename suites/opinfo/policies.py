"""Policies: results that single operators leave open, as tables with reasons.

The default is a strict comparison. An operator is listed only if upstream's documentation leaves a choice, or if a value is
undefined. If upstream promises one answer (argmax, max(dim), cummax: which of two equal elements) it is not listed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from oracle.program import ComparePolicy
from suites.opinfo.database import OpInfo, SampleInput

STRICT = ComparePolicy()


def policy_for(info: OpInfo, *, one: SampleInput | None, kind: str, direction: str) -> ComparePolicy:
    """The policy of one program; `one` is its sample, or None if upstream could not make it."""
    name = info.full_name
    if one is None:
        return STRICT
    if name in UNDEFINED:
        return ComparePolicy(undefined_outputs=("output",), reason=UNDEFINED[name])
    if name in INVARIANTS and direction == "forward":
        # Backward compares the result of upstream's output_process_fn_grad, which is unique.
        rule = INVARIANTS[name]
        return ComparePolicy(invariant=rule.invariant, is_random=rule.is_random, reason=rule.reason)
    if name in INDICES:
        return _index_policy(INDICES[name], one)
    if name in RANDOM or (name in RANDOM_IN_TRAINING and _drops(RANDOM_IN_TRAINING[name], one)):
        return ComparePolicy(is_random=True, reason="draws from the generator, even where two draws happen to be equal")
    return STRICT


# ------------------------------------------------------------------------------------------------------ undefined values

UNDEFINED: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(
        ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
        "the tensor is not initialised",
    )
)

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

INVARIANTS: Mapping[str, Symmetry] = MappingProxyType(
    {
        "svd": _SVD,
        "linalg.svd": _SVD,
        "svd_lowrank": _RANDOM_SVD,
        "pca_lowrank": _RANDOM_SVD,
        "linalg.eig": _EIGENVECTORS,
        "linalg.eigh": _EIGENVECTORS,
        "qr": _QR,
        "linalg.qr": _QR,
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

# Found by checking whether a call changes the generator (float32, float64, bfloat16, complex64, int64 and bool samples of 2.13).
# Other operators that draw only for some arguments (scaled_dot_product_attention, rrelu, ...) return many numbers, so that two
# eager runs with different seeds show it; these may return a single number.
RANDOM = frozenset(
    {
        "bernoulli",
        "cauchy",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "normal",
        "normal.in_place",
        "normal.number_mean",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "uniform",
    }
)

RANDOM_IN_TRAINING: Mapping[str, bool] = MappingProxyType(  # -> default of the argument `training`
    {
        "nn.functional.dropout": True,
        "nn.functional.dropout2d": True,
        "nn.functional.dropout3d": True,
        "nn.functional.alpha_dropout": False,
        "nn.functional.feature_alpha_dropout.with_train": False,
        "nn.functional.feature_alpha_dropout.without_train": False,
    }
)


def _drops(training_default: bool, one: SampleInput) -> bool:
    """Whether dropout draws random numbers: not if it drops nothing or everything."""
    return bool(_argument(one, 2, "training", training_default)) and 0.0 < _argument(one, 1, "p", 0.5) < 1.0


def _argument(one: SampleInput, position: int, name: str, default: Any) -> Any:
    """The value of an argument, positional or keyword; position 0 is the input."""
    if name in one.kwargs:
        return one.kwargs[name]
    return one.args[position - 1] if position <= len(one.args) else default
