"""Compares fake kernels with real ones: while an operator runs, every aten call inside also runs on fake copies of its arguments.

Compared are shape, dtype, stride, storage offset, device, layout, conjugate and negative bits of each result, and which arguments
and results it shares a storage with, or is identical to; and the same for written arguments after the call. The fake run uses
torch's own FakeTensorMode, with static or symbolic sizes. Calls without a fake kernel are counted separately, since the mode's
fallback would run the real one.

Counterpart: torch/_subclasses/fake_utils.py CrossRefFakeMode
Differs: every field is compared and every difference is noted; upstream raises at the first and lets aliases pass.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from oracle.program.clone import has_plain_storage
from oracle.subjects.signature import value_key
from suites.traces.metadata_records import MetadataDifference

KEPT_CALLS = 20_000  # results of distinct calls, by signature
UNKNOWN = "?"  # an unbacked size

# Why a call could not be compared.
DATA_DEPENDENT = "the result is a value"
DYNAMIC_SHAPE = "the shape depends on data"
NO_KERNEL = "no fake kernel"
NOT_PLAIN = "an argument is not a plain strided tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The result of one aten call: differences, or why it was not compared."""

    differences: tuple[MetadataDifference, ...] = ()
    skipped: str = ""


@dataclass(slots=True, kw_only=True)
class CheckState:
    """The results of one program."""

    calls: int = 0
    compared: int = 0
    skipped: Counter[tuple[str, str]] = field(default_factory=Counter)  # (overload, why)
    differences: list[MetadataDifference] = field(default_factory=list)


class MetadataCheck(TorchDispatchMode):
    """A dispatch mode that checks every aten call. `shapes` is "static" or "symbolic"."""

    def __init__(self, *, shapes: str, known: dict[Hashable, CallResult]) -> None:
        super().__init__()
        self._shapes = shapes
        self._known = known
        self.state = CheckState()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            return func(*args, **kwargs)
        key = (func, *_signature(args, kwargs))
        found = self._known.get(key)
        result, found = (func(*args, **kwargs), found) if found else self._checked(func, args, kwargs)
        if len(self._known) < KEPT_CALLS:
            self._known[key] = found
        self._count(func, found)
        return result

    def _count(self, func: OpOverload, found: CallResult) -> None:
        self.state.calls += 1
        if found.skipped:
            self.state.skipped[str(func), found.skipped] += 1
            return
        self.state.compared += 1
        self.state.differences += found.differences

    def _checked(self, func: OpOverload, args: Any, kwargs: Any) -> tuple[Any, CallResult]:
        described = _describe_call(args, kwargs)
        if not all(has_plain_storage(tensor) for tensor in _tensors((args, kwargs))):
            return func(*args, **kwargs), CallResult(skipped=NOT_PLAIN)
        fake_mode = FakeTensorMode(
            allow_fallback_kernels=False, shape_env=ShapeEnv() if self._shapes == "symbolic" else None
        )
        fake_args, fake_kwargs = self._fake_copies(fake_mode, (args, kwargs))
        promised: Any = None
        problem: BaseException | None = None
        try:
            # symbolic sizes need the Python dispatcher, which torch's tracers switch on too
            rules = enable_python_dispatcher() if self._shapes == "symbolic" else contextlib.nullcontext()
            with fake_mode, rules:
                promised = func(*fake_args, **fake_kwargs)
        except Exception as error:  # an exception of a fake kernel is a result to report
            problem = error
        result = func(*args, **kwargs)
        skipped = _reason_to_skip(problem)
        if skipped:
            return result, CallResult(skipped=skipped)
        if problem is not None:
            text = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
            found = [_difference(self._shapes, func, described, "raises", "", "a result", text)]
        else:
            is_written = func._schema.is_mutable
            real = _facts(result, _tensors((args, kwargs)), is_written=is_written)
            fake = _facts(promised, _tensors((fake_args, fake_kwargs)), is_written=is_written)
            found = [
                _difference(self._shapes, func, described, what, where, expected, seen)
                for what, where, expected, seen in _compare(real, fake)
            ]
        return result, CallResult(differences=tuple(found))

    def _fake_copies(self, fake_mode: FakeTensorMode, tree: Any) -> Any:
        """Fake copies of the arguments. Shared storages stay shared, and a tensor that is passed twice stays one object."""
        copies: dict[int, torch.Tensor] = {}

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in copies:
                copies[id(tensor)] = fake_mode.from_tensor(tensor.detach(), static_shapes=self._shapes == "static")
            return copies[id(tensor)]

        return pytree.tree_map_only(torch.Tensor, fake, tree)


def run_check(
    target: Callable[..., Any], args: Any, kwargs: Any, *, shapes: str, known: dict[Hashable, CallResult]
) -> CheckState:
    """Run a program on real tensors with the check. Raises what the program raises."""
    check = MetadataCheck(shapes=shapes, known=known)
    with check:
        target(*args, **kwargs)
    return check.state


def _reason_to_skip(problem: BaseException | None) -> str:
    match problem:
        case DataDependentOutputException() | GuardOnDataDependentSymNode():
            return DATA_DEPENDENT
        case DynamicOutputShapeException():
            return DYNAMIC_SHAPE
        case UnsupportedOperatorException() | UnsupportedFakeTensorException():
            return NO_KERNEL
        case _:
            return ""


# --------------------------------------------------------------------------------------------------- facts of a result


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """Metadata of one tensor; an unbacked size is UNKNOWN."""

    where: str  # "result", "result[1]", "args[0] after the call"
    shape: tuple[Any, ...]
    stride: tuple[Any, ...]
    storage_offset: Any
    dtype: str
    device: str
    layout: str
    bits: str  # conjugate and negative
    aliases: tuple[str, ...]  # arguments and earlier results that it shares a storage with
    is_argument: str  # the argument it is, "" if it is a tensor of its own


def _facts(result: Any, arguments: Sequence[torch.Tensor], *, is_written: bool) -> list[_Facts]:
    named = [(f"argument {at}", tensor) for at, tensor in enumerate(arguments)]
    found: list[_Facts] = []
    seen = list(named)
    for at, leaf in enumerate(pytree.tree_leaves(result)):
        if isinstance(leaf, torch.Tensor):
            found.append(_facts_of(f"result {at}", leaf, seen, named))
            seen.append((f"result {at}", leaf))
    if is_written:
        found += [
            _facts_of(f"{name} after the call", tensor, named[:at], []) for at, (name, tensor) in enumerate(named)
        ]
    return found


def _facts_of(
    where: str,
    tensor: torch.Tensor,
    others: Sequence[tuple[str, torch.Tensor]],
    named: Sequence[tuple[str, torch.Tensor]],
) -> _Facts:
    is_strided = tensor.layout is torch.strided
    storage = _storage(tensor)
    return _Facts(
        where=where,
        shape=tuple(map(_number, tensor.shape)),
        stride=tuple(map(_number, tensor.stride())) if is_strided else (),
        storage_offset=_number(tensor.storage_offset()) if is_strided else 0,
        dtype=str(tensor.dtype).removeprefix("torch."),
        device=str(tensor.device),
        layout=str(tensor.layout).removeprefix("torch."),
        bits=" ".join(word for word, is_set in (("conj", tensor.is_conj()), ("neg", tensor.is_neg())) if is_set),
        aliases=tuple(name for name, other in others if storage is not None and _storage(other) == storage),
        is_argument=next((name for name, other in named if other is tensor), ""),
    )


def _storage(tensor: torch.Tensor) -> int | None:
    if tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return tensor.untyped_storage()._cdata


def _number(size: Any) -> Any:
    if isinstance(size, int):
        return size
    try:
        return int(size)
    except GuardOnDataDependentSymNode:
        return UNKNOWN


def _compare(real: Sequence[_Facts], fake: Sequence[_Facts]) -> Iterator[tuple[str, str, str, str]]:
    """(field, where, real, fake) of everything that differs."""
    if len(real) != len(fake):
        yield "results", "", f"{len(real)} tensors", f"{len(fake)} tensors"
        return
    for one, other in zip(real, fake, strict=True):
        if len(one.shape) != len(other.shape) or not all(map(_agree, one.shape, other.shape)):
            yield "shape", one.where, str(one.shape), str(other.shape)
        elif not all(map(_agree, one.stride, other.stride)):
            yield _stride_field(one, other), one.where, f"{one.stride} of {one.shape}", str(other.stride)
        for name in ("storage_offset", "dtype", "device", "layout", "bits", "aliases", "is_argument"):
            expected, seen = getattr(one, name), getattr(other, name)
            if expected != seen and seen != UNKNOWN:
                yield name, one.where, _text(expected), _text(seen)


def _agree(real: Any, fake: Any) -> bool:
    return real == fake or fake == UNKNOWN


def _stride_field(real: _Facts, fake: _Facts) -> str:
    """Strides that matter: not those of dimensions with one element, or of empty tensors."""
    matters = 0 not in real.shape and any(
        size > 1 and not _agree(mine, its) for size, mine, its in zip(real.shape, real.stride, fake.stride, strict=True)
    )
    return "stride" if matters else "stride_unused"


def _text(value: Any) -> str:
    return (", ".join(value) or "nothing") if isinstance(value, tuple) else str(value) or "no"


# ------------------------------------------------------------------------------------------------- calls and signatures


def _difference(
    shapes: str, func: OpOverload, described: str, what: str, where: str, real: str, fake: str
) -> MetadataDifference:
    return MetadataDifference(
        shapes=shapes, op=str(func), field=what, where=where, arguments=described, real=real, fake=fake
    )


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _signature(args: Any, kwargs: Any) -> tuple[Hashable, ...]:
    """Everything that a fake kernel's result may depend on."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    storages: dict[int | None, int] = {}
    parts: list[Hashable] = [repr(spec)]
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            parts.append(value_key(leaf))
            continue
        storage = storages.setdefault(_storage(leaf), len(storages))
        is_strided = leaf.layout is torch.strided and not leaf.is_nested
        strides = (tuple(leaf.shape), leaf.stride(), leaf.storage_offset()) if is_strided else ()
        parts.append(
            (type(leaf), leaf.dtype, leaf.layout, leaf.device, strides, storage, leaf.is_conj(), leaf.is_neg())
        )
    return tuple(parts)


def _describe_call(args: Any, kwargs: Any) -> str:
    parts = [_describe(arg) for arg in args] + [f"{key}={_describe(value)}" for key, value in kwargs.items()]
    return f"({', '.join(parts)})"


def _describe(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        text = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape) if not value.is_nested else '[nested]'}"
        if value.layout is not torch.strided or value.is_nested:
            return f"{text} {value.layout}"
        if value.stride() != _dense_strides(value.shape):
            text += f" strides {list(value.stride())}"
        return f"{text} offset {value.storage_offset()}" if value.storage_offset() else text
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe, value))}]"
    return repr(value)


def _dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
