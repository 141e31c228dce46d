"""Compilers with a missing guard: right on the first call, wrong on a later one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from fuzz.mutants.mutant import Mutant, planting

_VALUES = (bool, int, float, str, torch.Tensor)
Key = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]

GUARDS: list[Mutant] = []
_mutant = planting(GUARDS, stage="guards", statuses=("fail_guard",), is_compiler=True, calls=2)


def _calls(body: str, first: str, second: str) -> str:
    return f"{body}\n\ndef inputs(call):\n    return (({first},) if call == 0 else ({second},)), {{}}\n"


_MODULE = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 2.0
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x):
        return {expression}

def program():
    return Model()

def inputs(call):
    return (torch.ones(32),), {{}}
"""


_TWICE = """
def inputs(call):
    x = torch.ones(3)
    return ((x, torch.ones(3)) if call == 0 else (x, x)), {}
"""


def _replaying(target: Any, key: Key, stale: Callable[[Any, Any, Any, Any], Any]) -> Callable[..., Any]:
    """The first call with a key runs as it is; `stale(target, first, args, kwargs)` computes later ones with that key.

    `first` is (args, kwargs) of the first call with the key.
    """
    seen: dict[Any, tuple[Any, Any]] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        found = key(target, args, kwargs)
        if found not in seen:
            seen[found] = (args, kwargs)
            return target(*args, **kwargs)
        return stale(target, seen[found], args, kwargs)

    return call


def _shapes(target: Any, args: Any, kwargs: Any) -> Any:
    leaves, _ = tree_flatten((args, kwargs))
    return tuple(_shape_of(leaf) for leaf in leaves)


def _shape_of(leaf: Any) -> Any:
    is_tensor = isinstance(leaf, torch.Tensor)
    return (tuple(leaf.shape), str(leaf.dtype)) if is_tensor else type(leaf).__name__


@_mutant(
    "Python numbers are those of the first call with these shapes",
    "some",
    _calls("def program(x, n):\n    return x * n", "torch.ones(3), 2", "torch.ones(3), 3"),
    _calls("def program(x, n):\n    return x * n", "torch.ones(3), 2", "torch.ones(4), 3"),
)
def python_scalars_are_kept(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """Python numbers among the arguments are those of the first call with these shapes."""

    def stale(target: Any, first: Any, args: Any, kwargs: Any) -> Any:
        old, _ = tree_flatten(first)
        new, spec = tree_flatten((args, kwargs))
        mixed = [b if isinstance(b, torch.Tensor) else a for a, b in zip(old, new, strict=True)]
        args, kwargs = tree_unflatten(mixed, spec)
        return target(*args, **kwargs)

    return _replaying(fn, _shapes, stale)


@_mutant(
    "results of later calls have the dtypes of the first",
    "some",
    _calls("def program(x):\n    return x * 2", "torch.ones(3)", "torch.ones(3, dtype=torch.float64)"),
    _calls("def program(x):\n    return x * 2", "torch.ones(3)", "torch.ones(5)"),
)
def dtype_is_kept(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """Results of later calls have the dtypes of the first one."""
    first: list[Any] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        leaves, _ = tree_flatten(result)
        dtypes = [leaf.dtype if isinstance(leaf, torch.Tensor) else None for leaf in leaves]
        if not first:
            first.append(dtypes)
        if len(first[0]) != len(dtypes):
            return result
        wanted = iter(first[0])

        def cast(leaf: Any) -> Any:
            dtype = next(wanted)
            return leaf.to(dtype) if isinstance(leaf, torch.Tensor) and dtype is not None else leaf

        return tree_map(cast, result)

    return call


def _state_of(module: torch.nn.Module) -> dict[tuple[str, str], Any]:
    plain = {}
    for name, part in module.named_modules():
        for key, value in vars(part).items():
            if isinstance(value, (bool, int, float, str)) and key != "training" and not key.startswith("_"):
                plain[(name, key)] = value
    return plain


@_mutant(
    "attributes of a module are those of the first call",
    "some",
    _MODULE.format(expression="x * self.scale"),
    _MODULE.format(expression="x * 2"),
    before=("", "target.scale = 5.0"),
    is_module=True,
)
def attributes_are_kept(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """Numbers, flags and texts among a module's attributes are those of the first call."""
    if not isinstance(fn, torch.nn.Module):
        return fn
    kept: dict[tuple[str, str], Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        if not kept:
            kept.update(_state_of(fn))
            return fn(*args, **kwargs)
        parts = dict(fn.named_modules())
        now = {key: getattr(parts[key[0]], key[1], None) for key in kept if key[0] in parts}
        try:
            for name, key in now:
                setattr(parts[name], key, kept[name, key])
            return fn(*args, **kwargs)
        finally:
            for (name, key), value in now.items():
                setattr(parts[name], key, value)

    return call


@_mutant(
    "train() and eval() are not seen after the first call",
    "some",
    _MODULE.format(expression="self.dropout(x) if self.training else x * 3"),
    _MODULE.format(expression="x * 3"),
    before=("target.eval()", "target.train()"),
    is_module=True,
    statuses=("fail_guard", "fail_rng", "fail_accuracy"),
)
def training_flag_is_kept(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """train() and eval() after the first call have no effect."""
    if not isinstance(fn, torch.nn.Module):
        return fn
    first: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        if not first:
            first.append(fn.training)
        now = fn.training
        try:
            return fn.train(first[0])(*args, **kwargs)
        finally:
            fn.train(now)

    return call


@_mutant(
    "globals are those of the first call",
    "some",
    _calls("FACTOR = 2\n\ndef program(x):\n    return x * FACTOR", "torch.ones(3)", "torch.ones(3)"),
    _calls("FACTOR = 2\n\ndef program(x):\n    return x * 2", "torch.ones(3)", "torch.ones(3)"),
    before=("", "FACTOR = 3"),
)
def globals_are_kept(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """Numbers, texts and tensors among the globals of the function are those of the first call."""
    target = fn.forward if isinstance(fn, torch.nn.Module) else fn
    namespace = getattr(target, "__globals__", None)
    if namespace is None:
        return fn
    kept: dict[str, Any] = {}

    def call(*args: Any, **kwargs: Any) -> Any:
        names = [name for name in target.__code__.co_names if isinstance(namespace.get(name), _VALUES)]
        if not kept:
            kept.update({name: namespace[name] for name in names})
            return fn(*args, **kwargs)
        now = {name: namespace[name] for name in kept if name in namespace}
        try:
            namespace.update({name: kept[name] for name in now})
            return fn(*args, **kwargs)
        finally:
            namespace.update(now)

    return call


@_mutant(
    "compiled without gradients, later calls give none",
    "rare",
    _calls("def program(x):\n    return x * 2", "torch.ones(3)", "torch.ones(3, requires_grad=True)"),
    _calls("def program(x):\n    return x * 2", "torch.ones(3, requires_grad=True)", "torch.ones(3)"),
    statuses=("fail_guard", "fail_metadata", "fail_grad", "fail_to_run"),
)
def gradient_mode_is_kept(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """A function compiled without gradients never has any later, and vice versa."""
    first: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        wants = torch.is_grad_enabled() and any(
            isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in tree_flatten((args, kwargs))[0]
        )
        if not first:
            first.append(wants)
        if first[0] or not wants:
            return fn(*args, **kwargs)
        with torch.no_grad():
            return fn(*args, **kwargs)

    return call


@_mutant(
    "compiled for a last size that 4 divides, what is over a multiple of 4 is 0 later",
    "rare",
    _calls("def program(x):\n    return x + 1", "torch.ones(8)", "torch.ones(7)"),
    _calls("def program(x):\n    return x + 1", "torch.ones(7)", "torch.ones(9)"),
)
def sizes_keep_their_remainder(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """If 4 divides the last size of the first call, later calls drop the elements beyond a multiple of 4."""
    first: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        leaves = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor) and leaf.dim()]
        if not first:
            first.append(bool(leaves) and leaves[0].shape[-1] % 4 == 0 and leaves[0].shape[-1] > 0)
            return result
        return tree_map(_without_tail, result) if first[0] else result

    return call


def _without_tail(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor) or not leaf.dim() or leaf.shape[-1] % 4 == 0 or leaf.requires_grad:
        return leaf
    result = leaf.clone()
    result[..., leaf.shape[-1] // 4 * 4 :] = 0
    return result


@_mutant(
    "arguments of a known shape are read with the strides of the first call",
    "rare",
    _calls("def program(x):\n    return x + 1", "torch.arange(4.0).view(2, 2)", "torch.arange(4.0).view(2, 2).t()"),
    _calls("def program(x):\n    return x + 1", "torch.arange(4.0).view(2, 2)", "torch.arange(6.0).view(3, 2).t()"),
    statuses=("fail_guard", "fail_alias", "fail_stride"),
)
def strides_are_kept(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """Arguments of one shape are read with the strides of the first call."""

    def stale(target: Any, first: Any, args: Any, kwargs: Any) -> Any:
        old, _ = tree_flatten(first)
        strides = iter(old)

        def as_before(leaf: Any) -> Any:
            before = next(strides)
            if not isinstance(leaf, torch.Tensor) or leaf.stride() == before.stride() or leaf.requires_grad:
                return leaf
            extent = 1 + sum((n - 1) * s for n, s in zip(before.shape, before.stride(), strict=True))
            fits = leaf.storage_offset() + extent <= leaf.untyped_storage().nbytes() // leaf.element_size()
            return leaf.as_strided(before.shape, before.stride()) if fits and leaf.numel() else leaf

        return target(*[as_before(arg) for arg in args], **kwargs)

    def key(target: Any, args: Any, kwargs: Any) -> Any:
        has_only_tensors = all(isinstance(arg, torch.Tensor) for arg in args)
        return _shapes(target, args, kwargs) if has_only_tensors and not kwargs else object()

    return _replaying(fn, key, stale)


@_mutant(
    "compiled for two tensors, called with one twice: a write to one is not seen through the other",
    "rare",
    "def program(x, y):\n    x.add_(1)\n    return y * 2\n" + _TWICE,
    "def program(x, y):\n    return x + y\n" + _TWICE,
)
def aliasing_is_not_guarded(fn: Any, *, dynamic: bool | None = None) -> Callable[..., Any]:
    """Compiled for arguments that are distinct, called with one tensor twice: the second is a copy."""
    first: list[bool] = []

    def call(*args: Any, **kwargs: Any) -> Any:
        tensors = [id(arg) for arg in args if isinstance(arg, torch.Tensor)]
        is_distinct = len(set(tensors)) == len(tensors)
        if not first:
            first.append(is_distinct)
        if is_distinct or not first[0]:
            return fn(*args, **kwargs)
        seen: set[int] = set()
        apart = []
        for arg in args:
            is_again = isinstance(arg, torch.Tensor) and id(arg) in seen and not arg.requires_grad
            seen.add(id(arg))
            apart.append(arg.clone() if is_again else arg)
        return fn(*apart, **kwargs)

    return call
