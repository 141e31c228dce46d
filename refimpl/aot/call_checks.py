"""Checks of a call against one that was compiled for. Each is made once, when the program is compiled.

`leaf_check` generates Python for the leaves of one call: a line for each of a few tensors, or a loop in C for each fact of many.
`StateReader` reads the parameters and buffers of a module again, without walking through it.

Counterpart: torch/_dynamo/guards.py GuardBuilder.TENSOR_MATCH; torch/csrc/dynamo/guards.cpp
Differs: the checks are of leaves, not of objects that a program reads. There is no C++ guard manager.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Hashable, Sequence
from itertools import chain, compress
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from refimpl._torch import is_traceable_wrapper_subclass, storage_key
from refimpl.aot.functional_call import parameters_and_buffers

Check = Callable[[Sequence[Any]], bool]
_PLAIN_CLASSES = (torch.Tensor, torch.nn.Parameter)
_FEW = 4  # for up to this many tensors, a line for each is faster than loops in C


def leaf_key(leaf: Any, *, is_static: bool) -> Hashable:
    """What a compiled program depends on of one leaf. Sizes and strides of a dense leaf are left out unless it is static."""
    if isinstance(leaf, float | complex):
        return type(leaf), repr(leaf)  # 0.0 == -0.0, but programs can tell them apart
    if not isinstance(leaf, torch.Tensor):
        return type(leaf), leaf if isinstance(leaf, Hashable) else id(leaf)
    has_strides = leaf.layout is torch.strided and not leaf.is_nested and not is_traceable_wrapper_subclass(leaf)
    geometry = (leaf.stride(), leaf.storage_offset()) if has_strides and is_static else None
    shape = leaf.shape if is_static or not has_strides else leaf.dim()
    return (
        type(leaf), leaf.dtype, leaf.device, leaf.layout, shape, geometry, leaf.requires_grad, leaf.is_leaf,
        leaf.is_conj(), leaf.is_neg(), leaf._is_zerotensor(), leaf._base is None,
        _parts_key(leaf) if is_traceable_wrapper_subclass(leaf) else None,
    )  # fmt: skip


def _parts_key(wrapper: torch.Tensor) -> Hashable:
    """The key of a wrapper subclass: its context, and the names and keys of its inner tensors."""
    names, context = wrapper.__tensor_flatten__()  # type: ignore[attr-defined]
    parts = tuple([leaf_key(getattr(wrapper, name), is_static=True) for name in names])
    try:
        hash(context)
    except TypeError:
        context = repr(context)
    return tuple(names), context, parts


def shared_memory(leaves: Sequence[Any]) -> Hashable:
    """For each tensor, the first one that is the same object, has the same storage, or has the same base. None if none share."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len({id(t) for t in tensors}) == len(tensors):
        keys = [storage_key(t) for t in tensors if t.layout is torch.strided and not is_traceable_wrapper_subclass(t)]
        if len(set(keys)) == len(keys):
            return None
    first: dict[Hashable, int] = {}
    found: list[Hashable] = []
    for index, tensor in enumerate(tensors):
        is_plain = tensor.layout is torch.strided and not is_traceable_wrapper_subclass(tensor)
        base = None if tensor._base is None else first.setdefault(("base", id(tensor._base)), index)
        found.append(
            (
                first.setdefault(("object", id(tensor)), index),
                first.setdefault(("storage", storage_key(tensor)), index) if is_plain else None,
                base,
            )
        )
    return tuple(found)


# ------------------------------------------------------------------------------------------------------- generated checks


class _CheckBuilder:
    """Lines of a function of `leaves`, and the objects that they name."""

    def __init__(self) -> None:
        self.conditions: list[str] = []
        self.constants: dict[str, Any] = {}

    def constant(self, kept: Any) -> str:
        """An expression for an object: a literal, or a global name of the function."""
        if type(kept) in (int, bool):
            return repr(kept)
        name = f"c{len(self.constants)}"
        self.constants[name] = kept
        return name

    def require(self, condition: str) -> None:
        self.conditions.append(condition)

    def function(self) -> Check:
        body = "".join(f"    if not ({condition}): return False\n" for condition in self.conditions)
        source = f"def holds(leaves):\n{body}    return True\n"
        namespace: dict[str, Any] = dict(self.constants)
        exec(compile(source, "<check of a call>", "exec"), namespace)
        made = namespace["holds"]
        made.source = source
        return made


def leaf_check(leaves: Sequence[Any], num_static: int) -> Check:
    """A function that says whether the leaves of a call have the keys of these, and share memory as these do.

    num_static: sizes and strides of dense leaves after so many are not compared.
    """
    builder = _CheckBuilder()
    builder.require(f"len(leaves) == {len(leaves)}")
    plain = [i for i, leaf in enumerate(leaves) if i < num_static and _is_plain(leaf)]
    for index, leaf in enumerate(leaves):
        if index not in plain:
            builder.require(_other_condition(f"leaves[{index}]", leaf, builder, is_static=index < num_static))
        elif len(plain) <= _FEW:
            builder.require(_condition_of_one(f"(x := leaves[{index}])", leaf, builder))
    names = [f"leaves[{index}]" for index in plain]
    everything = "leaves" if len(plain) == len(leaves) else f"({', '.join(names)},)"
    if len(plain) > _FEW:
        _require_of_many(everything, [leaves[index] for index in plain], builder)
    _require_sharing(everything, leaves, len(plain), builder)
    return builder.function()


def _is_plain(leaf: Any) -> bool:
    """Whether it is a tensor that is compared fact by fact: of no subclass, and with strides."""
    return type(leaf) in _PLAIN_CLASSES and leaf.layout is torch.strided and not leaf.is_nested


def _other_condition(name: str, leaf: Any, builder: _CheckBuilder, *, is_static: bool) -> str:
    constant = builder.constant
    if isinstance(leaf, torch.Tensor):
        key = constant(leaf_key(leaf, is_static=is_static))
        return f"{constant(leaf_key)}({name}, is_static={is_static}) == {key}"
    same_class = f"type({name}) is {constant(type(leaf))}"
    if isinstance(leaf, float | complex):
        return f"{same_class} and repr({name}) == {constant(repr(leaf))}"
    if not isinstance(leaf, Hashable):
        return f"{same_class} and id({name}) == {id(leaf)}"
    if type(leaf) in (int, bool):
        return f"{same_class} and {name} == {leaf!r}"
    seen = constant(leaf)
    return f"{same_class} and ({name} is {seen} or {name} == {seen})"


def _facts(leaf: torch.Tensor) -> dict[str, Any]:
    """What is compared of a plain tensor: its attributes, the layout before the strides that need it.

    Left out is what others imply: a tensor that requires no gradient is a leaf, and only complex ones are conjugated.
    """
    facts = {"layout": leaf.layout, "dtype": leaf.dtype, "requires_grad": leaf.requires_grad, "shape": leaf.shape}
    facts |= {"is_cpu": True} if leaf.device.type == "cpu" else {"device": leaf.device}
    return facts | ({"is_leaf": leaf.is_leaf} if leaf.requires_grad else {})


def _calls(leaf: torch.Tensor) -> dict[str, Any]:
    """What is compared of a plain tensor by calls of methods."""
    found: dict[str, Any] = {"stride": leaf.stride()}
    if is_pinned_by_contiguity(leaf.shape, leaf.stride()):
        found = {"is_contiguous": True}
    found |= {"storage_offset": leaf.storage_offset(), "is_neg": leaf.is_neg(), "_is_zerotensor": leaf._is_zerotensor()}
    found["_is_view"] = leaf._is_view()
    return found | ({"is_conj": leaf.is_conj()} if leaf.dtype.is_complex else {})


def is_pinned_by_contiguity(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether a contiguous tensor of these sizes has these strides. A dimension of size 0 or 1 may have any stride."""
    contiguous = tuple(math.prod(sizes[dim + 1 :]) for dim in range(len(sizes)))
    return min(sizes, default=2) >= 2 and tuple(strides) == contiguous


def _condition_of_one(name: str, leaf: torch.Tensor, builder: _CheckBuilder) -> str:
    parts = [f"type({name}) is {builder.constant(type(leaf))}"]
    parts += [_equal(f"x.{fact}", value, builder) for fact, value in _facts(leaf).items()]
    parts += [_equal(f"x.{call}()", value, builder) for call, value in _calls(leaf).items()]
    return " and ".join(parts)


def _equal(read: str, seen: Any, builder: _CheckBuilder) -> str:
    """A condition on a fact. Booleans, dtypes and layouts are singletons."""
    if type(seen) is bool:
        return read if seen else f"not {read}"
    if isinstance(seen, tuple):
        return f"{read} == {tuple(seen)!r}"
    sign = "is" if isinstance(seen, torch.dtype | torch.layout) else "=="
    return f"{read} {sign} {builder.constant(seen)}"


def _require_of_many(names: str, tensors: Sequence[torch.Tensor], builder: _CheckBuilder) -> None:
    """Adds conditions for many tensors: one loop in C for each fact."""

    def require(read: Callable[[Any], Any], expected: list[Any]) -> None:
        if type(expected[0]) is bool and expected.count(expected[0]) == len(expected):
            every = "all" if expected[0] else "not any"
            builder.require(f"{every}(map({builder.constant(read)}, {names}))")
        else:
            builder.require(f"[*map({builder.constant(read)}, {names})] == {builder.constant(expected)}")

    require(type, [type(t) for t in tensors])
    for fact in dict.fromkeys(chain.from_iterable(map(_facts, tensors))):
        require(attrgetter(fact), [getattr(t, fact) for t in tensors])
    for call in dict.fromkeys(chain.from_iterable(map(_calls, tensors))):
        require(getattr(torch.Tensor, call), [getattr(t, call)() for t in tensors])


def _require_sharing(names: str, leaves: Sequence[Any], num_plain: int, builder: _CheckBuilder) -> None:
    """Adds the condition that the leaves share memory as these do. Tensors in storages of their own are no other's object."""
    if num_plain != sum(isinstance(leaf, torch.Tensor) for leaf in leaves):
        builder.require(f"{builder.constant(shared_memory)}(leaves) == {builder.constant(shared_memory(leaves))}")
        return
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    storages = f"map({builder.constant(_cdata)}, map({builder.constant(_storage)}, {names}))"
    if shared_memory(leaves) is None:
        builder.require(f"len({{*{storages}}}) == {num_plain}" if num_plain > 1 else "True")
        return
    bases = f"map(id, map({builder.constant(_base)}, {names}))"
    for keys, seen in (
        (f"map(id, {names})", map(id, tensors)),
        (storages, map(storage_key, tensors)),
        (bases, map(id, map(_base, tensors))),
    ):
        # For each tensor, the first one with the same key.
        first = [*map({}.setdefault, seen, range(num_plain))]
        builder.require(f"[*map({{}}.setdefault, {keys}, range({num_plain}))] == {builder.constant(first)}")


_base: Any = attrgetter("_base")
_storage: Any = torch.Tensor.untyped_storage
_cdata: Any = attrgetter("_cdata")


# ----------------------------------------------------------------------------------------------------------- modules' state

_parameters, _buffers, _children, _training = map(attrgetter, ("_parameters", "_buffers", "_modules", "training"))
_TABLES = _parameters, _buffers, _children


class ModuleState(NamedTuple):
    """names: of the parameters, then of the buffers; training: the flag of each module, in the order of `modules()`."""

    names: tuple[str, ...]
    values: list[torch.Tensor]
    training: tuple[bool, ...]

    @classmethod
    def of(cls, module: torch.nn.Module) -> ModuleState:
        """The state of a module. This walks through all of its modules."""
        named = parameters_and_buffers(module)
        training = tuple([each.training for each in module.modules()])
        return cls(names=tuple(named), values=list(named.values()), training=training)


class StateReader:
    """Reads the parameters and buffers of a module, as long as it consists of the same modules with the same names."""

    def __init__(self, module: torch.nn.Module) -> None:
        named = [(f"{path}." if path else "", found) for path, found in module.named_modules(remove_duplicate=False)]
        modules = [found for _, found in named]
        self._modules = list({id(found): found for found in modules}.values())
        # Most tables are empty: a linear layer has no buffers and no modules inside.
        self._filled = [(read, [each for each in modules if read(each)]) for read in _TABLES]
        self._empty = [(read, [each for each in modules if not read(each)]) for read in _TABLES]
        tables = self._tables()
        self._sizes, self._keys, values = [*map(len, tables)], [*chain(*tables)], self._read(tables)
        names = [prefix + name for read in _TABLES[:2] for prefix, each in named for name in read(each)]
        self._children = [*map(id, values[len(names) :])]  # `_modules` keeps them alive
        self._given = [value is not None for value in values[: len(names)]]  # a layer may have a bias that is None
        self._names = tuple(compress(names, self._given))

    @classmethod
    def of(cls, module: torch.nn.Module) -> StateReader | None:
        """None for a module that only its own methods can read: a class may name its parameters otherwise."""
        if not all(isinstance(read(each), dict) for each in module.modules() for read in _TABLES):
            return None  # TorchScript's modules have tables of their own
        reader, state = cls(module), ModuleState.of(module)
        found = reader.read()
        if found is None or (found.names, found.training) != (state.names, state.training):
            return None
        return reader if all(map(operator.is_, found.values, state.values)) else None

    def read(self) -> ModuleState | None:
        """The state now. None if modules, or names in them, are others."""
        tables = self._tables()
        if [*map(len, tables)] != self._sizes or [*chain(*tables)] != self._keys:
            return None
        for read, modules in self._empty:
            if any(map(read, modules)):
                return None
        found = self._read(tables)
        count = len(self._given)
        values = found[:count]
        given = [value is not None for value in values]
        if given != self._given or [*map(id, found[count:])] != self._children:
            return None
        if count != len(self._names):
            values = list(compress(values, given))
        return ModuleState(self._names, values, tuple(map(_training, self._modules)))

    def _tables(self) -> list[dict[str, Any]]:
        """The tables that have entries: those of parameters, then those of buffers, then those of the modules inside."""
        (_, first), (_, second), (_, third) = self._filled
        return [*map(_parameters, first), *map(_buffers, second), *map(_children, third)]

    @staticmethod
    def _read(tables: Sequence[dict[str, Any]]) -> list[Any]:
        return [*chain.from_iterable([table.values() for table in tables])]
