"""make_fx: run a function on example inputs and give its aten graph.

Counterpart: torch/fx/experimental/proxy_tensor.py make_fx, _MakefxTracer, dispatch_trace, wrap_key
Differs: this version traces in real and fake mode; symbolic sizes, pre-dispatch tracing and module stacks are refused.

Limits that come with tracing (of upstream too): Python runs once, at trace time, so that its effects, its branches and the
values it reads from anything but tensors are those of that run; grad mode and autocast regions leave no trace but the ops.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from refimpl._torch import FakeTensor, FakeTensorMode, pytree
from refimpl.errors import BadParameter, UnsupportedByRefimpl
from refimpl.trace.graph_builder import GraphBuilder
from refimpl.trace.recording_mode import DecompositionTable, RecordingMode, paused_recordings

_MODES = ("real", "fake", "symbolic")


def make_fx(
    f: Callable[..., Any],
    decomposition_table: DecompositionTable | None = None,
    tracing_mode: str = "real",
    _allow_non_fake_inputs: bool = False,
    *,
    pre_dispatch: bool = False,
    record_module_stack: bool = False,
    _allow_fake_constant: bool = False,
    _error_on_data_dependent_ops: bool = True,
    record_stack_traces: bool = False,
    proxy_module_inputs: bool = False,
) -> Callable[..., torch.fx.GraphModule]:
    """Returns a function of example inputs, positional only, that traces `f` anew at each call.

    `decomposition_table` maps aten overloads to Python functions that are traced in their place, recursively.
    `tracing_mode`: "real" runs `f` on the inputs themselves, with all its effects; "fake" on tensors without data.
    The GraphModule is named after `f`, returns what `f` returns, and holds captured tensors as attributes (the same objects).

    Raises BadParameter for an unknown mode, UnsupportedByRefimpl for what this version does not do, and while tracing
    DataDependentRead if `f` reads a value that depends on its inputs (unless `_error_on_data_dependent_ops` is False, which
    burns the value in), UntraceableOutput if a graph cannot hold what `f` returns.
    """
    if tracing_mode not in _MODES:
        raise BadParameter(seen=f"tracing_mode={tracing_mode!r}", expected='one of "real", "fake", "symbolic"')
    refused = {
        "tracing_mode='symbolic'": tracing_mode == "symbolic",
        "pre_dispatch=True": pre_dispatch,
        "record_module_stack=True": record_module_stack,
        "_allow_fake_constant=True": _allow_fake_constant,
        "record_stack_traces=True": record_stack_traces,
        "proxy_module_inputs=True": proxy_module_inputs,
    }
    for parameter, is_asked_for in refused.items():
        if is_asked_for:
            raise UnsupportedByRefimpl(
                seen=f"make_fx({parameter})",
                supported="its default, and tracing_mode 'real' and 'fake'",
                do="leave it out",
            )

    def trace(*args: Any) -> torch.fx.GraphModule:
        builder = GraphBuilder()
        recording = RecordingMode(
            builder, decompositions=decomposition_table or {}, is_reading_allowed=not _error_on_data_dependent_ops
        )
        leaves, in_spec = pytree.tree_flatten(list(args))
        fake_mode = _fake_mode(leaves, allow_non_fake_inputs=_allow_non_fake_inputs) if tracing_mode == "fake" else None
        names = _argument_names(f, len(args))
        with paused_recordings():
            inputs = [_input(leaf, fake_mode) for leaf in leaves]
            for name, value in zip(_placeholder_names(names, in_spec), inputs, strict=True):
                node = builder.placeholder(name, value)
                if isinstance(value, torch.Tensor):
                    recording.tracker.track(
                        value, node
                    )  # one tensor passed twice: the later placeholder stands for both
        with _without_autocast_cache(), fake_mode or contextlib.nullcontext(), recording:
            result = f(*pytree.tree_unflatten(inputs, in_spec))
        with paused_recordings():
            builder.output(pytree.tree_map(recording.node_of, result), in_spec=in_spec, names=names)
        return builder.finish(_name_of(f))

    return trace


def _fake_mode(leaves: list[Any], *, allow_non_fake_inputs: bool) -> FakeTensorMode:
    """The mode of a fake input, since modes do not mix; else a new one."""
    for leaf in leaves:
        if isinstance(leaf, FakeTensor):
            return leaf.fake_mode
    return FakeTensorMode(allow_fallback_kernels=True, allow_non_fake_inputs=allow_non_fake_inputs)


def _input(leaf: Any, fake_mode: FakeTensorMode | None) -> Any:
    if fake_mode is None or not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
        return leaf
    return fake_mode.from_tensor(leaf, static_shapes=True)


def _argument_names(f: Callable[..., Any], count: int) -> list[str]:
    """The function's own parameter names; `arg0`, `arg1`, ... where its signature does not give one for each argument."""
    try:
        parameters = list(inspect.signature(f.forward if isinstance(f, torch.nn.Module) else f).parameters.values())
    except (TypeError, ValueError):  # builtins have no signature
        parameters = []
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return named[:count] if len(named) >= count else [f"arg{i}" for i in range(count)]


def _placeholder_names(names: list[str], in_spec: pytree.TreeSpec) -> Iterator[str]:
    """`x_1` for a tensor x; `xs_1`, `xs_2` for the leaves of a list xs."""
    for name, spec in zip(names, in_spec.children(), strict=True):
        for leaf in range(spec.num_leaves):
            yield f"{name}_{leaf + 1}"


def _name_of(f: Callable[..., Any]) -> str:
    return type(f).__name__ if isinstance(f, torch.nn.Module) else getattr(f, "__name__", type(f).__name__)


@contextlib.contextmanager
def _without_autocast_cache() -> Iterator[None]:
    """A cast taken from the cache would be a tensor that no traced op made."""
    was_enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(was_enabled)
