"""Shape checks of `slice_scatter` and `index_put` that eager makes and fake kernels do not.

Counterpart: torch/_meta_registrations.py meta_index_put
Differs: checked while tracing. For symbolic sizes the check is a guard, so that a graph never runs on sizes that do not fit.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import SYMBOLIC_TYPES

aten = torch.ops.aten


def check_sizes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises eager's error if the shapes do not fit. Unbacked sizes are not checked."""
    check = _CHECKS.get(func)
    if check is not None:
        check(*args, **kwargs)


def _slice_scatter(
    x: torch.Tensor, source: torch.Tensor, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> None:
    if not all(map(is_known, (*x.shape, *source.shape, start, end, step))):
        return
    shape = aten.slice.Tensor(x, dim, start, end, step).shape
    if len(source.shape) != len(shape) or any(map(operator.ne, source.shape, shape)):
        found, expected = list(map(hint_of, source.shape)), list(map(hint_of, shape))
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {found}, slice size = {expected}"
        )


def _index_put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> None:
    """Masks are not checked: how many elements they select depends on data."""
    given = [index for index in indices if index is not None]
    sizes = [size for tensor in (x, values, *given) for size in tensor.shape]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given) or not all(map(is_known, sizes)):
        return
    shape = aten.index.Tensor(x, indices).shape if given else x.shape
    own = values.shape
    pairs = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > len(shape) or not all(size == 1 or size == place for size, place in pairs):
        found, expected = list(map(hint_of, own)), list(map(hint_of, shape))
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {found} cannot be broadcast to indexing result of shape {expected}"
        )


def is_known(number: Any) -> bool:
    """Whether a size is an int or a backed SymInt: a comparison of an unbacked one cannot be a guard."""
    return not isinstance(number, torch.SymInt) or number.node.has_hint()


def hint_of(number: Any) -> Any:
    """The value of a number in this call: the hint of a symbolic one, None if it is unbacked."""
    return number.node.hint if isinstance(number, SYMBOLIC_TYPES) else number


_CHECKS: Mapping[Any, Callable[..., None]] = MappingProxyType(
    {
        aten.slice_scatter.default: _slice_scatter,
        aten.index_put.default: _index_put,
        aten.index_put_.default: _index_put,
    }
)
