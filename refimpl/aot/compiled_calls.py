"""A function that is compiled for every kind of call once, and the calls that what was compiled serves.

Counterpart: torch/_functorch/aot_autograd.py aot_function; the reconstruction of outputs in torch/_dynamo (bytecode);
  upstream's AOT autograd refuses such results
Differs: every call is checked against what was compiled (`CallKey`), and compiled anew where it differs.
"""

from __future__ import annotations

import enum
import functools
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from refimpl._torch import is_inside_function_transform, pytree
from refimpl.aot import options as aot_options
from refimpl.aot.assigned_state import Assignment, call_and_read_assigned
from refimpl.aot.call_key import CallKey, base_guard, call_key, memory_guard, shape_guard
from refimpl.aot.compile_program import CompiledProgram, FunctionalProgram, compile_program
from refimpl.aot.flat_function import unflattener
from refimpl.aot.functional_call import parameters_and_buffers
from refimpl.aot.options import AOTConfig
from refimpl.aot.runtime.wrapper import FlatCall
from refimpl.trace.options import DecompositionTable


def compile_calls(
    fn: Callable[..., Any],
    *,
    compiler: Callable[..., Any],
    partition_fn: Callable[..., Any],
    dynamic: bool,
    decompositions: DecompositionTable,
    functionalization: str = "table",
    record_stack_traces: bool = False,
) -> Callable[..., Any]:
    """A function like `fn`, compiled at its first call and at calls that differ; see `refimpl.compile_aot` for the parameters.

    compiler: of forward, backward and inference graphs, (GraphModule, example inputs) -> callable.
    """
    target = _Target.of(fn)

    def compile_flat(flat: Callable[..., Any], leaves: Sequence[Any]) -> CompiledProgram:
        config = AOTConfig(
            fw_compiler=compiler,
            bw_compiler=compiler,
            inference_compiler=compiler,
            partition_fn=partition_fn,
            decompositions=decompositions,
            dynamic_shapes=dynamic,
            specializes_integers=True,
            num_params_buffers=target.count_state(),
            aot_id=next(aot_options.AOT_COUNTER),
            functionalization=functionalization,
            merges_duplicates=True,
            record_stack_traces=record_stack_traces,
        )
        return compile_program(flat, leaves, config)

    return _compiled_by_call(target, compile_flat, dynamic=dynamic)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """A function, or a module as a function of its state and arguments."""

    fn: Callable[..., Any]
    module: torch.nn.Module | None

    @classmethod
    def of(cls, fn: Callable[..., Any]) -> _Target:
        return cls(fn=fn, module=fn if isinstance(fn, torch.nn.Module) else None)

    def state(self) -> dict[str, torch.Tensor]:
        return {} if self.module is None else parameters_and_buffers(self.module)

    def count_state(self) -> int:
        return len(self.state())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """What the trace saw a program return, and its module assign."""

    spec: pytree.TreeSpec  # of (result, assigned values), or of the result alone
    plain: dict[int, Any]
    assigned: list[Assignment]

    def unflattener(self, module: torch.nn.Module | None) -> Callable[[list[Any]], Any]:
        """From leaves to the result; assigns on the way."""
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
        """Whether what was compiled does for a call."""
        return (
            self.key == key
            and all(guard(leaves) for guard in self.guards)
            and (module is None or not self.assigned or all(a.is_as_traced(module) for a in self.assigned))
        )


def _guards(
    program: FunctionalProgram, leaves: list[Any], num_static: int, *, dynamic: bool
) -> tuple[Callable[[Sequence[Any]], bool], ...]:
    """What has to hold besides the key."""
    found = [memory_guard(program, leaves)] if dynamic else [base_guard(program, leaves)]
    found += [shape_guard(program, leaves, num_static)] if dynamic else []
    return tuple([guard for guard in found if guard is not None])


def _compiled_by_call(
    target: _Target, compile_flat: Callable[[Callable[..., Any], Sequence[Any]], CompiledProgram], *, dynamic: bool
) -> Callable[..., Any]:
    """A function that compiles for every kind of call once, and runs what was compiled."""
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

            compiled = compile_flat(flat, leaves)
            guards = _guards(compiled.program, leaves, count, dynamic=dynamic)
            entry = _Entry(key, guards, compiled.call, seen[-1].unflattener(target.module), tuple(seen[-1].assigned))
            entries.append(entry)
            return entry

    @functools.wraps(target.fn if target.module is None else target.module.forward)
    def compiled(*args: Any, **kwargs: Any) -> Any:
        if is_inside_function_transform():  # whose tensors stand for others, and of which graphs know nothing
            return target.fn(*args, **kwargs)
        state = target.state()
        user_leaves, in_spec = pytree.tree_flatten((args, kwargs))
        leaves = [*state.values(), *user_leaves]
        entry = entry_for(state, leaves, in_spec)
        return entry.unflatten(entry.call(leaves))

    return compiled


# Results of a program that no graph gives: Python objects without tensors, and sizes, which pytree gives back as tuples.

# Values that hold no tensor and never change: what the trace saw is what every run gives.
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
    """Stands for a torch.Size in the structure of a result."""


pytree.register_pytree_node(_Size, lambda size: (list(size), None), lambda numbers, _: torch.Size(list(numbers)))


def split_plain(leaves: Sequence[Any]) -> tuple[list[Any], dict[int, Any]]:
    """The leaves for the graph, with None for plain objects; and these, by position."""
    plain = {i: leaf for i, leaf in enumerate(leaves) if isinstance(leaf, _PLAIN)}
    return [None if i in plain else leaf for i, leaf in enumerate(leaves)], plain


def with_sizes(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    """The structure that gives sizes back as sizes; the very same where there are none."""
    if spec.is_leaf():
        return spec
    children = spec.children()
    mended = [with_sizes(child) for child in children]
    if spec.type is torch.Size:
        return pytree.TreeSpec(_Size, spec.context, mended)
    if all(new is old for new, old in zip(mended, children, strict=True)):
        return spec
    return pytree.TreeSpec(spec.type, spec.context, mended)
