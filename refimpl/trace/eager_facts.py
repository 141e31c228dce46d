"""What eager's kernels do on the processor that runs them, asked of the kernels: layouts of results, vectors, roundings.

Counterpart: none
Differs: torch builds its kernels for several kinds of processors, and takes those for the best one it finds, or the one that
ATEN_CPU_CAPABILITY names. No rule may state what one of these builds does.

Every question runs a kernel on a few numbers, once in a process; also while a program is traced, which sees nothing of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
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


# Dtypes that a kernel refuses. Fake kernels and decompositions convert, and accept some of these.

_INDICES = frozenset(
    ["index", "indices", "target"]
)  # names of operands whose zeros are in range of all that has elements
_REFUSED: dict[Any, bool] = {}


def refuses_dtypes(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the CPU's kernel raises for operands of these dtypes, and runs for other dtypes of the same sizes.

    The kernel is asked once for each combination of dtypes and numbers of dimensions, on stand-ins as in `result_strides`.
    False where it is not asked: no stand-ins, operators of the user's.

    An integer of fewer than 64 bits beside floating point numbers may be an address that the kernel trusts. It is asked with
    int64 in its place, unless the schema calls it an index: what refuses int64 there refuses narrower integers as well. So a
    kernel that takes int64 and no narrower integers, for an operand that is no index, is taken to accept them.
    """
    if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES:
        return False
    given = _leaves((*args, *kwargs.values()))
    key = func, tuple(_kind_of(leaf) for leaf in given), tuple(kwargs)
    if key not in _REFUSED:
        _REFUSED[key] = _refuses(func, args, kwargs, given)
    return _REFUSED[key]


def _kind_of(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, leaf.dim()
    return leaf if isinstance(leaf, (torch.dtype, bool)) else type(leaf)


def _refuses(func: Any, args: Any, kwargs: Any, given: Sequence[Any]) -> bool:
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    if not tensors or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in given):
        return False
    if not all(map(_is_dense, tensors)):
        return False
    stand_ins = _stand_ins(func, args, kwargs, given, tensors)
    if stand_ins is None:
        return False
    is_index = _are_indices(func, args, kwargs, tensors)
    dtypes = [tensor.dtype for tensor in tensors]
    if torch.Tag.pointwise not in func.tags and any(map(_has_fractions, dtypes)):
        pairs = zip(dtypes, is_index, strict=True)
        dtypes = [torch.int64 if dtype in _NARROW and not may_be_any else dtype for dtype, may_be_any in pairs]
    if _runs(func, args, kwargs, stand_ins, dtypes):
        return False
    kinds = [torch.float32 if _has_fractions(dtype) else torch.int64 for dtype in dtypes]
    others = (
        kinds,
        [torch.float32, *kinds[1:]],
        [torch.int64 if index else torch.float32 for index in is_index],
        [torch.int64] * len(tensors),
    )
    return any(_runs(func, args, kwargs, stand_ins, other) for other in others if other != dtypes)


def _has_fractions(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _are_indices(func: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Which of the tensors of a call are indices by the names in the schema."""
    named = zip((argument.name for argument in func._schema.arguments), args, strict=False)
    indices = {id(leaf) for name, value in (*named, *kwargs.items()) if name in _INDICES for leaf in _leaves(value)}
    return [id(tensor) in indices for tensor in tensors]


def _runs(func: Any, args: Any, kwargs: Any, stand_ins: StandIns, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether the kernel runs on stand-ins of these dtypes, all of zeros or all of ones."""
    return any(_called(func, args, kwargs, stand_ins, fill, dtypes) is not None for fill in (0, 1))


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
    called = _called(func, args, kwargs, stand_ins, fill)
    if called is None:
        return None
    result, made = called
    found = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
    memory = {tensor.untyped_storage()._cdata for tensor in made}
    return None if any(x.layout is torch.strided and x.untyped_storage()._cdata in memory for x in found) else found


def _called(
    func: Any, args: Any, kwargs: Any, stand_ins: StandIns, fill: int, dtypes: Sequence[torch.dtype] | None = None
) -> tuple[Any, list[torch.Tensor]] | None:
    """What the kernel gives for stand-ins of this number, and the stand-ins; None if it raises. `dtypes`: of the stand-ins, in
    order; None: those of the operands."""
    made = _Made(stand_ins, fill, None if dtypes is None else iter(dtypes))
    state = torch.get_rng_state() if torch.Tag.nondeterministic_seeded in func.tags else None
    try:
        with without_dispatch(), below_autograd(), torch.no_grad():
            given = [made.like(value) for value in args]
            named = {name: made.like(value) for name, value in kwargs.items()}
            result = func(*given, **named)
    except (_NoStandInError, *_ERRORS):
        return None
    finally:
        if state is not None:
            torch.set_rng_state(state)
    return result, list(made.tensors.values())


class _NoStandInError(Exception):
    """Elements of a tensor share memory otherwise than by expansion, or there are too many."""


class _Made:
    """The arguments of a call on stand-ins. Mutable: grows argument by argument."""

    def __init__(self, stand_ins: StandIns, fill: int, dtypes: Iterator[torch.dtype] | None) -> None:
        self._stand_ins = stand_ins
        self._fill = fill
        self._dtypes = dtypes
        self.tensors: dict[int, torch.Tensor] = {}  # by id of the operand

    def like(self, value: Any) -> Any:
        """The same with real tensors of one number."""
        if isinstance(value, (list, tuple)):
            return [self.like(item) for item in value]
        if isinstance(value, torch.Tensor):
            dtype = value.dtype if self._dtypes is None else next(self._dtypes)
            if id(value) not in self.tensors:
                geometry = self._stand_ins.geometry(value)
                if geometry is None or (0 not in geometry[0] and reach(*geometry) > _MOST_ELEMENTS):
                    raise _NoStandInError
                self.tensors[id(value)] = filled(*geometry, value, self._fill, dtype)
            return self.tensors[id(value)]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.SymInt) or type(value) is int:
            return self._stand_ins.number(value)
        return value
