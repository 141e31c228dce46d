"""Operators: the function that an entry stands for.

Upstream's entries for random operators reset the global seed and restore it around every call, so that its tests can
call them twice. No compiler captures that, the generator's state could not be compared, and here the runner seeds
anyway: those entries get the bare operator instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from suites.opinfo.database import OpInfo


def operator_of(info: OpInfo) -> Callable[..., Any]:
    """The function variant."""
    return BARE_OPERATORS.get(info.full_name, info.op)


def inplace_of(info: OpInfo) -> Callable[..., Any] | None:
    """The in-place variant, None where there is none."""
    return BARE_INPLACE.get(info.full_name, info.get_inplace())


def _svd_lowrank(a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> Any:
    return torch.svd_lowrank(a @ b.mT, **kwargs)


def _pca_lowrank(a: torch.Tensor, b: torch.Tensor, **kwargs: Any) -> Any:
    return torch.pca_lowrank(a @ b.mT, **kwargs)


def _normal_number_mean(std: torch.Tensor, mean: float, *args: Any, **kwargs: Any) -> torch.Tensor:
    return torch.normal(mean, std, *args, **kwargs)


def _inplace_dropout(dropout: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def inplace(input: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return dropout(input, *args, **kwargs, inplace=True)

    return inplace


_DROPOUTS: Mapping[str, Callable[..., torch.Tensor]] = {
    "nn.functional.dropout": F.dropout,
    "nn.functional.dropout2d": F.dropout2d,
    "nn.functional.dropout3d": F.dropout3d,
    "nn.functional.alpha_dropout": F.alpha_dropout,
    "nn.functional.feature_alpha_dropout.with_train": F.feature_alpha_dropout,
    "nn.functional.feature_alpha_dropout.without_train": F.feature_alpha_dropout,
    "nn.functional.rrelu": F.rrelu,
}

BARE_OPERATORS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **_DROPOUTS,
        "item": torch.Tensor.item,
        "cauchy": torch.Tensor.cauchy_,
        "exponential": torch.Tensor.exponential_,
        "geometric": torch.Tensor.geometric_,
        "log_normal": torch.Tensor.log_normal_,
        "normal.in_place": torch.Tensor.normal_,
        "uniform": torch.Tensor.uniform_,
        "nn.functional.fractional_max_pool2d": F.fractional_max_pool2d,
        "nn.functional.fractional_max_pool3d": F.fractional_max_pool3d,
        "nn.functional.scaled_dot_product_attention": F.scaled_dot_product_attention,
        "nn.functional.multi_head_attention_forward": F.multi_head_attention_forward,
        "svd_lowrank": _svd_lowrank,
        "pca_lowrank": _pca_lowrank,
        "randn": torch.randn,
        "randn_like": torch.randn_like,
        "rand_like": torch.rand_like,  # upstream's entry of this name calls randn_like
        "randint": torch.randint,
        "randint_like": torch.randint_like,
        "empty_strided": torch.empty_strided,
        "multinomial": torch.multinomial,
        "normal": torch.normal,
        "normal.number_mean": _normal_number_mean,
        "bernoulli": torch.bernoulli,
    }
)

BARE_INPLACE: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: _inplace_dropout(dropout) for name, dropout in _DROPOUTS.items()}
)
