"""What eager mode refuses to write for its sizes, fake kernels accept: a source of another shape than its places.

Counterpart: torch/_meta_registrations.py meta_index_put
Differs: checked where the call is traced. Of symbolic sizes that is a guard, so that sizes which do not fit are never run with a
graph of sizes that do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch

aten = torch.ops.aten


def check_sizes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises eager mode's error. Of sizes that nobody knows nothing is asked."""
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
        found, expected = _numbers(source.shape), _numbers(shape)
        raise RuntimeError(
            f"expected src to have a size equal to the slice of self. src size = {found}, slice size = {expected}"
        )


def _index_put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> None:
    """Of masks nothing is asked, for how many places they mean is data."""
    given = [index for index in indices if index is not None]
    sizes = [size for tensor in (x, values, *given) for size in tensor.shape]
    if any(index.dtype in (torch.bool, torch.uint8) for index in given) or not all(map(is_known, sizes)):
        return
    shape = aten.index.Tensor(x, indices).shape if given else x.shape
    own = values.shape
    pairs = zip(reversed(own), reversed(shape), strict=False)
    if len(own) > len(shape) or not all(size == 1 or size == place for size, place in pairs):
        found, expected = _numbers(own), _numbers(shape)
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {found} cannot be broadcast to indexing result of shape {expected}"
        )


def is_known(number: Any) -> bool:
    """Whether a size, an int or SymInt, has a value while the program is traced: of others no comparison can be a guard."""
    return not isinstance(number, torch.SymInt) or number.node.has_hint()


def _numbers(shape: Sequence[Any]) -> list[int]:
    """A shape as it is in this call."""
    return [number.node.hint if isinstance(number, torch.SymInt) else number for number in shape]


_CHECKS: Mapping[Any, Callable[..., None]] = MappingProxyType(
    {
        aten.slice_scatter.default: _slice_scatter,
        aten.index_put.default: _index_put,
        aten.index_put_.default: _index_put,
    }
)
