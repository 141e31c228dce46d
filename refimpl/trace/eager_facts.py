"""Learns facts about eager's kernels by running them on small tensors: their results' layouts, zeros of zeros, vector width, FMA.

Counterpart: none
Differs: torch builds its CPU kernels for several instruction sets and picks one at run time, so no rule here may state what one
of the builds does.

The runs are invisible to traces. Facts about the processor are found once in a process.
"""

from __future__ import annotations

import bisect
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from refimpl._torch import (
    SYMBOLIC_TYPES,
    FakeTensor,
    OpOverload,
    below_autograd,
    has_composite_kernel,
    has_cpu_kernel,
    set_bits,
    without_dispatch,
)
from refimpl.trace.graph_builder import LITERALS

aten = torch.ops.aten
_PLACES = (1, 2, 4, 8, 16, 32)  # possible numbers of float64 lanes in a vector of 8 to 256 bytes


@functools.cache
def row_vector_bytes() -> int:
    """The vector width in bytes that layer norm's CPU kernel uses; it may be smaller than the processor's.

    Each tried row is zeros and one number whose square overflows. The variance is NaN if that number is in the first lane of a
    vector. If no row is NaN, the length of the rows is returned, so that no shorter row counts as whole vectors.
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
    """Whether the CPU kernels round a product to the dtype before they add to it.

    Kernels with FMA instructions do not: they compute (1 + eps) * (1 + eps) - (1 + 2 * eps) as eps * eps.
    """
    eps = torch.finfo(dtype).eps
    with without_dispatch():
        ones = torch.ones(64, dtype=dtype, device="cpu")
        return not bool(aten.add.Tensor(-(ones + 2 * eps), ones + eps, alpha=1 + eps).any())


# Strides of results. A fake kernel's strides are not always eager's, so the kernel itself runs on trial operands: tensors of
# zeros with the layouts of the operands.

_FEW_ELEMENTS = 4096  # trial operands of at most this many elements have the sizes of the call
_MOST_ELEMENTS = 32767  # most elements of any trial operand: kernels start no threads below
_NAMESPACES = ("aten", "prims")  # kernels of custom ops may do anything
_PLAIN = (*LITERALS, torch.SymInt)
_ERRORS = (RuntimeError, IndexError, ValueError, TypeError, Warning)  # warnings may be errors
# The sizes themselves decide which of several kernels runs, and so the strides.
_BY_SIZES = frozenset([aten.convolution.default, aten.convolution_backward.default])


class KernelResults(NamedTuple):
    """What the CPU kernel gives for a call, beside what a fake kernel gave.

    strides: of each result; None if shapes or dtypes differ, or if they cannot be translated to the sizes of the call. real: the
    results of the kernel on operands of the call's own sizes, if the fake kernel gave other shapes or dtypes.
    """

    strides: list[tuple[Any, ...]] | None
    real: list[torch.Tensor] | None = None


_UNKNOWN = KernelResults(None)


def result_strides(func: Any, args: Any, kwargs: Any, result: Any) -> list[tuple[Any, ...]] | None:
    """The strides that the CPU kernel gives each result tensor of a call.

    None if the kernel is not run, or if its results differ from the fake kernel's (`result`) in number, shapes or dtypes.
    """
    return kernel_results(func, args, kwargs, result).strides


def kernel_results(func: Any, args: Any, kwargs: Any, result: Any) -> KernelResults:
    """What the CPU kernel gives for a call whose fake result is `result`.

    The kernel is run if the operator mutates nothing and returns new tensors, and all tensors are strided and have backed sizes.
    For other devices, whose kernels may differ, only elementwise operators are run, on operands of one dtype.

    A trial operand has meaningless values, by which a kernel must not read out of bounds. Zero is a valid index into every
    tensor with elements, and kernels check int64 indices. Narrower integers are not checked: they come from other kernels, as
    workspaces, packed weights, pivots or offsets. So only elementwise kernels are run on floats together with narrow integers.
    If the trial operands have smaller sizes, each int argument must be a dimension or, by the schema, a size. A kernel that
    trusts int64 values could still read out of bounds; 19 059 calls of 498 operators between guard pages found none.
    """
    if not gives_new_tensors(func):
        return _UNKNOWN
    given = _leaves((*args, *kwargs.values()))
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    results = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
    if not tensors or not results or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in given):
        return _UNKNOWN
    if not all(map(_is_dense, (*tensors, *results))) or not _is_safe(func, tensors):
        return _UNKNOWN
    if any(tensor is made for tensor in tensors for made in results):
        return _UNKNOWN
    trial_operands = _trial_operands(func, args, kwargs, given, (*tensors, *results))
    if trial_operands is None:
        return _UNKNOWN
    # Some kernels refuse zeros (multinomial).
    fill, found = next(
        ((fill, made) for fill in (0, 1) if (made := _run(func, args, kwargs, trial_operands, fill)) is not None),
        (0, None),
    )
    if found is None or len(found) != len(results):
        return _UNKNOWN
    if trial_operands.sizes is None and any(map(_differs, found, results)):
        return KernelResults(None, found) if _are_for_all_values(func, args, kwargs, found, fill) else _UNKNOWN
    strides = []
    for made, fake in zip(found, results, strict=True):
        known = trial_operands.strides_of(made, fake)
        if known is None:
            return _UNKNOWN
        strides.append(known)
    if any(hints(known) != hints(fake.stride()) for known, fake in zip(strides, results, strict=True)):
        _guard_orders(tensors)
    return KernelResults(strides)


def _are_for_all_values(func: Any, args: Any, kwargs: Any, found: Sequence[torch.Tensor], fill: int) -> bool:
    """Whether a kernel gives these shapes for other values too: they may depend on values, whatever the operator's tags say."""
    if torch.Tag.dynamic_output_shape in func.tags:
        return False
    other = _run(func, args, kwargs, TrialOperands(None), 1 - fill)
    if other is None:  # a one may be no index

        def fill_fractions(operand: torch.Tensor, memory: torch.Tensor) -> None:
            memory.fill_(1 - fill if _has_fractions(operand.dtype) else fill)

        called = _with(func, args, kwargs, _Made(TrialOperands(None), fill, None, fill_fractions))
        other = [] if called is None else [leaf for leaf in _leaves(called[0]) if isinstance(leaf, torch.Tensor)]
    return len(other) == len(found) and not any(map(_differs, found, other))


def _differs(real: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two results have different shapes, by the hints of symbolic sizes, or dtypes."""
    return real.dtype is not other.dtype or tuple(real.shape) != hints(other.shape)


def returned_operand(func: Any, args: Any, kwargs: Any) -> torch.Tensor | None:
    """The operand that a composite kernel returns itself, as `contiguous` does; None if it does not, or if it is not run.

    It is run if the operator mutates nothing and has one tensor result, on trial operands as in `result_strides`.
    """
    if not isinstance(func, OpOverload) or func._schema.is_mutable or not has_composite_kernel(func):
        return None
    given = _leaves((*args, *kwargs.values()))
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    if not tensors or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in given):
        return None
    if not all(map(_is_dense, tensors)) or not _may_run(func, tensors):
        return None
    trial_operands = _trial_operands(func, args, kwargs, given, tensors)
    if trial_operands is None:
        return None
    made = _Made(trial_operands, 0, None)
    called = _with(func, args, kwargs, made)
    found = [key for key, operand in made.tensors.items() if called is not None and called[0] is operand]
    return next((tensor for tensor in tensors if id(tensor) in found), None)


# Zeros of zeros.

_OTHERS = (0.75, -1.5, 0.0, 3.0, -0.25)  # what operands hold that are not zeros, repeated; each run starts one later
_MOST_OF_ZEROS = 2**20  # most elements of a trial operand


def gives_zeros(func: Any, args: Any, kwargs: Any, zeros: Collection[int]) -> bool:
    """Whether all results of a call are zeros if the tensors with the ids `zeros` are, and the other operands are finite.

    The kernel runs on other operands whose elements each take values of both signs, larger and smaller than 1, and 0; with
    integers 0 and 1, since they may be indices; and with both booleans. An operator that multiplies, moves, adds up or rounds the
    zeros gives zeros in all runs. One that adds another operand, or chooses between it and the zeros, does not. NaN says nothing,
    because an operand may be outside of the domain (`0 / 0`), but no element may be NaN in all runs. The result of an operator
    that creates tensors must also depend on the zeros: memory that is not initialized may be zeros by chance.

    False if the kernel is not run: for custom operators; for tensors that are not strided or have unbacked or too many elements;
    for narrow integers, as in `result_strides`. False also for results that are booleans.
    """
    if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES or torch.Tag.inplace_view in func.tags:
        return False
    given = _leaves((*args, *kwargs.values()))
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    plain = (torch.Tensor, torch.SymFloat, *_PLAIN)
    if not all(isinstance(leaf, plain) for leaf in given) or not all(map(_is_dense, tensors)):
        return False
    if not any(id(tensor) in zeros for tensor in tensors) or not _may_run(func, tensors):
        return False
    sizes = [(hints(tensor.shape), hints(tensor.stride())) for tensor in tensors]
    if any(shape is None or strides is None for shape, strides in sizes):
        return False

    def results_of(run: int, of_zeros: int = 0) -> list[Any] | None:
        def fill(value: torch.Tensor, memory: torch.Tensor) -> None:
            if id(value) not in zeros:
                _vary(memory, run)
            elif of_zeros:
                memory.fill_(of_zeros)

        def vary(value: Any) -> Any:
            return _OTHERS[run % len(_OTHERS)] if isinstance(value, (torch.SymInt, torch.SymFloat)) else value

        made = _Made(TrialOperands(None), 0, None, fill, _MOST_OF_ZEROS)
        called = _with(func, *_with_numbers(func, args, kwargs, vary), made)
        return None if called is None else [leaf for leaf in _leaves(called[0]) if leaf is not None]

    runs = [results_of(run) for run in range(2 * len(_OTHERS))]
    if any(found is None for found in runs[: len(_OTHERS)]):
        return False
    if torch.Tag.dynamic_output_shape in func.tags and any(leaf.numel() == 0 for leaf in runs[0] or ()):
        return False  # `nonzero` of zeros: the result has other sizes than for other tangents
    if not _are_zeros([found for found in runs if found is not None]):
        return False
    if any(argument.name == "pin_memory" for argument in func._schema.arguments):
        found = results_of(0, 1)
        return found is not None and not _are_zeros([found])
    return True


def _may_run(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the CPU kernel may run on meaningless values (see `result_strides`)."""
    if torch.Tag.pointwise in func.tags:
        return True
    return not any(_is_narrow(tensor.dtype) for tensor in tensors) or not any(
        _has_fractions(tensor.dtype) for tensor in tensors
    )


def _vary(memory: torch.Tensor, run: int) -> None:
    """Fill the memory of a trial operand, of shape [elements], for a run of `gives_zeros`.

    A kernel may refuse the later half of the runs: their integers are 1, which need not be an index.
    """
    places = torch.arange(len(memory))
    if memory.dtype is torch.bool:
        memory.copy_((places + run) % 2 == 1)
    elif not _has_fractions(memory.dtype):
        memory.fill_(run // len(_OTHERS))
    else:
        memory.copy_(torch.tensor(_OTHERS)[(places + run) % len(_OTHERS)])


def _are_zeros(runs: Sequence[Sequence[Any]]) -> bool:
    """Whether the results of all runs are tensors of zeros or NaN, and each element is 0 in some run."""
    if not all(isinstance(leaf, torch.Tensor) and leaf.dtype is not torch.bool for found in runs for leaf in found):
        return False
    with without_dispatch(), torch.no_grad():
        for results in zip(*runs, strict=True):
            if len({tensor.shape for tensor in results}) > 1:
                return False
            wide = torch.complex128 if results[0].is_complex() else torch.float64
            numbers = torch.stack([tensor.to(wide) for tensor in results])  # [runs, *shape of the result]
            if bool(((numbers != 0) & ~numbers.isnan()).any()) or not bool((numbers == 0).any(0).all()):
                return False
    return bool(runs[0])


# Dtypes that a kernel refuses; fake kernels and decompositions accept some of these.

# Names of index operands in schemas, whose zeros are in range for every tensor with elements.
_INDICES = frozenset(["index", "indices", "target"])
_REFUSED: dict[Any, bool] = {}


def refuses_dtypes(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the CPU kernel raises for operands of these dtypes, but not for the same sizes with other dtypes.

    The kernel runs once for each combination of dtypes and ranks, on trial operands as in `result_strides`. False if it is not
    run: for custom operators, and for operands that have no trial operand.

    Integers narrower than 64 bits, next to floats, may be offsets that the kernel does not check. Unless the schema names the
    operand an index, its trial operand is int64 instead: a kernel that refuses int64 there refuses narrower integers as well. So
    a kernel that accepts int64 but no narrower integers counts as accepting these.
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
    return leaf if isinstance(leaf, (torch.dtype, bool, str)) else type(leaf)


def _refuses(func: Any, args: Any, kwargs: Any, given: Sequence[Any]) -> bool:
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    if not tensors or not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in given):
        return False
    if not all(map(_is_dense, tensors)):
        return False
    trial_operands = _trial_operands(func, args, kwargs, given, tensors)
    if trial_operands is None:
        return False
    is_index = _are_indices(func, args, kwargs, tensors)
    dtypes = [tensor.dtype for tensor in tensors]
    if torch.Tag.pointwise not in func.tags and any(map(_has_fractions, dtypes)):
        pairs = zip(dtypes, is_index, strict=True)
        dtypes = [torch.int64 if _is_narrow(dtype) and not may_be_any else dtype for dtype, may_be_any in pairs]
    if _runs(func, *_with_ones(func, args, kwargs, keeps_types=True), trial_operands, dtypes):
        return False
    kinds = [torch.float32 if _has_fractions(dtype) else torch.int64 for dtype in dtypes]
    others = (
        kinds,
        [torch.float32, *kinds[1:]],
        [torch.int64 if index else torch.float32 for index in is_index],
        [torch.int64] * len(tensors),
    )
    ones = _with_ones(func, args, kwargs, keeps_types=False)
    return any(_runs(func, *ones, trial_operands, other) for other in others)


def refuses_call(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the CPU kernel raises for the sizes, numbers and strings of a call, such as `gelu(x, approximate="sinh")`.

    The kernel runs on trial operands of the call's own sizes: of zeros, of ones, and of a number of both signs that differs from
    element to element. It refuses the call if it raises for all of these. So it counts as refused if none of them is a value that
    the kernel takes, as for `cholesky`. False if it is not run: where `result_strides` does not run it, for larger tensors, and
    for numbers that may be sizes of a large result.
    """
    given = _leaves((*args, *kwargs.values()))
    tensors = [leaf for leaf in given if isinstance(leaf, torch.Tensor)]
    if not tensors or not gives_new_tensors(func) or not has_cpu_kernel(func) or not _is_safe(func, tensors):
        return False
    if not all(isinstance(leaf, (torch.Tensor, *_PLAIN)) for leaf in given) or not all(map(_is_dense, tensors)):
        return False
    trial_operands = _trial_operands(func, args, kwargs, given, tensors)
    if trial_operands is None or trial_operands.sizes is not None or _product_of_ints(given) > _MOST_ELEMENTS:
        return False
    if any(_called(func, args, kwargs, trial_operands, fill) is not None for fill in (0, 1)):
        return False
    return _with(func, args, kwargs, _Made(trial_operands, 0, None, lambda _, memory: _vary(memory, 0))) is None


def _product_of_ints(given: Sequence[Any]) -> int:
    """The product of the int arguments other than 0, which may be sizes of the result."""
    return math.prod(abs(hint_of(leaf)) or 1 for leaf in given if isinstance(leaf, (int, torch.SymInt)))


def _with_ones(func: Any, args: Any, kwargs: Any, *, keeps_types: bool) -> tuple[Any, Any]:
    """The arguments with ones in place of number operands, because a kernel may refuse a number for its value.

    It may also refuse the type (`True - x`), so with `keeps_types` the ones have the numbers' types; else they are ints.
    """

    def one(value: Any) -> Any:
        if keeps_types and isinstance(value, (bool, float, complex)):
            return value if isinstance(value, bool) else type(value)(1)
        return 1

    return _with_numbers(func, args, kwargs, one)


def _with_numbers(func: Any, args: Any, kwargs: Any, replace: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The arguments of a call with other numbers in place of number operands, which are those of type `Scalar` in the schema."""
    names = [argument.name for argument in func._schema.arguments]
    numbers = {argument.name for argument in func._schema.arguments if "number" in str(argument.type)}

    def replaced(name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [replaced(name, item) for item in value]
        if name not in numbers or value is None or isinstance(value, torch.Tensor):
            return value
        return replace(value)

    given = [replaced(name, value) for name, value in zip(names, args, strict=False)]
    return given, {name: replaced(name, value) for name, value in kwargs.items()}


def _has_fractions(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _is_narrow(dtype: torch.dtype) -> bool:
    """Whether these are integers of less than 64 bits."""
    return not _has_fractions(dtype) and dtype is not torch.bool and dtype.itemsize < 8


def _are_indices(func: Any, args: Any, kwargs: Any, tensors: Sequence[torch.Tensor]) -> list[bool]:
    """For each tensor of a call, whether the schema names it an index."""
    named = zip((argument.name for argument in func._schema.arguments), args, strict=False)
    indices = {id(leaf) for name, value in (*named, *kwargs.items()) if name in _INDICES for leaf in _leaves(value)}
    return [id(tensor) in indices for tensor in tensors]


def _runs(func: Any, args: Any, kwargs: Any, trial_operands: TrialOperands, dtypes: Sequence[torch.dtype]) -> bool:
    """Whether the kernel runs on trial operands of these dtypes, all of zeros or all of ones."""
    return any(_called(func, args, kwargs, trial_operands, fill, dtypes) is not None for fill in (0, 1))


@functools.cache
def gives_new_tensors(func: Any) -> bool:
    """Whether, by its schema and tags, an operator mutates nothing, returns no views, and has no data-dependent output."""
    if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES:
        return False
    if torch.Tag.data_dependent_output in func.tags:
        return False
    schema = func._schema
    return all(value.alias_info is None for value in (*schema.arguments, *schema.returns))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor is a plain strided one, fully described by sizes, strides and dtype."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter, FakeTensor) or tensor.layout is not torch.strided:
        return False
    return not tensor.is_quantized and not tensor.is_nested


def _is_safe(func: Any, tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the CPU kernel may run on meaningless values, and has the strides of the tensors' device (see `result_strides`)."""
    on_cpu = all(device_of(tensor).type == "cpu" for tensor in tensors)
    if not on_cpu and (torch.Tag.pointwise not in func.tags or len({tensor.dtype for tensor in tensors}) > 1):
        return False
    return _may_run(func, tensors)


def device_of(tensor: torch.Tensor) -> torch.device:
    """The tensor's device; of a fake tensor the one that it stands for, without a dispatch."""
    return tensor.fake_device if type(tensor) is FakeTensor else tensor.device


def _trial_operands(
    func: Any, args: Any, kwargs: Any, given: Sequence[Any], tensors: Sequence[torch.Tensor]
) -> TrialOperands | None:
    """Trial operands of the call's sizes if these are small or cannot be made smaller; otherwise of smaller sizes."""
    if not all(leaf.node.has_hint() for leaf in given if isinstance(leaf, torch.SymInt)):
        return None
    geometries = [(hints(tensor.shape), hints(tensor.stride())) for tensor in tensors]
    most = 0
    for shape, strides in geometries:
        if shape is None or strides is None:
            return None
        most = max(most, 0 if 0 in shape else reach(shape, strides), math.prod(shape))
    if most <= _FEW_ELEMENTS:
        return TrialOperands(None)
    if func in _BY_SIZES:
        return None
    sizes = smaller_sizes(shape for shape, _ in geometries if shape is not None)
    if _are_sizes_or_dims(func, args, kwargs, sizes):
        return TrialOperands(sizes)
    return TrialOperands(None) if most <= _MOST_ELEMENTS else None


def _are_sizes_or_dims(func: Any, args: Any, kwargs: Any, sizes: Mapping[int, int]) -> bool:
    """Whether each int argument is a dimension or a size, and so has a meaning for trial operands of smaller sizes."""
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
    """Record a guard on the order of each tensor's symbolic strides: the strides found hold for that order only."""
    for tensor in tensors:
        strides = tensor.stride()
        known = hints(strides)
        if known is None or all(type(stride) is int for stride in strides):
            continue
        ordered = [stride for _, stride in sorted(zip(known, strides, strict=True), key=lambda pair: pair[0])]
        for inner, outer in pairwise(ordered):
            bool(inner <= outer)


def _leaves(value: Any) -> list[Any]:
    """The values in nested lists and tuples, the only containers that operators take and return."""
    return [leaf for item in value for leaf in _leaves(item)] if isinstance(value, (list, tuple)) else [value]


def _run(func: Any, args: Any, kwargs: Any, trial_operands: TrialOperands, fill: int) -> list[torch.Tensor] | None:
    """The results of the kernel on trial operands filled with a number; None if it raises or returns a view of one."""
    called = _called(func, args, kwargs, trial_operands, fill)
    if called is None:
        return None
    result, made = called
    found = [leaf for leaf in _leaves(result) if isinstance(leaf, torch.Tensor)]
    memory = {tensor.untyped_storage()._cdata for tensor in made}
    return None if any(x.layout is torch.strided and x.untyped_storage()._cdata in memory for x in found) else found


def _called(
    func: Any,
    args: Any,
    kwargs: Any,
    trial_operands: TrialOperands,
    fill: int,
    dtypes: Sequence[torch.dtype] | None = None,
) -> tuple[Any, list[torch.Tensor]] | None:
    """The result of the kernel on trial operands filled with a number, and the trial operands; None if it raises.

    `dtypes` are the trial operands' dtypes, in order; None for those of the operands.
    """
    return _with(func, args, kwargs, _Made(trial_operands, fill, None if dtypes is None else iter(dtypes)))


def _with(func: Any, args: Any, kwargs: Any, made: _Made) -> tuple[Any, list[torch.Tensor]] | None:
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
    """A tensor has too many elements, or internal overlap other than by expanded dimensions."""


class _Made:
    """Makes the arguments of a call on trial operands. Mutable: remembers the trial operands so far."""

    def __init__(
        self,
        trial_operands: TrialOperands,
        fill: int,
        dtypes: Iterator[torch.dtype] | None,
        values: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
        most: int = _MOST_ELEMENTS,
    ) -> None:
        """`values(operand, memory)` may fill a trial operand's memory, of shape [elements], with other numbers than `fill`."""
        self._trial_operands = trial_operands
        self._fill = fill
        self._dtypes = dtypes
        self._values = values
        self._most = most
        self.tensors: dict[int, torch.Tensor] = {}  # by id of the operand

    def like(self, value: Any) -> Any:
        """The argument with trial operands in place of tensors."""
        if isinstance(value, (list, tuple)):
            return [self.like(item) for item in value]
        if isinstance(value, torch.Tensor):
            dtype = value.dtype if self._dtypes is None else next(self._dtypes)
            if id(value) not in self.tensors:
                geometry = self._trial_operands.geometry(value)
                if geometry is None or (0 not in geometry[0] and reach(*geometry) > self._most):
                    raise _NoStandInError
                made = self.tensors[id(value)] = filled(*geometry, value, self._fill, dtype)
                if self._values is not None and 0 not in geometry[0]:
                    self._values(value, made.as_strided((reach(*geometry),), (1,)))
            return self.tensors[id(value)]
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, torch.SymInt) or type(value) is int:
            return self._trial_operands.number(value)
        return value


def is_known(number: Any) -> bool:
    """Whether a size is an int or a backed SymInt: a comparison of an unbacked one cannot be a guard."""
    return not isinstance(number, torch.SymInt) or number.node.has_hint()


def hint_of(number: Any) -> Any:
    """The value of a number in this call: the hint of a symbolic one, None if it is unbacked."""
    return number.node.hint if isinstance(number, SYMBOLIC_TYPES) else number


KEPT = 4  # sizes up to this stand for themselves


def hints(numbers: Iterable[Any]) -> tuple[int, ...] | None:
    """Sizes or strides as ints, by the hints of symbolic ones; None if one is unbacked."""
    found = []
    for number in numbers:
        if type(number) is not int:
            if not number.node.has_hint():
                return None
            number = int(number.node.hint)
        found.append(number)
    return tuple(found)


def smaller_sizes(shapes: Iterable[Sequence[int]]) -> dict[int, int]:
    """Maps each size of a call to the size that a trial operand has instead."""
    sizes = sorted({size for shape in shapes for size in shape if size > KEPT})
    return {**{size: size for size in range(KEPT + 1)}, **{size: KEPT + 1 + at for at, size in enumerate(sizes)}}


def smaller_strides(shape: Sequence[int], strides: Sequence[int], sizes: Mapping[int, int]) -> tuple[int, ...] | None:
    """Strides of a trial operand of smaller sizes. None if the tensor is empty, or overlaps other than by expanded dimensions."""
    if 0 in shape:
        return None
    marks = {0: 0, 1: 1}  # maps strides of the tensor to strides of the trial operand
    end, end_of_trial = 1, 1  # elements that the dimensions so far span
    for stride, size in sorted((t, s) for s, t in zip(shape, strides, strict=True) if s != 1 and t != 0):
        if stride < end:
            return None
        marks[stride] = end_of_trial if stride == end else 2 * end_of_trial
        end, end_of_trial = stride * size, marks[stride] * sizes[size]
        marks[end] = end_of_trial
    for stride in sorted({t for s, t in zip(shape, strides, strict=True) if s == 1 and t not in marks}):
        # The stride of a dimension of size 1 stays between the same two other strides.
        known = sorted(marks)
        at = bisect.bisect(known, stride)
        marks[stride] = marks[known[at - 1]] + 1
        if at < len(known) and marks[stride] >= marks[known[at]]:
            return None
    return tuple(marks[stride] for stride in strides)


class TrialOperands:
    """Real tensors with the layouts of one call's operands, on which the kernel runs to learn the strides of its results.

    They have the sizes of the call (hints of symbolic ones), or smaller ones: sizes up to 4 stay, larger ones become 5, 6, ... in
    the same order, and equal sizes stay equal. The order of dimensions, gaps between rows and expanded dimensions stay. `sizes`
    maps sizes of the call to these; None if they are the same.

    A result's strides are translated back by its order of dimensions: a stride is the product of the sizes inside of it. This
    fails for kernels that choose a layout by the sizes themselves (convolutions), and for results that are not dense.

    Counterpart: none; upstream's Python kernels compute strides
    """

    def __init__(self, sizes: Mapping[int, int] | None) -> None:
        self.sizes = sizes
        # Strides of each trial operand and of its operand.
        self._geometries: list[tuple[tuple[int, ...], Sequence[Any]]] = []

    def geometry(self, tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Shape and strides of the trial operand for a tensor of backed sizes; None if it can have none."""
        shape, strides = hints(tensor.shape), hints(tensor.stride())
        assert shape is not None
        assert strides is not None
        if self.sizes is not None:
            smaller = smaller_strides(shape, strides, self.sizes)
            if smaller is None:
                return None
            shape, strides = tuple(self.sizes[size] for size in shape), smaller
        self._geometries.append((strides, tensor.stride()))
        return shape, strides

    def number(self, number: int | torch.SymInt) -> int:
        (known,) = hints([number]) or (0,)
        return known if self.sizes is None else self.sizes.get(known, known)

    def strides_of(self, made: torch.Tensor, result: torch.Tensor) -> tuple[Any, ...] | None:
        """Translate strides of `made`, the kernel's result on trial operands, to the sizes of the call; None if that fails."""
        shape = hints(result.shape)
        if (
            shape is None
            or made.layout is not torch.strided
            or made.dtype is not result.dtype
            or made.ndim != len(shape)
        ):
            return None
        if self.sizes is None:
            if tuple(made.shape) != shape:
                return None
            if made.stride() == hints(result.stride()):
                return result.stride()
            if all(type(size) is int for size in result.shape) and self._are_numbers():
                return made.stride()
        elif any((a in (0, 1) or b in (0, 1)) and a != b for a, b in zip(shape, made.shape, strict=True)):
            return None
        found = self._translated(made, result.shape)
        return result.stride() if found is not None and hints(found) == hints(result.stride()) else found

    def _are_numbers(self) -> bool:
        return all(type(stride) is int for _, strides in self._geometries for stride in strides)

    def _translated(self, made: torch.Tensor, shape: Sequence[Any]) -> tuple[Any, ...] | None:
        places = [dim for dim, size in enumerate(made.shape) if size != 1]
        products: dict[int, Any] = {0: 0, 1: 1}
        end: int = 1
        real: Any = 1
        for dim in sorted(places, key=lambda dim: (made.stride(dim), made.shape[dim])):
            if made.stride(dim) != end:
                return None
            if made.shape[dim] != 0:  # a size of 0 counts as 1 in contiguous strides
                end, real = end * made.shape[dim], real * shape[dim]
                products[end] = real
        found = []
        for dim, (size, stride) in enumerate(zip(made.shape, made.stride(), strict=True)):
            if stride in products and (size == 1 or stride != 0):
                found.append(products[stride])
                continue
            # A dimension of size 1 may have an operand's stride.
            kept = [
                theirs[at]
                for own, theirs in self._geometries
                if (at := dim - made.ndim + len(own)) >= 0 and own[at] == stride
            ]
            if size != 1 or not kept:
                return None
            found.append(kept[0])
        return tuple(found)


def filled(
    shape: Sequence[int], strides: Sequence[int], like: torch.Tensor, number: int, dtype: torch.dtype
) -> torch.Tensor:
    """A CPU tensor filled with one number, the gaps between its rows included.

    It has the conjugate and negative bits of `like` if it has that dtype.
    """
    made = torch.empty_strided(shape, strides, dtype=dtype, device="cpu")
    if 0 not in shape:
        made.as_strided((reach(shape, strides),), (1,)).fill_(number)
    if dtype == like.dtype:
        set_bits(made, is_conj=like.is_conj(), is_neg=like.is_neg())
    return made


def reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements of memory the tensor spans, gaps included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True) if size > 1)
