"""What eager's kernels do on the processor that runs them, asked of the kernels: layouts of results, vectors, roundings.

Counterpart: none
Differs: torch builds its kernels for several kinds of processors, and takes those for the best one it finds, or the one that
ATEN_CPU_CAPABILITY names. No rule may state what one of these builds does.

Every question runs a kernel on a few numbers, once in a process; also while a program is traced, which sees nothing of it.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from refimpl._torch import FakeTensor, OpOverload, below_autograd, set_bits, without_dispatch

aten = torch.ops.aten
_PLACES = (1, 2, 4, 8, 16, 32)  # of first lanes: numbers of float64 in a vector, of 8 to 256 bytes


@functools.cache
def row_vector_bytes() -> int:
    """Bytes of a vector of the CPU's kernels of norms of rows: these need not be as wide as the processor's vectors.

    In rows of zeros and one number whose square overflows, the variance is NaN where that number is of a first lane. A kernel
    in which none is gets the length of these rows: no shorter row is one of whole vectors, then.
    """
    with without_dispatch():
        rows = torch.zeros(len(_PLACES), 2 * _PLACES[-1], dtype=torch.float64, device="cpu")
        for row, place in zip(rows, _PLACES, strict=True):
            row[place] = 1e200
        _, _, rstd = aten.native_layer_norm.default(rows, [rows.shape[1]], None, None, 1e-5)
        found = [place for place, number in zip(_PLACES, rstd.flatten().tolist(), strict=True) if math.isnan(number)]
    return min(found, default=rows.shape[1]) * rows.itemsize


@functools.cache
def rounds_products_of_sums(dtype: torch.dtype) -> bool:
    """Whether the CPU's kernels round a product of floats to the dtype before they add something to it.

    Those for processors with fused multiplications do not: of (1 + eps) * (1 + eps) - (1 + 2 * eps) they find eps * eps.
    """
    eps = torch.finfo(dtype).eps
    with without_dispatch():
        ones = torch.ones(64, dtype=dtype, device="cpu")
        return not bool(aten.add.Tensor(-(ones + 2 * eps), ones + eps, alpha=1 + eps).any())


# The layout of results. Strides of a fake kernel are not always the kernel's: these are what the kernel gives for numbers of no
# meaning that lie in memory as those of the traced call do.

_MOST_ELEMENTS = 4096  # of a tensor of the call, and of its results
_NAMESPACES = ("aten", "prims")  # an operator of the user's may do anything
_NOT_ASKED_WITH = (
    torch.SymInt,
    torch.SymFloat,
    torch.SymBool,
    torch.Generator,
)  # values of a run, and state that draws change
_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError)
_UNASKED = frozenset(
    [
        aten.lift_fresh.default,  # gives its argument back, and its schema calls the result a view
        aten._unsafe_view.default,  # a view, and its schema does not say so
        aten.unsafe_split.Tensor,  # views as well
        aten.unsafe_split_with_sizes.default,
        aten.unsafe_chunk.default,
        aten.new_empty_strided.default,  # the strides are an argument, also where they make no sense
        aten.mkldnn_rnn_layer.default,  # reads weights by a layout of its own
        aten.segment_reduce.default,  # reads as far as its lengths say, which are numbers of no meaning here
    ]
)


def result_strides(func: Any, args: Any, kwargs: Any, result: Any) -> list[tuple[int, ...]] | None:
    """Strides of each tensor that a call gives, as the CPU's kernel lays it out; None where the kernel is not asked, or does not
    give what the fake kernel gave (`result`) in number and shapes.

    Asked are operators that give new tensors and write nothing, on dense tensors of known sizes and few elements.
    """
    if not _gives_new_tensors(func):
        return None
    given = _leaves((*args, *kwargs.values()))
    if any(isinstance(leaf, _NOT_ASKED_WITH) for leaf in given):
        return None
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    results = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
    if not tensors or not results or not all(map(_is_small, tensors)) or not all(map(_is_small, results)):
        return None
    if any(tensor is made for tensor in tensors for made in results):
        return None
    # Zero is an index into everything that has elements; some kernels refuse zeros (a distribution without mass).
    found = next((made for fill in (0, 1) if (made := _run(func, args, kwargs, fill)) is not None), None)
    if found is None or [made.shape for made in found] != [fake.shape for fake in results]:
        return None
    return [tuple(made.stride()) for made in found] if all(made.layout is torch.strided for made in found) else None


@functools.cache
def _gives_new_tensors(func: Any) -> bool:
    if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES or func in _UNASKED:
        return False
    if torch.Tag.data_dependent_output in func.tags:
        return False
    schema = func._schema
    return all(value.alias_info is None for value in (*schema.arguments, *schema.returns))


def _is_small(tensor: torch.Tensor) -> bool:
    """Whether it is a dense tensor on the CPU with few elements, all of whose sizes and strides are numbers."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) or tensor.layout is not torch.strided:
        return False
    if tensor.is_quantized or tensor.is_nested or _device_type(tensor) != "cpu":
        return False
    numbers = (*tensor.shape, *tensor.stride())
    if any(type(number) is not int for number in numbers):
        return False
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)
    return tensor.numel() <= _MOST_ELEMENTS and reach <= 4 * _MOST_ELEMENTS


def _device_type(tensor: torch.Tensor) -> str:
    return tensor.fake_device.type if type(tensor) is FakeTensor else tensor.device.type


def _leaves(value: Any) -> list[Any]:
    """What is in lists and tuples: an operator takes no other containers, and gives none."""
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, (list, tuple)) else [value]


def _stand_in(value: Any, fill: int, made: dict[int, torch.Tensor]) -> Any:
    """The same with real tensors of one number, whose strides are those of the given ones. `made`: those there are, by id."""
    if isinstance(value, (list, tuple)):
        return [_stand_in(item, fill, made) for item in value]
    if not isinstance(value, torch.Tensor):
        return value
    if id(value) not in made:
        real = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cpu")
        if value.numel():
            real.as_strided((_reach(value),), (1,)).fill_(fill)
        set_bits(real, is_conj=value.is_conj(), is_neg=value.is_neg())
        made[id(value)] = real
    return made[id(value)]


def _reach(tensor: torch.Tensor) -> int:
    """Elements of memory from the first of the tensor to its last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _run(func: Any, args: Any, kwargs: Any, fill: int) -> list[torch.Tensor] | None:
    """The tensors that the kernel gives for tensors of this number; None if it raises."""
    state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
    made: dict[int, torch.Tensor] = {}
    try:
        with without_dispatch(), below_autograd(), torch.no_grad():
            given = [_stand_in(value, fill, made) for value in args]
            result = func(*given, **{name: _stand_in(value, fill, made) for name, value in kwargs.items()})
    except _ERRORS:
        return None
    finally:
        if state is not None:
            torch.set_rng_state(state)
    return [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
