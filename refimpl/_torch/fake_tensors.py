"""Fake tensors, the named exception to independence: their modes and errors, and the errors of symbolic sizes."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import torch

# Fake tensors, and the errors that their kernels raise if data is needed. The named exception.
from torch._subclasses.fake_tensor import DataDependentOutputException as DataDependentOutputException  # noqa: TID251
from torch._subclasses.fake_tensor import DynamicOutputShapeException as DynamicOutputShapeException  # noqa: TID251
from torch._subclasses.fake_tensor import FakeCopyMode as FakeCopyMode  # noqa: TID251
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor  # noqa: TID251
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode  # noqa: TID251
from torch._subclasses.fake_tensor import UnsupportedFakeTensorException as UnsupportedFakeTensorException  # noqa: TID251
from torch._subclasses.fake_tensor import UnsupportedOperatorException as UnsupportedOperatorException  # noqa: TID251

# The entry in a fake mode's cache for a result that must not be cached.
from torch._subclasses.fake_tensor import _DispatchCacheBypassEntry as FakeCacheBypass  # noqa: TID251

# Fake tensors that share a storage can only be made inside of a fake kernel.
from torch._subclasses.fake_tensor import in_kernel_invocation_manager as _in_kernel_invocation  # noqa: TID251
from torch._subclasses.fake_tensor import unset_fake_temporarily as without_fake_mode  # noqa: TID251

# The class of value ranges that torch's fake kernels (nonzero, masked_select, cond) read from a shape env, and its error.
from torch.utils._sympy.value_ranges import ValueRangeError as TorchValueRangeError
from torch.utils._sympy.value_ranges import ValueRanges as TorchValueRanges

from refimpl._torch.dispatch import active_dispatch_modes

_NO_CONTEXT = contextlib.nullcontext()

# Errors about shapes that torch's meta kernels and users catch by type. Nothing else is imported from symbolic_shapes.
UPSTREAM_SHAPE_ERRORS = ("GuardOnDataDependentSymNode", "PendingUnbackedSymbolNotFound", "ConstraintViolationError")


def upstream_shape_error(name: str) -> type[RuntimeError]:
    """An error type of torch's symbolic shapes, imported when one is raised: tracing in real mode must not load the module."""
    assert name in UPSTREAM_SHAPE_ERRORS, name
    kind = getattr(importlib.import_module("torch.fx.experimental.symbolic_shapes"), name)
    assert issubclass(kind, RuntimeError)
    return kind


@contextlib.contextmanager
def inside_fake_kernel(fake_mode: FakeTensorMode) -> Iterator[None]:
    """A block in which fake tensors act as their meta tensors, and comparisons of sizes record no guards."""
    shape_env: Any = fake_mode.shape_env
    is_ours = getattr(shape_env, "records_origins", None) is not None  # not torch's ShapeEnv, passed by a caller
    suppressed = shape_env.suppress_guards() if is_ours else _NO_CONTEXT
    with _in_kernel_invocation(fake_mode), suppressed, torch._C._DisablePythonDispatcher():
        yield


def propagate_real_tensors(fake_mode: FakeTensorMode) -> None:
    """Make the mode compute real values as well (`FakeTensor.real_tensor`), and those of numbers read from tensors (`item`) if
    the shape env keeps them."""
    fake_mode.propagate_real_tensors = True
    fake_mode.fake_tensor_converter.meta_converter.copy_data = True
    fake_mode.fake_tensor_converter.meta_converter.describer.copy_data = True


def active_fake_mode() -> FakeTensorMode | None:
    """The innermost active FakeTensorMode."""
    return next((mode for mode in reversed(active_dispatch_modes()) if isinstance(mode, FakeTensorMode)), None)


__all__ = [
    "UPSTREAM_SHAPE_ERRORS",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeCacheBypass",
    "FakeCopyMode",
    "FakeTensor",
    "FakeTensorMode",
    "TorchValueRangeError",
    "TorchValueRanges",
    "UnsupportedFakeTensorException",
    "UnsupportedOperatorException",
    "active_fake_mode",
    "inside_fake_kernel",
    "propagate_real_tensors",
    "upstream_shape_error",
    "without_fake_mode",
]
