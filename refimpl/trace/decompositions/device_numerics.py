"""Says which device type's kernels a rule follows where CPU and GPU kernels differ by more than rounding (variances, FMA).

Strides and dtypes of results are always those of the tensor's own device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from refimpl.trace.eager_facts import rounds_products_of_sums

_FOLLOWED: ContextVar[str | None] = ContextVar("the device type whose kernels rules follow", default=None)


def followed_device() -> str | None:
    """The device type of the innermost `following_kernels_of` block; None outside."""
    return _FOLLOWED.get()


def follows_cpu(device: torch.device) -> bool:
    """Whether rules compute like the CPU kernels for a tensor on this device."""
    return (_FOLLOWED.get() or device.type) == "cpu"


def fuses_products(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether kernels on the device compute a * b + c with one rounding (FMA), as GPUs and most CPUs do."""
    return not (follows_cpu(device) and rounds_products_of_sums(dtype))


def uses_cpu_blas(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether eager calls a CPU BLAS library for `addmm` and `addmv`, which skips the product, NaN included, if alpha is 0."""
    return dtype in (torch.float32, torch.float64) and follows_cpu(device)


@contextmanager
def following_kernels_of(device_type: str) -> Iterator[None]:
    """A block in which rules and lowerings follow the kernels of a device type, whatever device the tensors are on.

    Example: `with following_kernels_of("cuda")` makes on a CPU the kernels that a GPU would run, for measurements and tests.
    """
    token = _FOLLOWED.set(device_type)
    try:
        yield
    finally:
        _FOLLOWED.reset(token)
