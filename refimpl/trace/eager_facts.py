"""What eager's kernels do on the processor that runs them, asked of the kernels: layouts of results, vectors, roundings.

Counterpart: none
Differs: torch builds its kernels for several kinds of processors, and takes those for the best one it finds, or the one that
ATEN_CPU_CAPABILITY names. No rule may state what one of these builds does.

Every question runs a kernel on a few numbers, once in a process; also while a program is traced, which sees nothing of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch

from refimpl._torch import FakeTensor, OpOverload, below_autograd, without_dispatch
from refimpl.trace.layouts.stand_ins import StandIns, filled, hints, reach, smaller_sizes

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


# The layout of results. Strides of a fake kernel are not always the kernel's. The kernel itself runs on stand-ins, tensors of
# zeros that lie in memory as the operands do.

_FEW_ELEMENTS = 4096  # stand-ins with no more have the sizes of the call
_MOST_ELEMENTS = 32767  # of any stand-in: kernels start no threads for so few
_NAMESPACES = ("aten", "prims")  # an operator of the user's may do anything
_PLAIN = (
    type(None), bool, int, float, complex, str, torch.SymInt,
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, Warning)  # warnings may be errors
_NARROW = frozenset([torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32])
# Go by the sizes themselves: which of several kernels runs, and with it the layout.
_BY_SIZES = frozenset([aten.convolution.default, aten.convolution_backward.default])


def result_strides(func: Any, args: Any, kwargs: Any, result: Any) -> list[tuple[Any, ...]] | None:
    """Strides of each tensor that a call gives, as the CPU's kernel lays it out; None where the kernel is not asked, or does not
    give what the fake kernel gave (`result`) in number, shapes and dtypes.

    Asked are operators that give new tensors and write nothing, on dense tensors whose sizes are known while the program is
    traced; on other devices the elementwise ones, on operands of one dtype.

    The numbers in a stand-in mean nothing, so no kernel may take them for an address that it does not check. Zero is an index
    into all that has elements, and kernels check indices, which are int64. What only another kernel writes holds narrower
    integers: the bytes of a workspace, packed weights, pivots, offsets. So no kernel is asked that is given floating point
    numbers and integers of fewer than 64 bits, unless it works element by element. And where sizes are made smaller, all
    integers that are no sizes by the schema have to be dimensions. Bound: a kernel that trusts int64 numbers; a run of 19 059
    calls of 498 operators, with all memory between pages that cannot be touched, found none.
    """
    if not gives_new_tensors(func):
        return None
    given = _leaves((*args, *kwargs.values()))
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    results = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
    if not tensors or not results or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in given):
        return None
    if not all(map(_is_dense, (*tensors, *results))) or not _is_safe(func, tensors):
        return None
    if any(tensor is made for tensor in tensors for made in results):
        return None
    stand_ins = _stand_ins(func, args, kwargs, given, (*tensors, *results))
    if stand_ins is None:
        return None
    # Some kernels refuse zeros (a distribution without mass).
    found = next((made for fill in (0, 1) if (made := _run(func, args, kwargs, stand_ins, fill)) is not None), None)
    if found is None or len(found) != len(results):
        return None
    strides = []
    for made, fake in zip(found, results, strict=True):
        known = stand_ins.strides_of(made, fake)
        if known is None:
            return None
        strides.append(known)
    if any(hints(known) != hints(fake.stride()) for known, fake in zip(strides, results, strict=True)):
        _guard_orders(tensors)
    return strides


@functools.cache
def gives_new_tensors(func: Any) -> bool:
    """Whether, by its schema, an operator writes nothing, gives no views, and needs no data to say what it gives."""
    if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES:
        return False
    if torch.Tag.data_dependent_output in func.tags:
        return False
    schema = func._schema
    return all(value.alias_info is None for value in (*schema.arguments, *schema.returns))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether it is strided, and all that is to be known of it are sizes, strides and dtype."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) or tensor.layout is not torch.strided:
        return False
    return not tensor.is_quantized and not tensor.is_nested


def _is_safe(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the kernel may run on numbers of no meaning, and answers for the device."""
    if torch.Tag.pointwise in func.tags:
        dtypes = {tensor.dtype for tensor in tensors}
        return len(dtypes) == 1 or all(_device_type(tensor) == "cpu" for tensor in tensors)
    if any(_device_type(tensor) != "cpu" for tensor in tensors):
        return False
    has_floats = any(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors)
    return not has_floats or not any(tensor.dtype in _NARROW for tensor in tensors)


def _device_type(tensor: torch.Tensor) -> str:
    return tensor.fake_device.type if type(tensor) is FakeTensor else tensor.device.type


def _stand_ins(
    func: Any, args: Any, kwargs: Any, given: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> StandIns | None:
    """Of the sizes of the call, if these are few; else of smaller sizes, else of those of the call after all."""
    if not all(leaf.node.has_hint() for leaf in given if isinstance(leaf, torch.SymInt)):
        return None
    geometries = [(hints(tensor.shape), hints(tensor.stride())) for tensor in tensors]
    most = 0
    for shape, strides in geometries:
        if shape is None or strides is None:
            return None
        most = max(most, 0 if 0 in shape else reach(shape, strides), math.prod(shape))
    if most <= _FEW_ELEMENTS:
        return StandIns(None)
    if func in _BY_SIZES:
        return None
    sizes = smaller_sizes(shape for shape, _ in geometries if shape is not None)
    if _are_sizes_or_dims(func, args, kwargs, sizes):
        return StandIns(sizes)
    return StandIns(None) if most <= _MOST_ELEMENTS else None


def _are_sizes_or_dims(func: Any, args: Any, kwargs: Any, sizes: Mapping[int, int]) -> bool:
    """Whether the integer arguments of a call mean the same for stand-ins of smaller sizes: each is a dimension or a size."""
    for at, argument in enumerate(func._schema.arguments):
        value = args[at] if at < len(args) else kwargs.get(argument.name)
        numbers = [leaf for leaf in _leaves(value) if isinstance(leaf, (int, torch.SymInt)) and type(leaf) is not bool]
        if "dim" in argument.name or "axis" in argument.name:
            continue
        if any(number > 0 and number not in sizes for number in hints(numbers) or ()):
            return False
        if numbers and "SymInt" not in str(argument.real_type) and "Scalar" not in str(argument.real_type):
            return False
    return True


def _guard_orders(tensors: Sequence[torch.Tensor]) -> None:
    """The order of dimensions of each holds for all calls of the graph: a guard where strides are symbols of their own."""
    for tensor in tensors:
        strides = tensor.stride()
        known = hints(strides)
        if known is None or all(type(stride) is int for stride in strides):
            continue
        ordered = [stride for _, stride in sorted(zip(known, strides, strict=True), key=lambda pair: pair[0])]
        for inner, outer in pairwise(ordered):
            bool(inner <= outer)


def _leaves(value: Any) -> list[Any]:
    """What is in lists and tuples: an operator takes no other containers, and gives none."""
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, (list, tuple)) else [value]


def _run(func: Any, args: Any, kwargs: Any, stand_ins: StandIns, fill: int) -> list[torch.Tensor] | None:
    """The new tensors that the kernel gives for tensors of this number; None if it raises, or gives views."""
    made: dict[int, torch.Tensor] = {}
    state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
    try:
        with without_dispatch(), below_autograd(), torch.no_grad():
            given = [_stand_in(value, stand_ins, fill, made) for value in args]
            named = {name: _stand_in(value, stand_ins, fill, made) for name, value in kwargs.items()}
            result = func(*given, **named)
    except (_NoStandInError, *_ERRORS):
        return None
    finally:
        if state is not None:
            torch.set_rng_state(state)
    found = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
    memory = {tensor.untyped_storage()._cdata for tensor in made.values()}
    return None if any(x.layout is torch.strided and x.untyped_storage()._cdata in memory for x in found) else found


class _NoStandInError(Exception):
    """Elements of a tensor share memory otherwise than by expansion, or there are too many."""


def _stand_in(value: Any, stand_ins: StandIns, fill: int, made: dict[int, torch.Tensor]) -> Any:
    """The same with real tensors of one number. `made`: those there are, by id of what they stand for."""
    if isinstance(value, (list, tuple)):
        return [_stand_in(item, stand_ins, fill, made) for item in value]
    if isinstance(value, torch.Tensor):
        if id(value) not in made:
            geometry = stand_ins.geometry(value)
            if geometry is None or (0 not in geometry[0] and reach(*geometry) > _MOST_ELEMENTS):
                raise _NoStandInError
            made[id(value)] = filled(*geometry, value, fill)
        return made[id(value)]
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, torch.SymInt) or type(value) is int:
        return stand_ins.number(value)
    return value
