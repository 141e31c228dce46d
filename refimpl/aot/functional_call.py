"""Call modules as functions of their parameters and buffers, and functions of containers as functions of leaves.

A graph module of another front end may have checkpointed regions. Such a region runs once, and its nodes are marked for the
partitioner.

Counterpart: torch/_functorch/_aot_autograd/graph_capture_wrappers.py create_functional_call; utils.py create_tree_flattened_fn,
root_module_when_exporting_non_strict, PytreeThunk; torch/_higher_order_ops/wrap.py tag_activation_checkpoint_impl
Differs: graph modules are not searched for symbols without a hint: the trace creates these itself. Upstream runs a checkpointed
region under `checkpoint`, and its modes make the second run do nothing. Here there is no second run, so random ops draw once. A
policy does not see an op's result.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.func import functional_call
from torch.fx import traceback as fx_traceback
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext, checkpoint, noop_context_fn

from refimpl._torch import SYMBOLIC_TYPES, DispatchMode, HigherOrderOperator, is_opaque_object, pytree
from refimpl.aot.compile_regions import call_region
from refimpl.aot.export_errors import OutputNotSequence, UnknownOutput
from refimpl.trace.graph_builder import LITERALS
from refimpl.trace.symbolic_indexing import INDEXING, has_unbacked_integer

_REGIONS = itertools.count()  # numbers of checkpointed regions, which partitioners compare
_WRITE_UNSEEN = ("batch_norm", "instance_norm")  # they update running statistics: recomputed, they update twice
_OF_CHECKPOINT = frozenset(inspect.signature(checkpoint).parameters) | {"preserve_rng_state"}


class RegionInterpreter(torch.fx.Interpreter):
    """Runs a graph node by node under a trace. Errors of ops are raised as they are, without the Interpreter's additions."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.extra_traceback = False

    def call_function(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Overrides Interpreter: the body of a checkpointed region is traced inline, a compile region as one of its own.

        The C++ of indexing would ask for the value of an index that depends on data.
        """
        if target in INDEXING and isinstance(args[0], torch.Tensor) and has_unbacked_integer(args[1]):
            return INDEXING[target](*args)
        if not isinstance(target, HigherOrderOperator):
            return super().call_function(target, args, kwargs)
        if target.name() == "invoke_subgraph" and isinstance(args[0], torch.fx.GraphModule):
            results = call_region(RegionInterpreter(args[0]).run, args[1], args[2:])
            return super().call_function(target, args, kwargs) if results is NotImplemented else results
        if target.name() != "tag_activation_checkpoint":
            return super().call_function(target, args, kwargs)
        body, *operands = args
        policy = _policy_of(body)
        if policy is None:
            return super().call_function(target, args, kwargs)
        operands += [value for name, value in kwargs.items() if name not in _OF_CHECKPOINT]
        with _MarkingState(policy):
            return RegionInterpreter(body).run(*operands)


def _always(*_: Any, **__: Any) -> CheckpointPolicy:
    return CheckpointPolicy.PREFER_RECOMPUTE


def _policy_of(body: torch.fx.GraphModule) -> Callable[..., Any] | None:
    """The function that decides for each op of a region whether it is recomputed. None if `checkpoint` itself has to run the
    region, twice: it has contexts without a policy, or ops that update running statistics."""
    calls = [node for node in body.graph.nodes if node.op.startswith("call")]
    if any(word in str(node.target) for node in calls for word in _WRITE_UNSEEN):
        return None
    contexts = body.meta.get("_checkpoint_context_fn", noop_context_fn)
    return _always if contexts is noop_context_fn else getattr(contexts()[0], "policy_fn", None)


class _MarkingState(DispatchMode):
    """Marks each recorded node with the policy's answer and the number of the region; a higher-order operator is saved."""

    supports_higher_order_operators = True

    def __init__(self, policy: Callable[..., Any]) -> None:
        super().__init__()
        self._policy = policy
        self._region = next(_REGIONS)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if isinstance(func, HigherOrderOperator):
            return func(*args, **(kwargs or {}))
        answer = self._policy(_context(), func, *args, **(kwargs or {}))
        if isinstance(answer, bool):
            answer = CheckpointPolicy.MUST_SAVE if answer else CheckpointPolicy.PREFER_RECOMPUTE
        fx_traceback.get_current_meta().update(recompute=answer, ac_graph_id=self._region)
        return func(*args, **(kwargs or {}))


def _context() -> SelectiveCheckpointContext:
    known = inspect.signature(SelectiveCheckpointContext).parameters
    given: dict[str, Any] = {"is_recompute": False, "op_output": None}
    return SelectiveCheckpointContext(**{name: value for name, value in given.items() if name in known})


_LEAVES = (torch.Tensor, *SYMBOLIC_TYPES, torch.Generator, *LITERALS)


def parameters_and_buffers(mod: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters, then buffers, by name. A tensor with two names is listed twice."""
    return {
        **dict(mod.named_parameters(remove_duplicate=False)),
        **dict(mod.named_buffers(remove_duplicate=False)),
    }


def functional_call_of(mod: torch.nn.Module, names: Sequence[str]) -> Callable[..., Any]:
    """A function of (values in the order of `names`, args, kwargs) that runs `mod` with these parameters and buffers.

    If an attribute has several names, because a submodule is registered twice, the first name's value is used. A trace of the
    function keeps the `meta` of a graph module's nodes, such as stack traces.
    """
    places = first_names(mod, names)
    runner = _Runner(mod)

    def call(values: Sequence[torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(names, values, strict=True))
        given = {f"module.{name}": given[name] for name in places}
        return functional_call(runner, given, (args, kwargs), tie_weights=False)

    return call


def first_names(mod: torch.nn.Module, names: Iterable[str]) -> list[str]:
    """The first name of each attribute. Given two, functional_call would swap it twice and restore the first swapped value."""
    found: dict[tuple[int, str], str] = {}
    for name in names:
        path, _, last = name.rpartition(".")
        found.setdefault((id(mod.get_submodule(path)), last), name)
    return list(found.values())


def call_and_read_buffers(
    mod: torch.nn.Module, values: Mapping[str, torch.Tensor], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The result of `mod` run with `values` as its parameters and buffers, and the buffers that it assigned, by name.

    Buffers that `mod` registers while it runs are included, and removed from it afterwards.
    """
    reader = _BufferReader(mod)
    named = {f"module.{name}": values[name] for name in first_names(mod, values)}
    result, buffers = functional_call(reader, named, (args, kwargs), tie_weights=False)
    assigned = {name: value for name, value in buffers.items() if value is not values.get(name)}
    for name in assigned.keys() - values.keys():
        path, _, last = name.rpartition(".")
        delattr(mod.get_submodule(path), last)
    return result, assigned


class Unhooked(torch.nn.Module):
    """A module of ours: hooks that the program registers for all modules do not see it."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)


class _Runner(Unhooked):
    """Runs a module with its hooks. A graph module runs node by node, so that a trace copies the `meta` of its nodes."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        module = self.module
        if not isinstance(module, torch.fx.GraphModule):
            return module(*args, **kwargs)
        if not module._forward_pre_hooks and not module._forward_hooks:
            return _run_nodes(module, *args, **kwargs)
        with _forward_replaced(module, functools.partial(_run_nodes, module)):
            return module(*args, **kwargs)


def _run_nodes(module: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    with fx_traceback.preserve_node_meta():
        return RegionInterpreter(module).run(*args, *kwargs.values())


@contextlib.contextmanager
def _forward_replaced(module: torch.nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Within, calls of the module run its hooks and this function."""
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        del module.__dict__["forward"]
        if before is not None:
            module.__dict__["forward"] = before


class _BufferReader(_Runner):
    """Runs a module, and reads its buffers before functional_call restores them."""

    def forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        module = self.module
        before = dict(module.named_buffers(remove_duplicate=False))
        result = super().forward(args, kwargs)
        after = dict(module.named_buffers(remove_duplicate=False))  # leaves out buffers that are None
        return result, {name: after.get(name) for name in (before | after)}


def create_functional_call(
    mod: torch.nn.Module,
    params_spec: pytree.TreeSpec | list[str],
    params_len: int,
    store_orig_mod: bool = False,
    strict_out_tuple: bool = True,
) -> Callable[..., Any]:
    """A function that takes the leaves of parameters and buffers, then `mod`'s own arguments.

    `params_spec` is the TreeSpec of a dictionary by name, or the list of names. `store_orig_mod` sets the function's `_orig_mod`,
    where a trace finds the module. `strict_out_tuple` raises OutputNotSequence for a result that is not a tuple or list.
    """

    def functional(*args: Any, **kwargs: Any) -> Any:
        leaves = args[:params_len]
        if isinstance(params_spec, pytree.TreeSpec):
            values = pytree.tree_unflatten(leaves, params_spec)
        else:
            values = dict(zip(params_spec, leaves, strict=True))
        result, _ = call_and_read_buffers(mod, values, args[params_len:], kwargs)
        if strict_out_tuple and not isinstance(result, (tuple, list)):
            raise OutputNotSequence(result)
        return result

    if store_orig_mod:
        functional._orig_mod = mod  # type: ignore[attr-defined]
    return functional


class PytreeThunk:
    """The structure of a result, known once the function has run. Mutable: each call sets the same structure."""

    def __init__(self) -> None:
        self.spec: pytree.TreeSpec | None = None

    def set(self, spec: pytree.TreeSpec) -> None:
        """Raises AssertionError if an earlier call set another structure."""
        assert self.spec is None or self.spec == spec, f"the function returned {spec}, and {self.spec} before"
        self.spec = spec

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Put leaves into their containers."""
        assert self.spec is not None, "the function has not run"
        return pytree.tree_unflatten(list(leaves), self.spec)


def create_tree_flattened_fn(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None = None
) -> tuple[Callable[..., list[Any]], PytreeThunk]:
    """`fn` as a function from the leaves of (args, kwargs) to a list of leaves, and the structure of its result.

    Raises UnknownOutput for a leaf that is neither a tensor nor something a graph can hold.
    """
    _, in_spec = pytree.tree_flatten((args, kwargs or {}))
    out_spec = PytreeThunk()

    def flat_fn(*leaves: Any) -> list[Any]:
        positional, named = pytree.tree_unflatten(list(leaves), in_spec)
        results, spec = pytree.tree_flatten(fn(*positional, **named))
        for result in results:
            if not isinstance(result, _LEAVES) and not is_opaque_object(result):
                raise UnknownOutput(result)
        out_spec.set(spec)
        return results

    if hasattr(fn, "_orig_mod"):
        flat_fn._orig_mod = fn._orig_mod  # type: ignore[attr-defined]
    return flat_fn, out_spec


def root_module_when_exporting_non_strict(flat_fn: Callable[..., Any]) -> torch.nn.Module | None:
    """The user's module, if export has wrapped it in a module that keeps it as `_export_root`; else None."""
    return getattr(getattr(flat_fn, "_orig_mod", None), "_export_root", None)
