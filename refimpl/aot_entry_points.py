"""Upstream's entry points to AOT compilation: aot_function, aot_module and aot_module_simplified.

Counterpart: torch/_functorch/aot_autograd.py aot_function, aot_module, aot_module_simplified
Differs: the first call under another gradient mode or autocast state compiles again. torch's aot_function keeps the graph of its
first call, and loses gradients if that call ran under no_grad.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

import torch

from refimpl._torch import FakeTensor, pytree
from refimpl.aot import options as aot_options
from refimpl.aot.compiled_calls import autocast_state, flattened, leaves_of, memory_guard, unflattener
from refimpl.aot.errors import GradientNotExpected
from refimpl.aot.functional_call import functional_call_of, parameters_and_buffers
from refimpl.aot.functional_program import ProgramRequest
from refimpl.aot.options import AOTConfig, Compiler
from refimpl.aot.partition import default_partition
from refimpl.aot.runtime.graph_call import FlatCall
from refimpl.backend_registry import CapturedGraph
from refimpl.errors import BadParameter, UnsupportedByRefimpl
from refimpl.pipeline import compile_program
from refimpl.trace.options import DecompositionTable
from refimpl.trace.tracing import current_trace

# Decompositions for all graphs; those that a call gives win. Upstream's name; it is empty there too.
aot_autograd_decompositions: dict[Any, Callable[..., Any]] = {}


def aot_function(
    fn: Callable[..., Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] = default_partition,
    decompositions: DecompositionTable | None = None,
    num_params_buffers: int = 0,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    dynamic: bool = False,
    enable_log: bool = True,
    disable_functionalization: bool = False,
) -> Callable[..., Any]:
    """A function like `fn`, compiled at its first call and used for every later call, without guards on its arguments.

    It compiles again only for another gradient mode or autocast state, or if other arguments require gradients.

    A compiler takes a GraphModule of aten overloads without mutation, and its example inputs, and returns a callable.
    `fw_compiler` compiles the forward graph, which returns mutated inputs, results, sizes that views need, and saved values.
    `bw_compiler` compiles the backward graph, from saved values and tangents to gradients. `inference_compiler` compiles graphs
    without backward. Arguments and results may be nested in containers. With `dynamic`, sizes are symbols, except those of the
    first `num_params_buffers` leaves. With `disable_functionalization` the graphs keep the program's own writes, if results stay
    right; a write to an argument stays in the forward graph with `keep_inference_input_mutations` only.
    Raises what `fn` raises; calling backward of backward raises DoubleBackward.
    """
    config = _config(
        fw_compiler, bw_compiler, partition_fn, decompositions, num_params_buffers, keep_inference_input_mutations,
        inference_compiler, dynamic=dynamic, enable_log=enable_log, disable_functionalization=disable_functionalization,
    )  # fmt: skip
    cached: PerMode[tuple[FlatCall, Callable[[list[Any]], Any]]] = PerMode()

    @functools.wraps(fn)
    def returned_function(*args: Any, **kwargs: Any) -> Any:
        def compiled() -> tuple[FlatCall, Callable[[list[Any]], Any]]:
            leaves, in_spec = pytree.tree_flatten((args, kwargs))
            flat, out_spec = flattened(fn, in_spec)
            return compile_program(ProgramRequest(function=flat, args=leaves, config=config)).call, unflattener(
                out_spec()
            )

        leaves = leaves_of(args, kwargs)
        entries = cached.entries(compiled)
        if not entries:  # part of a trace, which sees what the function does
            return fn(*args, **kwargs)
        for call, unflatten in entries:
            try:
                return unflatten(call(leaves))
            except GradientNotExpected:
                continue
        call, unflatten = cached.more(entries, compiled)[0]
        return unflatten(call(leaves))

    return returned_function


def aot_module(mod: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """A module like `mod` whose forward is compiled by `aot_function` with the given arguments.

    Parameters and buffers are inputs of the graph, read at every call; gradients go to the original ones.
    """
    named = _real_state(mod)
    call = functional_call_of(mod, tuple(named))

    def functional(values: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return call(values, args, kwargs)

    return AOTModule(mod, aot_function(functional, *args, num_params_buffers=len(named), **kwargs))


class AOTModule(torch.nn.Module):
    """Passes the parameters and buffers of `original` to its compiled forward, at every call."""

    def __init__(self, original: torch.nn.Module, compiled: Callable[..., Any]) -> None:
        super().__init__()
        self.orig_module = original  # upstream's name
        self._compiled = compiled

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        state = parameters_and_buffers(self.orig_module)
        return self._compiled([*state.values()], args, kwargs)


def aot_module_simplified(
    mod: torch.nn.Module,
    args: Sequence[Any],
    fw_compiler: Compiler,
    bw_compiler: Compiler | None = None,
    partition_fn: Callable[..., Any] = default_partition,
    decompositions: DecompositionTable | None = None,
    keep_inference_input_mutations: bool = False,
    inference_compiler: Compiler | None = None,
    *,
    pre_grad_passes: Callable[[torch.fx.GraphModule, Sequence[Any]], torch.fx.GraphModule] | None = None,
    disable_functionalization: bool = False,
    **kwargs: Any,
) -> Callable[..., Any]:
    """Compile a module now, for the flat arguments `args`. The result takes flat arguments, and returns a flat tuple or list.
    For a module whose `takes_list` is true it takes one list, which it empties, so that arguments can be freed during the call.

    Parameters and buffers are read now. `mod` must return a tuple or list. Sizes are symbols if the fake tensors among `args`
    have a shape env, or if capture saw sizes vary: the `CapturedGraph` in `mod.meta["captured"]` then has fake inputs, which are
    traced in place of `args`. Conditions on later arguments are added to its `input_guards`.

    For `disable_functionalization` see `aot_function`. `pre_grad_passes` takes a graph module and `args`, and returns the graph
    module to compile. Other modules stay as they are.
    """
    for name, value in kwargs.items():
        if value:
            raise UnsupportedByRefimpl(
                seen=f"{name}={value!r} of aot_module_simplified",
                supported="the parameters that are named, and upstream's further ones where they are off",
                do="leave it out",
            )
    captured: CapturedGraph | None = mod.meta.get("captured") if isinstance(mod, torch.fx.GraphModule) else None
    given = args
    if captured is not None and captured.fake_inputs is not None and len(captured.fake_inputs) == len(args):
        args = captured.fake_inputs
    if pre_grad_passes is not None and isinstance(mod, torch.fx.GraphModule):
        mod = pre_grad_passes(mod, args)
    named = _real_state(mod)
    values = list(named.values())
    call = functional_call_of(mod, tuple(named))
    count = len(values)

    def functional(*flat: Any) -> Sequence[Any]:
        return _as_sequence(call(flat[:count], flat[count:], {}))

    dynamic = any(isinstance(a, FakeTensor) and a.fake_mode.shape_env is not None for a in args)
    config = _config(
        fw_compiler, bw_compiler, partition_fn, decompositions, count, keep_inference_input_mutations, inference_compiler,
        dynamic=dynamic, enable_log=True, disable_functionalization=disable_functionalization,
    )  # fmt: skip
    config = replace(config, is_followed=captured is not None and captured.is_followed)
    plain = None if any(isinstance(a, FakeTensor) for a in given) else [*values, *given]
    graph = mod if isinstance(mod, torch.fx.GraphModule) else None
    request = ProgramRequest(function=functional, args=[*values, *args], config=config, plain=plain, graph=graph)
    program = compile_program(request)
    guard = None if captured is None or plain is None else memory_guard(program.program, plain)
    if captured is not None and guard is not None:
        captured.input_guards.append(lambda inputs: guard([*values, *inputs]))

    return _with_state(mod, values, program.call)


def _with_state(
    mod: torch.nn.Module, values: Sequence[torch.Tensor], compiled: Callable[[list[Any]], Any]
) -> Callable[..., Any]:
    """The compiled function as one of the module's arguments alone; `values` are its parameters and buffers."""

    def forward(*runtime_args: Any) -> Any:
        return compiled([*values, *runtime_args])

    def boxed_forward(runtime_args: list[Any]) -> Any:
        full = [*values, *runtime_args]
        runtime_args.clear()
        return compiled(full)

    if getattr(mod, "takes_list", False):
        setattr(boxed_forward, "_boxed_call", True)
        return boxed_forward
    for name in ("zero_grad", "named_parameters", "named_buffers"):
        setattr(forward, name, getattr(mod, name))
    return forward


compiled_function = aot_function
compiled_module = aot_module


def _real_state(mod: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and buffers by name. Raises BadParameter for fake ones."""
    named = parameters_and_buffers(mod)
    if any(isinstance(value, FakeTensor) for value in named.values()):
        raise BadParameter(
            seen="Unexpected fake parameter or buffer of the module",
            expected="parameters and buffers that are real tensors",
        )
    return named


def _config(
    fw_compiler: Compiler,
    bw_compiler: Compiler | None,
    partition_fn: Callable[..., Any],
    decompositions: DecompositionTable | None,
    num_params_buffers: int,
    keep_inference_input_mutations: bool,
    inference_compiler: Compiler | None,
    *,
    dynamic: bool,
    enable_log: bool,
    disable_functionalization: bool,
) -> AOTConfig:
    return AOTConfig(
        fw_compiler=fw_compiler,
        bw_compiler=bw_compiler if bw_compiler is not None else fw_compiler,
        inference_compiler=inference_compiler if inference_compiler is not None else fw_compiler,
        partition_fn=partition_fn,
        decompositions={**aot_autograd_decompositions, **(decompositions or {})},
        num_params_buffers=num_params_buffers,
        keep_inference_input_mutations=keep_inference_input_mutations,
        dynamic_shapes=dynamic,
        aot_id=next(aot_options.AOT_COUNTER),
        enable_log=enable_log,
        disable_functionalization=disable_functionalization,
        keeps_tokens=True,
    )


def _as_sequence(result: Any) -> Sequence[Any]:
    if not isinstance(result, (tuple, list)):
        raise BadParameter(
            seen=f"Graph output must be a (). The module returns a {type(result).__name__}",
            expected="a flat tuple or list, as a captured graph returns",
        )
    return result


# Modes that a compiled function depends on besides its arguments: gradient modes and autocast. A call under modes that were not
# seen so far compiles once more. Sizes are no part of this (AO-25).

Entry = TypeVar("Entry")


class PerMode(Generic[Entry]):
    """What was compiled, by the modes it was compiled under. Several threads may ask at once: one of them compiles.

    Arguments that need a gradient where they did not before are noticed by what was compiled: then there is one entry more.
    """

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[Entry, ...]] = {}
        self._lock = threading.RLock()

    def entries(self, compile_entry: Callable[[], Entry]) -> tuple[Entry, ...]:
        """Those for a call at this place, the latest first; one by `compile_entry` if there is none yet.

        Empty where there is none and the call is part of a trace, which is no occasion to compile something else.
        """
        entries = self._entries.get(_modes(), ())
        if entries or current_trace() is not None:
            return entries
        return self.more(entries, compile_entry)

    def more(self, known: tuple[Entry, ...], compile_entry: Callable[[], Entry]) -> tuple[Entry, ...]:
        """The entries once `known` did not do: with a new one, unless another thread has made that meanwhile."""
        key = _modes()
        with self._lock:
            entries = self._entries.get(key, ())
            if len(entries) == len(known):
                entries = self._entries[key] = (compile_entry(), *entries)
            return entries


def _modes() -> Hashable:
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_state()
