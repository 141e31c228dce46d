"""A function that compiles at its first call, and again at calls that differ: call keys, guards, the cache.

What is compiled is a function of the leaves of nested arguments, and the nested result is rebuilt from leaves.

Counterpart: torch/_functorch/aot_autograd.py aot_function; the guards of TorchDynamo;
torch/_functorch/_aot_autograd/utils.py create_tree_flattened_fn, PytreeThunk; the reconstruction of outputs in torch/_dynamo
Differs: results may be Python objects without tensors, such as `torch.finfo`. Upstream's AOT autograd refuses these. Also, a
call is described by one value, `CallKey`, which is compared with those of earlier calls. Other Python state that the function
reads, such as a global variable, has no guard.
"""

from __future__ import annotations

import enum
import functools
import threading
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from refimpl._torch import (
    is_any_autocast_enabled,
    is_traceable_wrapper_subclass,
    pytree,
    storage_key,
)
from refimpl.aot.analysis.inputs import base_of, storage_groups
from refimpl.aot.assigned_state import Assignment, call_and_read_assigned
from refimpl.aot.compile_program import CompiledProgram
from refimpl.aot.functional_call import parameters_and_buffers
from refimpl.aot.functional_program import FunctionalProgram, ProgramFacts
from refimpl.aot.runtime.eager_calls import INSIDE_TRANSFORM
from refimpl.aot.runtime.graph_call import FlatCall
from refimpl.symbolic.shape_env import ShapeEnv

_DEVICE_TYPES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class CallKey:
    """Describes a call. Calls with equal keys run the same graph if the graph's guards hold as well: `shape_guard` for symbolic
    sizes, `base_guard` for arguments that the graph recomputes as views of their base."""

    modes: Hashable
    structure: Hashable
    leaves: tuple[Hashable, ...]
    shared: Hashable


def call_key(
    leaves: Sequence[Any],
    in_spec: pytree.TreeSpec,
    state_names: tuple[str, ...],
    module: torch.nn.Module | None,
    *,
    num_static: int,
) -> CallKey:
    """The key of a call: grad modes, autocast and training flags, the dtype, device, shape and autograd state of every leaf, and
    which leaves share memory. Sizes and strides of dense leaves after the first `num_static` are left to guards."""
    training = None if module is None else tuple([m.training for m in module.modules()])
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_state(), training
    found = tuple([_leaf_key(leaf, is_static=index < num_static) for index, leaf in enumerate(leaves)])
    return CallKey(modes, (in_spec, state_names), found, _shared(leaves))


def shape_guard(
    program: FunctionalProgram, example: Sequence[Any], num_static: int
) -> Callable[[Sequence[Any]], bool] | None:
    """A check that the sizes and strides of a call satisfy the guards of the trace. None if it has no guards."""
    if program.is_specialized:
        found = [_leaf_key(leaf, is_static=True) for leaf in example]
        return lambda leaves: [_leaf_key(leaf, is_static=True) for leaf in leaves] == found
    shape_env = program.traced.fake_mode.shape_env
    if not isinstance(shape_env, ShapeEnv):
        return None
    placeholders = [n for n in program.traced.graph_module.graph.nodes if n.op == "placeholder"]
    plan = program.traced.plan
    values = [n.meta["val"] for n in placeholders]
    if plan.is_trivial and program.traced.layout is None:
        checked = values[num_static : len(plan.arguments)]
    else:  # placeholders are bases or inner tensors, not arguments: guards on them cannot be evaluated
        return lambda leaves: False
    code = shape_env.produce_guards_expression(checked, ignore_static=False)
    if code is None:
        return None

    def admits(leaves: Sequence[Any]) -> bool:
        return shape_env.evaluate_guards_expression(code, leaves[num_static:])

    return admits


def base_guard(program: ProgramFacts, example: Sequence[Any]) -> Callable[[Sequence[Any]], bool] | None:
    """A check that bases, which the graph takes in place of their views, are like the traced ones. None if it takes no base."""
    positions = [p for slot in program.plan.slots if slot.is_base for p in slot.members]
    if not positions:
        return None
    found = [_leaf_key(base_of(example[p]), is_static=True) for p in positions]
    return lambda leaves: [_leaf_key(base_of(leaves[p]), is_static=True) for p in positions] == found


def memory_guard(program: ProgramFacts, example: Sequence[Any]) -> Callable[[Sequence[Any]], bool] | None:
    """A check of the storages and offsets that the compiled code depends on. None if it depends on none.

    If the program writes to arguments, it depends on which of them share a storage, and on their offsets in it. `as_strided`, and
    ops that change an argument's strides (`transpose_`), depend on the argument's offset. The caller checks everything else.
    """
    analysis, plan = program.analysis, program.plan
    if program.is_specialized or (program.layout is not None and analysis.mutated_inputs):
        found, shared = [_leaf_key(leaf, is_static=True) for leaf in example], _shared(example)
        return lambda leaves: (
            _shared(leaves) == shared and [_leaf_key(leaf, is_static=True) for leaf in leaves] == found
        )
    guards = [guard for guard in (base_guard(program, example),) if guard is not None]
    held = set(program.held_offsets())
    if analysis.mutated_inputs:
        shared = _shared(example)
        guards.append(lambda leaves: _shared(leaves) == shared)
        if shared is not None:
            held |= {p for group in storage_groups(example) for p in group}
    offsets = {p: example[p].storage_offset() for p in sorted(held) if p < len(plan.arguments)}
    if offsets:
        guards.append(lambda leaves: all(leaves[p].storage_offset() == offset for p, offset in offsets.items()))
    return (lambda leaves: all(guard(leaves) for guard in guards)) if guards else None


def autocast_state() -> Hashable:
    """Dtypes of autocast and where it is on; None where it is off."""
    if not is_any_autocast_enabled():
        return None
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _DEVICE_TYPES)


def _leaf_key(leaf: Any, *, is_static: bool) -> Hashable:
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
    parts = tuple([_leaf_key(getattr(wrapper, name), is_static=True) for name in names])
    try:
        hash(context)
    except TypeError:
        context = repr(context)
    return tuple(names), context, parts


def _shared(leaves: Sequence[Any]) -> Hashable:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A function, or a module that is called as a function of its state and arguments."""

    fn: Callable[..., Any]
    module: torch.nn.Module | None

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> _Target:
        return cls(fn=fn, module=fn if isinstance(fn, torch.nn.Module) else None)

    def state(self) -> dict[str, torch.Tensor]:
        return {} if self.module is None else parameters_and_buffers(self.module)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The structure of the traced result, Python objects in it by position (`plain`), and what the module assigned."""

    spec: pytree.TreeSpec  # of (result, assigned values), or of the result alone
    plain: dict[int, Any]
    assigned: list[Assignment]

    def unflattener(self, module: torch.nn.Module | None) -> Callable[[list[Any]], Any]:
        """A function that rebuilds the result from its leaves, and repeats the module's assignments."""
        unflatten = unflattener(self.spec, self.plain)
        if module is None or not self.assigned:
            return unflatten

        def unflatten_and_assign(leaves: list[Any]) -> Any:
            result, values = unflatten(leaves)
            for assignment, value in zip(self.assigned, values, strict=True):
                assignment.apply(module, value)
            return result

        return unflatten_and_assign


@dataclass(frozen=True, slots=True)
class _Entry:
    key: CallKey
    guards: tuple[Callable[[Sequence[Any]], bool], ...]
    call: FlatCall
    unflatten: Callable[[list[Any]], Any]
    assigned: tuple[Assignment, ...] = ()

    def serves(self, key: CallKey, leaves: list[Any], module: torch.nn.Module | None) -> bool:
        """Whether the compiled code can be used for a call."""
        return (
            self.key == key
            and all(guard(leaves) for guard in self.guards)
            and (module is None or not self.assigned or all(a.is_as_traced(module) for a in self.assigned))
        )


def _guards(
    program: ProgramFacts, leaves: list[Any], num_static: int, *, dynamic: bool
) -> tuple[Callable[[Sequence[Any]], bool], ...]:
    """The guards of a compiled program: a call must satisfy them, and have its key."""
    found = [memory_guard(program, leaves)] if dynamic else [base_guard(program, leaves)]
    if dynamic:
        assert isinstance(program, FunctionalProgram), "programs of Python functions are traced, not loaded"
        found.append(shape_guard(program, leaves, num_static))
    return tuple([guard for guard in found if guard is not None])


def compiled_by_call(
    fn: Callable[..., Any],
    compile_flat: Callable[[Callable[..., Any], Sequence[Any], int], CompiledProgram],
    *,
    dynamic: bool,
) -> Callable[..., Any]:
    """A function like `fn`. A call compiles `fn` unless the code compiled for an earlier call can be used.

    compile_flat: compiles a function of leaves for example leaves. Its third argument is the number of parameters and buffers,
    which come first. dynamic: whether sizes are symbols.
    """
    target = _Target.of(fn)
    entries: list[_Entry] = []
    lock = threading.RLock()

    def entry_for(state: dict[str, torch.Tensor], leaves: list[Any], in_spec: pytree.TreeSpec) -> _Entry:
        count = len(state)
        num_static = count if dynamic else len(leaves)
        key = call_key(leaves, in_spec, tuple(state), target.module, num_static=num_static)
        for entry in entries:
            if entry.serves(key, leaves, target.module):
                return entry
        with lock:
            seen: list[_Result] = []

            def flat(*values: Any) -> list[Any]:
                args, kwargs = pytree.tree_unflatten(list(values[count:]), in_spec)
                assigned, assigned_values = [], []
                if target.module is None:
                    result = target.fn(*args, **kwargs)
                else:
                    result, assigned, assigned_values = call_and_read_assigned(
                        target.module, state, values[:count], args, kwargs
                    )
                results, spec = pytree.tree_flatten((result, assigned_values) if assigned else result)
                results, plain = split_plain(results)
                seen[:] = [_Result(spec=with_sizes(spec), plain=plain, assigned=assigned)]
                return results

            compiled = compile_flat(flat, leaves, count)
            guards = _guards(compiled.program, leaves, count, dynamic=dynamic)
            entry = _Entry(key, guards, compiled.call, seen[-1].unflattener(target.module), tuple(seen[-1].assigned))
            entries.append(entry)
            return entry

    @functools.wraps(target.fn if target.module is None else target.module.forward)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if INSIDE_TRANSFORM.holds(args):
            return target.fn(*args, **kwargs)
        state = target.state()
        user_leaves, in_spec = pytree.tree_flatten((args, kwargs))
        leaves = [*state.values(), *user_leaves]
        entry = entry_for(state, leaves, in_spec)
        return entry.unflatten(entry.call(leaves))

    return compiled


# Functions of containers as functions of their leaves, and results rebuilt from leaves.

NOTHING: Mapping[int, Any] = MappingProxyType({})


def flattened(
    fn: Callable[..., Any], in_spec: pytree.TreeSpec
) -> tuple[Callable[..., list[Any]], Callable[[], pytree.TreeSpec]]:
    """`fn` as a function of the leaves of (args, kwargs), and a function that returns the structure of its last result."""
    found: list[pytree.TreeSpec] = []

    def flat(*leaves: Any) -> list[Any]:
        args, kwargs = pytree.tree_unflatten(list(leaves), in_spec)
        results, spec = pytree.tree_flatten(fn(*args, **kwargs))
        found[:] = [spec]
        return results

    return flat, lambda: found[-1]


def leaves_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The leaves of a call. If all arguments are tensors, these are the leaves."""
    if not kwargs and all(map(_is_tensor, args)):
        return list(args)
    return pytree.arg_tree_leaves(*args, **kwargs)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def unflattener(spec: pytree.TreeSpec, plain: Mapping[int, Any] = NOTHING) -> Callable[[list[Any]], Any]:
    """A function that rebuilds a result from leaves, with `plain` objects at their positions. Flat results skip pytree."""
    if plain:
        return lambda leaves: pytree.tree_unflatten([plain.get(i, leaf) for i, leaf in enumerate(leaves)], spec)
    if spec.is_leaf():
        return _only
    if spec.type in (tuple, list) and all(child.is_leaf() for child in spec.children()):
        return spec.type
    return lambda leaves: pytree.tree_unflatten(leaves, spec)


def _only(leaves: list[Any]) -> Any:
    return leaves[0]


# Results that a graph does not return: Python objects without tensors, and torch.Size, which pytree turns into a tuple.

# Types of constants without tensors: every run returns the object that the trace returned.
_PLAIN = (
    type,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.NotImplementedType,
    enum.Enum,
    range,
    bytes,
    torch.finfo,
    torch.iinfo,
)


class _Size(list[Any]):
    """Replaces torch.Size in the structure of a result."""


pytree.register_pytree_node(_Size, lambda size: (list(size), None), lambda numbers, _: torch.Size(list(numbers)))


def split_plain(leaves: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    """The leaves that the graph returns, with None for plain objects, and the plain objects by position."""
    plain = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, _PLAIN)}
    return [None if i in plain else leaf for i, leaf in enumerate(leaves)], plain


def with_sizes(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """The structure, changed so that it rebuilds a torch.Size as one. The same object if it has none."""
    if spec.is_leaf():
        return spec
    children = spec.children()
    mended = [with_sizes(child) for child in children]
    if spec.type is torch.Size:
        return pytree.TreeSpec(_Size, spec.context, mended)
    if all(new is old for new, old in zip(mended, children, strict=True)):
        return spec
    return pytree.TreeSpec(spec.type, spec.context, mended)
