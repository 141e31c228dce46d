"""The subject `eager_fp64`: eager computed in float64 and complex128, with results converted back to the program's dtypes.

It shows how much of a difference is eager's own rounding. Inputs and module keep their dtypes, mutations and gradients reach
them, and outputs that are inputs or views of them stay so.

Limits: outputs are narrowed to the one narrow dtype among inputs and module, so results of another dtype are wrong. Tensors that
the program stores in globals, closures, lists or new attributes are wide, and those it reads from there are narrow. Containers
among the arguments are copies. A program whose meaning depends on its dtype (bit casts), or that has several dtypes in one
storage, is run as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from oracle.program.clone import map_tensors
from oracle.reruns.widen import WIDE, CannotWiden, Widened, narrow_dtype, widen_tree
from oracle.subjects.base import CompileRequest, Counters
from oracle.subjects.spec import SubjectSpec


class EagerFp64:
    """Runs the target on widened copies of its inputs, parameters and buffers."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec

    def reset(self) -> None:
        """Does nothing: no state is kept between cases."""

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        target = request.target

        def call(*args: Any, **kwargs: Any) -> Any:
            originals = (args, kwargs, _state(target))
            narrow = narrow_dtype(originals)
            try:
                wide = widen_tree(originals)
            except CannotWiden:
                return target(*args, **kwargs)
            narrowing = _Narrowing(originals, wide, narrow)  # before the program changes the containers
            widening = Widened(narrow=narrow)
            generator = torch.get_rng_state()
            result = _run(target, wide, widening)
            if widening.meaning_changed or widening.unknown:
                torch.set_rng_state(generator)
                return target(*args, **kwargs)
            return narrowing.give_back(result)

        return call

    def counters(self) -> Counters:
        return Counters()


def _run(target: Callable[..., Any], wide: Any, widening: Widened) -> Any:
    args, kwargs, state = wide
    with widening:
        if isinstance(target, torch.nn.Module):
            return torch.func.functional_call(target, state, args, kwargs)
        return target(*args, **kwargs)


def _state(target: Callable[..., Any]) -> dict[str, torch.Tensor]:
    if not isinstance(target, torch.nn.Module):
        return {}
    return {**dict(target.named_parameters()), **dict(target.named_buffers())}


class _Narrowing:
    """Copies one call's mutations and results from the wide copies back to the caller's tensors."""

    def __init__(self, originals: Any, wide: Any, narrow: torch.dtype | None) -> None:
        self._pairs = list(zip(_tensors(originals), _tensors(wide), strict=True))
        self._narrow = narrow
        self._cast: dict[int, torch.Tensor] = {}  # id -> narrow tensor; the base of two outputs is cast once
        self._kept: list[torch.Tensor] = []  # kept alive, so that no id is reused

    def give_back(self, result: Any) -> Any:
        for original, copy in self._pairs:
            if original is not copy:
                self._copy_back(original, copy)
                if copy.requires_grad and copy.is_leaf and original.requires_grad:
                    copy.register_post_accumulate_grad_hook(_forward_gradient_to(original))
        return map_tensors(result, self._narrowed)

    def _copy_back(self, original: torch.Tensor, copy: torch.Tensor) -> None:
        if original.shape != copy.shape or original.layout is not torch.strided or original.is_nested:
            return
        with torch.no_grad():
            narrowed = copy.to(original.dtype)
            if not bool(((narrowed == original) | ((narrowed != narrowed) & (original != original))).all()):
                original.copy_(narrowed)

    def _narrowed(self, output: torch.Tensor) -> torch.Tensor:
        for original, copy in self._pairs:
            if output is copy:
                return original
        if output.layout is not torch.strided or output.is_nested:
            return output.to(self._dtype_for(output))
        if output.is_conj():
            return self._narrowed(output.conj()).conj()
        if output.is_neg():
            return torch._neg_view(self._narrowed(torch._neg_view(output)))
        storage = output.untyped_storage()._cdata
        for original, copy in self._pairs:
            if (
                original is not copy
                and _is_storage(copy, storage)
                and (view := _view_like(output, original)) is not None
            ):
                return view
        base = output._base
        if base is None or base.layout is not torch.strided:
            return self._cast_once(output)
        # A view becomes a view of its narrow base, with the same strides and aliases.
        narrow_base = self._cast_once(base)
        if narrow_base is base:
            return output
        view = _view_like(output, narrow_base)
        return self._cast_once(output) if view is None or view.dtype != self._dtype_for(output) else view

    def _cast_once(self, tensor: torch.Tensor) -> torch.Tensor:
        key = id(tensor)
        if key not in self._cast:
            self._cast[key] = tensor.to(self._dtype_for(tensor))
            self._kept.append(tensor)
        return self._cast[key]

    def _dtype_for(self, output: torch.Tensor) -> torch.dtype:
        if self._narrow not in WIDE or output.dtype not in (torch.float64, torch.complex128):
            return output.dtype
        if output.dtype is torch.complex128:
            return self._narrow.to_complex() if self._narrow.itemsize > 1 else torch.complex64
        return self._narrow.to_real() if self._narrow.is_complex else self._narrow


def _tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of a tree in order, each object once. Dataclasses are traversed too."""
    found: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        found.append(tensor)
        return tensor

    map_tensors(tree, note)
    return found


def _view_like(output: torch.Tensor, base: torch.Tensor) -> torch.Tensor | None:
    """The view of `base` with the geometry that `output` has in the wide base; None if strides do not describe it."""
    if base.is_conj() or base.is_neg():
        return None
    size, stride, offset = output.size(), output.stride(), output.storage_offset()
    if output.is_complex() and not base.is_complex():
        real = base.as_strided((*size, 2), (*(2 * step for step in stride), 1), 2 * offset)
        return torch.view_as_complex(real)
    if base.is_complex() and not output.is_complex():
        return torch.view_as_real(base).as_strided(size, stride, offset)
    return base.as_strided(size, stride, offset)


def _is_storage(tensor: torch.Tensor, storage: int) -> bool:
    is_strided = tensor.layout is torch.strided and not tensor.is_nested
    return is_strided and tensor.untyped_storage()._cdata == storage and tensor.untyped_storage().nbytes() > 0


def _forward_gradient_to(original: torch.Tensor) -> Callable[[torch.Tensor], None]:
    def forward(copy: torch.Tensor) -> None:
        if copy.grad is None:  # the function returned an undefined gradient
            return
        gradient = copy.grad.to(original.dtype)
        original.grad = gradient if original.grad is None else original.grad + gradient
        copy.grad = None

    return forward
