"""A function that compiles at its first call, and again at calls that differ: call keys, guards, the cache.

What is compiled is a function of the leaves of nested arguments, and the nested result is rebuilt from leaves.

Counterpart: torch/_functorch/aot_autograd.py aot_function; the guards of TorchDynamo;
torch/_functorch/_aot_autograd/utils.py create_tree_flattened_fn, PytreeThunk; the reconstruction of outputs in torch/_dynamo
Differs: results may be Python objects without tensors, such as `torch.finfo`. Upstream's AOT autograd refuses these. Also, a
call is compared with earlier ones by a `CallKey` and by checks of its leaves (`call_checks`). Other Python state that the
function reads, such as a global variable, has no guard.
"""

from __future__ import annotations

import enum
import functools
import threading
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as _module

from refimpl._torch import (
    AUTOCAST_DEVICES,
    DeviceContext,
    function_mode_at,
    function_modes_on,
    is_any_autocast_enabled,
    pytree,
)
from refimpl.aot.analysis.inputs import base_of, storage_groups
from refimpl.aot.assigned_state import Assignment, call_and_read_assigned
from refimpl.aot.call_checks import ModuleState, StateReader, leaf_check, leaf_key, shared_memory
from refimpl.aot.compile_program import CompiledProgram
from refimpl.aot.functional_program import FunctionalProgram, ProgramFacts
from refimpl.aot.runtime.eager_calls import INSIDE_TRANSFORM, is_untraceable
from refimpl.aot.runtime.graph_call import FlatCall
from refimpl.symbolic.shape_env import ShapeEnv


class CallKey(NamedTuple):
    """Describes a call without its leaves. Calls with equal keys run the same graph if leaves pass its checks: `leaf_check`,
    `shape_guard` for symbolic sizes, and `base_guard` for arguments that the graph recomputes as views of their base."""

    modes: Hashable
    structure: Hashable
    state_names: tuple[str, ...]
    training: Hashable


def _modes() -> Hashable:
    overriding = _function_modes() if function_modes_on() else None
    grad_modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    return *grad_modes, autocast_state(), torch.get_default_dtype(), overriding, _hooks_of_all_modules()


def _hooks_of_all_modules() -> Hashable:
    """The hooks that are registered for all modules, by the ids that their handles have. None without any."""
    first, second, third, fourth = _HOOKS_OF_ALL
    return tuple(map(tuple, _HOOKS_OF_ALL)) if first or second or third or fourth else None


# Tables that live as long as torch does.
_HOOKS_OF_ALL: tuple[dict[int, Any], ...] = tuple(
    [getattr(_module, f"_global_{kind}_hooks") for kind in ("forward_pre", "forward", "backward_pre", "backward")]
)


def _function_modes() -> Hashable:
    """The modes whose `__torch_function__` the trace asks. `with torch.device(...)` makes another mode each time."""
    modes = [function_mode_at(index) for index in range(function_modes_on())]
    return tuple([(DeviceContext, mode.device) if type(mode) is DeviceContext else mode for mode in modes])


def shape_guard(
    program: FunctionalProgram, example: Sequence[Any], num_static: int
) -> Callable[[Sequence[Any]], bool] | None:
    """A check that the sizes and strides of a call satisfy the guards of the trace. None if it has no guards."""
    if program.is_specialized:
        found = [leaf_key(leaf, is_static=True) for leaf in example]
        return lambda leaves: [leaf_key(leaf, is_static=True) for leaf in leaves] == found
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
    found = [leaf_key(base_of(example[p]), is_static=True) for p in positions]
    return lambda leaves: [leaf_key(base_of(leaves[p]), is_static=True) for p in positions] == found


def memory_guard(program: ProgramFacts, example: Sequence[Any]) -> Callable[[Sequence[Any]], bool] | None:
    """A check of the storages and offsets that the compiled code depends on. None if it depends on none.

    If the program writes to arguments, it depends on which of them share a storage, and on their offsets in it. `as_strided`, and
    ops that change an argument's strides (`transpose_`), depend on the argument's offset. The caller checks everything else.
    """
    analysis, plan = program.analysis, program.plan
    if program.is_specialized or (program.layout is not None and analysis.mutated_inputs):
        found, shared = [leaf_key(leaf, is_static=True) for leaf in example], shared_memory(example)
        return lambda leaves: (
            shared_memory(leaves) == shared and [leaf_key(leaf, is_static=True) for leaf in leaves] == found
        )
    guards = [guard for guard in (base_guard(program, example),) if guard is not None]
    held = set(program.held_offsets())
    if analysis.mutated_inputs:
        shared = shared_memory(example)
        guards.append(lambda leaves: shared_memory(leaves) == shared)
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
    return tuple((d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in AUTOCAST_DEVICES)


class _TargetState:
    """A function, or a module that is called as a function of its state and arguments. It keeps how to read that state."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn = fn
        self.module = fn if isinstance(fn, torch.nn.Module) else None
        self._reader: StateReader | None = None

    def state(self) -> ModuleState:
        """The parameters and buffers now, and the training flags."""
        if self.module is None:
            return _NO_STATE
        found = None if self._reader is None else self._reader.read()
        if found is None:
            self._reader = StateReader.of(self.module)
            return ModuleState.of(self.module)
        return found

    def function_of_leaves(
        self, state: ModuleState, in_spec: pytree.TreeSpec
    ) -> tuple[Callable[..., list[Any]], list[_Result]]:
        """A function of a call's leaves (its state, then its arguments), and a list that holds the result of its last run."""
        seen: list[_Result] = []
        count = len(state.values)

        def flat(*values: Any) -> list[Any]:
            args, kwargs = pytree.tree_unflatten(list(values[count:]), in_spec)
            assigned, assigned_values = [], []
            if self.module is None:
                result = self.fn(*args, **kwargs)
            else:
                named = dict(zip(state.names, state.values, strict=True))
                result, assigned, assigned_values = call_and_read_assigned(
                    self.module, named, values[:count], args, kwargs
                )
            results, spec = pytree.tree_flatten((result, assigned_values) if assigned else result)
            results, plain = split_plain(results)
            seen[:] = [_Result(spec=with_sizes(spec), plain=plain, assigned=assigned)]
            return results

        return flat, seen


_NO_STATE = ModuleState(names=(), values=[], training=())


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
    check: Callable[[Sequence[Any]], bool]
    guards: tuple[Callable[[Sequence[Any]], bool], ...]
    call: FlatCall
    unflatten: Callable[[list[Any]], Any]
    assigned: tuple[Assignment, ...] = ()

    def serves(self, key: CallKey, leaves: list[Any], module: torch.nn.Module | None) -> bool:
        """Whether the compiled code can be used for a call."""
        try:
            if self.key != key or not self.check(leaves):
                return False
        except RuntimeError:  # a nested tensor has no sizes to compare
            return False
        for guard in self.guards:
            if not guard(leaves):
                return False
        return not self.assigned or module is None or all(a.is_as_traced(module) for a in self.assigned)


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
    target = _TargetState(fn)
    module = target.module
    entries: list[_Entry] = []
    lock = threading.RLock()

    def made(key: CallKey, state: ModuleState, leaves: list[Any], in_spec: pytree.TreeSpec) -> _Entry:
        count = len(state.values)
        num_static = count if dynamic else len(leaves)
        check = leaf_check(leaves, num_static)  # of the leaves before the trace, which may write to them
        with lock:
            flat, seen = target.function_of_leaves(state, in_spec)
            compiled = compile_flat(flat, leaves, count)
            guards = _guards(compiled.program, leaves, count, dynamic=dynamic)
            result = seen[-1]
            unflatten = result.unflattener(module)
            entry = _Entry(key, check, guards, compiled.call, unflatten, tuple(result.assigned))
            entries.append(entry)
            return entry

    @functools.wraps(fn if module is None else module.forward)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if INSIDE_TRANSFORM.holds(args):
            return fn(*args, **kwargs)
        state = target.state()
        if not kwargs and _LEAF_CLASSES.issuperset(map(type, args)):
            structure, user_leaves = len(args), args
        else:
            user_leaves, structure = pytree.tree_flatten((args, kwargs))
        leaves = [*state.values, *user_leaves]
        key = CallKey(_modes(), structure, state.names, state.training)
        for entry in entries:
            if entry.serves(key, leaves, module):
                return entry.unflatten(entry.call(leaves))
        if any(map(is_untraceable, leaves)):
            return fn(*args, **kwargs)
        entry = made(key, state, leaves, pytree.tree_flatten((args, kwargs))[1])
        return entry.unflatten(entry.call(leaves))

    return compiled


# Arguments of these classes are leaves. If there are no others, their number is the structure of a call.
_LEAF_CLASSES = frozenset({torch.Tensor, torch.nn.Parameter, int, float, bool, complex, str})


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
