"""Whose kernels the rules of statistics follow, where eager's differ from one kind of device to another in more than rounding.

Layouts and the dtypes of results are always those of the device that a tensor is on.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from refimpl.trace.eager_facts import rounds_products_of_sums

_FOLLOWED: ContextVar[str | None] = ContextVar("the kind of device whose kernels are followed", default=None)


def follows_cpu(device: torch.device) -> bool:
    """Whether statistics of what is on the device are found as eager finds them on a CPU."""
    return (_FOLLOWED.get() or device.type) == "cpu"


def fuses_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether eager rounds a * b + c once for floats on the device: GPUs have an instruction for it, and so have most CPUs."""
    return not (follows_cpu(device) and rounds_products_of_sums(dtype))


def has_libraries_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether eager leaves `addmm` and `addmv` to a library for CPUs, which computes no product that alpha = 0 is a factor of."""
    return dtype in (torch.float32, torch.float64) and follows_cpu(device)


@contextmanager
def following_kernels_of(device_type: str) -> Iterator[None]:
    """Says for which kind of device kernels are made of graphs that are traced and lowered inside, wherever their tensors are.

    So a CPU makes what a GPU would run: for measurements of kernels that are compiled for one, and for tests.
    """
    token = _FOLLOWED.set(device_type)
    try:
        yield
    finally:
        _FOLLOWED.reset(token)
