"""What eager mode refuses to write to, fake kernels accept: another dtype, memory that repeats elements or that the call reads.

Counterpart: at::assert_no_internal_overlap, at::assert_no_overlap; upstream checks when the graph runs, where it still writes
Differs: what an operator accepts is written in its kernel only. So the kernel is tried on tensors of ones and zeros that lie in
memory as the given ones do: where it raises, and does not if it writes to memory of its own, it would have raised in eager mode.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

from refimpl._torch import FakeTensor, OpOverload, pytree, set_bits, storage_key, without_dispatch, written_arguments
from refimpl.trace.scalar_dtypes import with_plain_scalars
from refimpl.trace.size_checks import is_known

_MOST_BYTES = 1 << 26  # of all tensors of a call that is tried
_NAMESPACES = ("aten", "prims")  # an operator of the user's may do anything
_EAGERS_ERRORS = (RuntimeError, IndexError, ValueError, TypeError)


def check_outputs(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises eager mode's error about what the call writes to. Sizes that are symbolic count as they are in this call."""
    written = _written_tensors(func, args, kwargs)
    if not written:
        return
    is_out, repeats = bool(_out_arguments(func)), any(map(repeats_elements, written))
    if not is_out and not repeats and not _is_shared(written, args, kwargs):
        return
    trial = _Trial.of(func, args, kwargs)
    is_known = trial is not None and trial.raises_eagers_error()
    if is_out and repeats and not is_known:
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )


def eagers_error(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Exception | None:
    """What eager mode raises for such arguments, asked where a fake kernel stumbles over its own check; None if nothing known."""
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


def repeats_elements(tensor: torch.Tensor) -> bool:
    """Whether it is expanded, which is all that eager mode looks at: of symbolic sizes a guard."""
    if tensor.layout is not torch.strided:
        return False
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    expanded = [size for size, stride in pairs if type(stride) is int and stride == 0]
    return any(size > 1 for size in expanded if is_known(size))


def _is_shared(written: list[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether another tensor of the call lies in memory that it writes to, or the same one is given twice."""
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
    """One call on real tensors, which lie in memory as those of a traced call do."""

    def __init__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._func = func
        self._given = (args, kwargs)

    @classmethod
    def of(cls, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Trial | None:
        """None where it cannot be made: of tensors that are not strided or too large, and of sizes that nobody knows."""
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if not all(map(_is_plain, tensors)):
            return None
        numbers = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, (torch.SymInt, torch.SymFloat))
        ]
        places = [number for tensor in tensors for number in (*tensor.shape, *tensor.stride(), tensor.storage_offset())]
        if any(_number(value) is None for value in (*places, *numbers)):
            return None
        if sum(map(_bytes, (*tensors, *_results(func, args, kwargs)))) > _MOST_BYTES:
            return None
        return cls(func, args, kwargs)

    def error(self) -> Exception | None:
        """What the call raises."""
        with without_dispatch(), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._run(self._func, *_real(self._given))

    def raises_eagers_error(self) -> bool:
        """Raises the error that eager mode raises because of what is written to; else whether it is known that it raises none."""
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
        """The call without what it writes to; and writing to memory that is nobody else's."""
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
    """What the call gives, by the fake kernel, without a change of what is given; nothing if that raises."""
    outs = _out_arguments(func)
    if not outs:
        return []
    fresh = {name: pytree.tree_map(_empty_like, value) if name in outs else value for name, value in kwargs.items()}
    try:
        made = func(*with_plain_scalars(func, args), **fresh)
    except _EAGERS_ERRORS:
        return []
    return [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]


def _empty_like(leaf: Any) -> Any:
    return leaf.new_empty((0,)) if isinstance(leaf, torch.Tensor) else leaf


def _bytes(tensor: torch.Tensor) -> int:
    count = tensor.dtype.itemsize
    for size in tensor.shape:
        count *= _number(size) or 0
    return count


def _number(value: Any) -> Any:
    """A number as it is in this call; None if nobody knows it."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value


def _real(value: Any) -> Any:
    """The same arguments with real tensors: floats are ones, everything else is zero, and memory is shared as it was."""
    memory: dict[int, torch.Tensor] = {}
    tensors = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    for tensor in tensors:
        key = storage_key(tensor)
        needed = max(_extent(other) for other in tensors if storage_key(other) == key)
        if key not in memory:
            flat = torch.zeros(needed // tensor.dtype.itemsize + 1, dtype=tensor.dtype, device=_device(tensor))
            memory[key] = flat.fill_(1) if tensor.dtype.is_floating_point or tensor.dtype.is_complex else flat
    made: dict[int, torch.Tensor] = {}

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return _number(leaf)
        if id(leaf) not in made:
            sizes, strides = [_number(n) for n in leaf.shape], [_number(n) for n in leaf.stride()]
            real = torch.empty(0, dtype=leaf.dtype, device=_device(leaf))
            real.set_(memory[storage_key(leaf)].untyped_storage(), _number(leaf.storage_offset()), sizes, strides)
            set_bits(real, is_conj=leaf.is_conj(), is_neg=leaf.is_neg())
            made[id(leaf)] = real
        return made[id(leaf)]

    return pytree.tree_map(one, value)


def _device(tensor: torch.Tensor) -> torch.device:
    return tensor.fake_device if type(tensor) is FakeTensor else tensor.device


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from the begin of its memory to the end of its last element."""
    reach = 0
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if _number(size) == 0:
            return 0
        reach += (_number(size) - 1) * _number(stride)
    return (_number(tensor.storage_offset()) + reach + 1) * tensor.dtype.itemsize


@contextlib.contextmanager
def _random_numbers_kept(value: Any) -> Iterator[None]:
    """What is drawn within it is drawn again afterwards."""
    generators = [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Generator)]
    states = [generator.get_state() for generator in generators]
    with torch.random.fork_rng():
        yield
    for generator, state in zip(generators, states, strict=True):
        generator.set_state(state)
