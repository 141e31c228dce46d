"""Copies of inputs, module state and random state.

Counterpart: torch/_dynamo/utils.py clone_input, clone_inputs, clone_tensor, checkpoint_params, defake, preserve_rng_state
Differs: a module's state is restored by value, since torch kernels change buffers without bumping their version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from refimpl._torch import FakeTensor, without_fake_mode
from refimpl.capture.public.marks import DYNAMIC

_ALIGNMENT = 32  # bytes
_COMPRESSED = (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def clone_tensor(x: torch.Tensor) -> torch.Tensor:
    """A copy that is differentiable; a leaf under `no_grad`. The gradient of a leaf is copied with it."""
    copy = torch.clone(x)
    if copy.requires_grad is not x.requires_grad:  # grad mode is off
        copy.requires_grad_()
    gradient = x.grad if x.is_leaf else None
    copy.grad = gradient if gradient is None else torch.clone(gradient)
    return copy


def clone_input(x: torch.Tensor, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A copy with the same sizes, strides, alignment to 32 bytes, `requires_grad`, gradient and marks; a fake tensor is
    returned itself.

    Elements that share memory, as in an expanded tensor, get memory of their own.
    """
    with torch.no_grad():
        if isinstance(x, FakeTensor):
            return x
        if x.layout is torch.sparse_coo:
            return _sparse(x)
        if x.layout in _COMPRESSED:
            return _compressed(x)
        if x.device.type == "xla" or x.is_quantized or x.is_mkldnn or x.layout is not torch.strided:
            return _with_gradient(x.clone(), x)
        return _dense(x, dtype or x.dtype)


def _dense(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    needed = 1 + sum((size - 1) * stride for size, stride in zip(x.size(), x.stride(), strict=True)) if x.numel() else 0
    try:
        memory = torch.empty(needed + _ALIGNMENT, dtype=dtype, device=x.device)
        offset = x.data_ptr() - memory.data_ptr()
        made = memory.as_strided(x.size(), x.stride(), (offset % _ALIGNMENT) // x.element_size())
        made.copy_(x.clone())
    except RuntimeError:  # elements share memory
        return _with_gradient(x.clone().to(dtype), x)
    return _with_gradient(made, x)


def _sparse(x: torch.Tensor) -> torch.Tensor:
    x = x.coalesce() if not x.is_coalesced() else x
    made = torch.sparse_coo_tensor(
        clone_input(x._indices()), clone_input(x._values()), x.shape, is_coalesced=x.is_coalesced()
    )
    return made.requires_grad_(x.requires_grad)


def _compressed(x: torch.Tensor) -> torch.Tensor:
    by_rows = x.layout in (torch.sparse_csr, torch.sparse_bsr)
    compressed, plain = (x.crow_indices(), x.col_indices()) if by_rows else (x.ccol_indices(), x.row_indices())
    made = torch.sparse_compressed_tensor(
        clone_input(compressed), clone_input(plain), clone_input(x.values()), x.shape, layout=x.layout
    )
    return made.requires_grad_(x.requires_grad)


def _with_gradient(made: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    made = made.detach()
    if made.is_floating_point() or made.is_complex():
        made.requires_grad_(x.requires_grad)
    if x.is_leaf and x.grad is not None:
        made.grad = clone_input(x.grad, dtype=made.dtype)
    if hasattr(x, DYNAMIC):
        setattr(made, DYNAMIC, set(getattr(x, DYNAMIC)))
    return made


def clone_inputs(example_inputs: Any) -> Any:
    """Copies the tensors of a list, tuple or dict, whose values may be tuples; other items are kept."""
    if isinstance(example_inputs, dict):
        return {
            key: tuple(map(clone_input, value)) if isinstance(value, tuple) else clone_input(value)
            for key, value in example_inputs.items()
        }
    return [clone_input(value) if isinstance(value, torch.Tensor) else value for value in example_inputs]


def defake(x: Any) -> Any:
    """Zeros with a fake tensor's sizes, strides, dtype and device (symbols by their hints); other values unchanged."""
    if not isinstance(x, FakeTensor):
        return x
    with without_fake_mode():
        made = torch.empty_strided(
            [*map(_number, x.size())], [*map(_number, x.stride())], dtype=x.dtype, device=x.device
        )
        return made.zero_().requires_grad_(x.requires_grad)


def _number(size: Any) -> int:
    return size.node.hint if isinstance(size, torch.SymInt) else size


@contextlib.contextmanager
def preserve_rng_state() -> Iterator[None]:
    """Restores the random state of all devices after the block, also after an error. Modes of torch do not see it."""
    with without_fake_mode():
        cpu = torch.random.get_rng_state()
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        with without_fake_mode():
            torch.random.set_rng_state(cpu)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)


def checkpoint_params(gm: torch.nn.Module) -> Callable[[], None]:
    """A function that restores the parameters, buffers and random state of now."""
    with torch.no_grad():
        saved = [(tensor, tensor.detach().clone()) for tensor in [*gm.parameters(), *gm.buffers()]]
    rng = torch.random.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None

    def restore() -> None:
        with torch.no_grad():
            torch.random.set_rng_state(rng)
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
            for tensor, before in saved:
                if not _is_same(tensor, before):
                    tensor.copy_(before)

    return restore


def _is_same(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
        return torch.allclose(tensor, before, rtol=0, atol=0, equal_nan=True)
    return torch.equal(tensor, before)
