"""What eager's kernels refuse and fake kernels or decompositions accept: written tensors, operand dtypes, numbers.

Written tensors: a wrong `out=` dtype, expanded or overlapping memory, as in `x.expand(3, 4).add_(1)`.
Operand dtypes: `torch.take` with an int32 index, `torch.polar` of half tensors, the backward of gelu with a tangent of another
dtype. Numbers: the 300 of `uint8_x.fill_(300)`; operands of arithmetic and comparisons are not checked, since they become 0-dim
tensors, whose conversion wraps or overflows to inf. A call with operands or numbers that do not fit is not decomposed: the
operator itself runs, and raises eager's error.

Counterpart: at::assert_no_internal_overlap, at::assert_no_overlap; the checks in kernels, aten/src/ATen/native/mixed_data_type.h
among them; c10/util/TypeCast.h overflows, c10/core/Scalar.h Scalar::to
Differs: upstream checks written tensors only when the graph runs, if it still mutates. Only the kernel itself knows what it
accepts, so it runs on real tensors of ones and zeros with the same strides and shared storages. If it raises, but does not raise
when it writes to fresh memory, then the written tensor is what eager refuses. For dtypes it runs on stand-ins
(`refimpl.trace.eager_facts`), and the result counts for other devices as well.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from refimpl._torch import FakeTensor, OpOverload, pytree, set_bits, storage_key, without_dispatch, written_arguments
from refimpl.trace.dtypes import FLOAT, INT, common_dtype_of, is_common, kind_of, without_float8_scalars
from refimpl.trace.eager_facts import device_of, hint_of, is_known, refuses_call, refuses_dtypes

_MOST_BYTES = 1 << 26  # a call on more bytes than this is not tried
_NAMESPACES = ("aten", "prims")  # kernels of custom ops may do anything
_EAGERS_ERRORS = (RuntimeError, IndexError, ValueError, TypeError)


def check_mutations(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises eager's error about a tensor that the call writes to. Symbolic sizes count with their hints."""
    written = _written_tensors(func, args, kwargs)
    if not written:
        return
    is_out, repeats = bool(_out_arguments(func)), any(map(is_expanded, written))
    if not is_out and not repeats and not _is_shared(written, args, kwargs):
        return
    trial = _Trial.of(func, args, kwargs)
    is_known = trial is not None and trial.raises_eager_error()
    if is_out and repeats and not is_known:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def eager_error(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """The exception that eager raises for these arguments; None if it raises none or cannot be tried."""
    if not isinstance(func, OpOverload) or func.namespace not in _NAMESPACES:
        return None
    trial = _Trial.of(func, args, kwargs)
    return None if trial is None else trial.error()


def _written_tensors(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    for position, name in _written_arguments(func):
        value = args[position] if position < len(args) else kwargs.get(name)
        found += [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return found


@functools.cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    return written_arguments(func) if isinstance(func, OpOverload) and func.namespace in _NAMESPACES else ()


@functools.cache
def _out_arguments(func: Any) -> tuple[str, ...]:
    return tuple(argument.name for argument in func._schema.arguments if argument.is_out)


def is_expanded(tensor: torch.Tensor) -> bool:
    """Whether the tensor is expanded, which is the only internal overlap that eager detects. Symbolic sizes record a guard."""
    if tensor.layout is not torch.strided:
        return False
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    expanded = [size for size, stride in pairs if type(stride) is int and stride == 0]
    return any(size > 1 for size in expanded if is_known(size))


def _is_shared(written: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a written tensor is passed twice, or shares its storage with another argument."""
    tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if _is_plain(leaf)]
    if len({id(tensor) for tensor in tensors}) < len(tensors) and any(
        sum(other is one for other in tensors) > 1 for one in written
    ):
        return True
    return any(
        other is not one and storage_key(other) == storage_key(one)
        for one in written
        if _is_plain(one)
        for other in tensors
    )


def _is_plain(value: Any) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter, FakeTensor)
        and value.layout is torch.strided
        and not value.is_quantized
        and not value.is_nested
    )


class _Trial:
    """A traced call that can be repeated on real tensors with the same strides and shared storages."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func = func
        self._given = (args, kwargs)

    @classmethod
    def of(cls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Trial | None:
        """None if the call cannot be tried: a tensor is not strided or a size is unbacked, or the tensors are too large."""
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not all(map(_is_plain, tensors)):
            return None
        numbers = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, (torch.SymInt, torch.SymFloat))
        ]
        places = [number for tensor in tensors for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
        if any(hint_of(value) is None for value in (*places, *numbers)):
            return None
        if sum(map(_bytes, (*tensors, *_results(func, args, kwargs)))) > _MOST_BYTES:
            return None
        return cls(func, args, kwargs)

    def error(self) -> Exception | None:
        """The exception that the call raises; None if it raises none."""
        with without_dispatch(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._run(self._func, *_real(self._given))

    def raises_eager_error(self) -> bool:
        """Raise eager's error if a written tensor is its cause. Returns True if the call succeeds, False for other errors."""
        with without_dispatch(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            error = self._run(self._func, *_real(self._given))
            if error is None:
                return True
            if any(self._run(*control) is None for control in self._controls()):
                raise error
        return False

    def _run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
        with _random_numbers_kept((args, kwargs)):
            try:
                func(*args, **kwargs)
            except _EAGERS_ERRORS as error:
                return error.with_traceback(None)
        return None

    def _controls(self) -> Iterator[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]:
        """The call without its `out=` arguments, and the call with clones of the tensors that it writes to."""
        names = [name for _, name in _written_arguments(self._func)]
        outs = _out_arguments(self._func)
        if outs:
            args, kwargs = _real(self._given)
            yield self._func.overloadpacket, args, {name: kwargs[name] for name in kwargs if name not in outs}
        args, kwargs = _real(self._given)
        positions = {position for position, _ in _written_arguments(self._func)}
        yield (
            self._func,
            tuple(_own(value) if position in positions else value for position, value in enumerate(args)),
            {name: _own(value) if name in names else value for name, value in kwargs.items()},
        )


def _own(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.contiguous().clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def _results(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The fake results of an `out=` call, made with other `out=` tensors; an empty list if that raises."""
    outs = _out_arguments(func)
    if not outs:
        return []
    fresh = {name: pytree.tree_map(_empty_like, value) if name in outs else value for name, value in kwargs.items()}
    try:
        made = func(*without_float8_scalars(func, args), **fresh)
    except _EAGERS_ERRORS:
        return []
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _empty_like(leaf: Any) -> Any:
    return leaf.new_empty((0,)) if isinstance(leaf, torch.Tensor) else leaf


def _bytes(tensor: torch.Tensor) -> int:
    count = tensor.dtype.itemsize
    for size in tensor.shape:
        count *= hint_of(size) or 0
    return count


def _real(value: Any) -> Any:
    """The arguments with real tensors in place of fakes: ones for floats, zeros for other dtypes, storages shared as before."""
    memory: dict[int, torch.Tensor] = {}
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        key = storage_key(tensor)
        needed = max(_extent(other) for other in tensors if storage_key(other) == key)
        if key not in memory:
            flat = torch.zeros(needed // tensor.dtype.itemsize + 1, dtype=tensor.dtype, device=device_of(tensor))
            memory[key] = flat.fill_(1) if tensor.dtype.is_floating_point or tensor.dtype.is_complex else flat
    made: dict[int, torch.Tensor] = {}

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return hint_of(leaf)
        if id(leaf) not in made:
            sizes, strides = [hint_of(n) for n in leaf.shape], [hint_of(n) for n in leaf.stride()]
            real = torch.empty(0, dtype=leaf.dtype, device=device_of(leaf))
            real.set_(memory[storage_key(leaf)].untyped_storage(), hint_of(leaf.storage_offset()), sizes, strides)
            set_bits(real, is_conj=leaf.is_conj(), is_neg=leaf.is_neg())
            made[id(leaf)] = real
        return made[id(leaf)]

    return pytree.tree_map(one, value)


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the beginning of the tensor's storage to the end of its last element."""
    reach = 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if hint_of(size) == 0:
            return 0
        reach += (hint_of(size) - 1) * hint_of(stride)
    return (hint_of(tensor.storage_offset()) + reach + 1) * tensor.dtype.itemsize


@contextlib.contextmanager
def _random_numbers_kept(value: Any) -> Iterator[None]:
    """A block that leaves the states of random generators as they were, those among the arguments included."""
    generators = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Generator)]
    states = [generator.get_state() for generator in generators]
    with torch.random.fork_rng():
        yield
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)


# Operand dtypes and numbers.


def operands_fit(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operator's kernel accepts the call: dtypes together, numbers among the arguments, sizes of small operands."""
    return (
        not refuses_dtypes(func, args, kwargs)
        and numbers_fit(func, args, kwargs)
        and not refuses_call(func, args, kwargs)
    )


def are_common(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether all tensors, in lists as well, and dtype arguments are of dtypes that most kernels implement."""
    for operand in (*args, *kwargs.values()):
        for x in operand if isinstance(operand, (list, tuple)) else (operand,):
            dtype = x if isinstance(x, torch.dtype) else getattr(x, "dtype", None)
            if isinstance(dtype, torch.dtype) and not is_common(dtype):
                return False
    return True


# Names of number arguments that are converted to the operands' common dtype.
_CONVERTED = frozenset(
    [
        *("alpha", "beta", "fill_value", "input_scale", "lambd", "lower", "max_val", "min_val"),
        *("negative_slope", "s", "scale", "threshold", "upper", "value", "weight"),
    ]
)
_PROMOTED = frozenset(["min", "max", "exponent"])  # converted, and operands of type promotion
_OPERANDS = frozenset(["self", "other"])  # operands of type promotion that are not checked
_FACTORS = frozenset(["add", "sub", "rsub", "index_add"])  # ops that refuse a bool alpha
_PLACES = frozenset(["index", "mask"])
_NUMBERS = (bool, int, float, complex)
_SMALL = 64  # every dtype holds integers up to this


def number_fits(number: complex, dtype: torch.dtype) -> bool:
    """Whether a number converts to the dtype without an error. Negative ints wrap in unsigned dtypes."""
    if isinstance(number, complex):
        return dtype.is_complex
    if kind_of(dtype) == INT:
        limits = torch.iinfo(dtype)
        if isinstance(number, float):
            return limits.min <= number <= float(limits.max)
        return (limits.min or -limits.max) <= number <= limits.max
    if kind_of(dtype) == FLOAT:
        return abs(number) <= torch.finfo(dtype).max or not math.isfinite(number)
    return True


def numbers_fit(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether all numbers that the operator converts fit. Symbolic numbers are not checked."""
    names = checked_numbers(func)
    if not names:
        return True
    given = {**dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)), **kwargs}
    numbers = {name: given[name] for name in names if isinstance(given.get(name), _NUMBERS)}
    if all(type(number) is int and abs(number) <= _SMALL for number in numbers.values()):
        return True
    dtype = given.get("dtype") or _common_dtype(given)
    if dtype is None:
        return True
    has_factor = func.overloadpacket.__name__ in _FACTORS and isinstance(numbers.get("alpha"), bool)
    return not (has_factor and dtype != torch.bool) and all(number_fits(number, dtype) for number in numbers.values())


@functools.cache
def checked_numbers(func: Any) -> tuple[str, ...]:
    """The names of an operator's number arguments that its kernel converts."""
    if not isinstance(func, OpOverload) or func.namespace != "aten":
        return ()
    numbers = [argument.name for argument in func._schema.arguments if "number" in str(argument.type)]
    return tuple(name for name in numbers if name in _CONVERTED | _PROMOTED)


def _common_dtype(given: Mapping[str, Any]) -> torch.dtype | None:
    numbers = [value for name, value in given.items() if name in _PROMOTED | _OPERANDS and isinstance(value, _NUMBERS)]
    operands = [
        operand
        for name, operand in given.items()
        if name not in _PLACES and isinstance(getattr(operand, "dtype", None), torch.dtype)
    ]
    if not operands:
        return None
    dimensions = [(operand.dtype, len(operand.shape)) for operand in operands]
    return common_dtype_of(
        [dtype for dtype, rank in dimensions if rank], [dtype for dtype, rank in dimensions if not rank], numbers
    )
