"""Strict export: captures the program's bytecode, and traces the captured graph.

Counterpart: torch/export/_trace.py _strict_export, _export_to_torch_ir, _rewrite_dynamo_tensor_constants
Differs: parameters and buffers are identified by their tensors, so that names need no correction; unused ones are inputs too, as
in non-strict export. Changes of capture to the module's attributes are undone.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import operator
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.fx import traceback as fx_traceback

from refimpl._torch import FakeTensor, FakeTensorMode, graph_codegen, pytree, torch_checks
from refimpl.aot.analysis.subclasses import dense_parts
from refimpl.aot.attribute_assignment import _detect_attribute_assignment
from refimpl.capture.breaks import UserLine
from refimpl.capture.entry_points.export import export as capture_graph
from refimpl.capture.entry_points.export_shapes import SpecifiedSizes
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.non_strict import fake_leaf, fake_state, non_strict_program
from refimpl.export.shapes.policies import InputLeaf
from refimpl.export.traced_program import FakeProgram
from refimpl.export.unflatten import UnflattenedModule
from refimpl.symbolic.dynamic_shapes import DimSpec, InputPolicy
from refimpl.symbolic.shape_env import ShapeEnv
from refimpl.symbolic.sources import Source, size_source
from refimpl.symbolic.stacks import interpreting

_LINE = re.compile(r'File "(.+)", line (\d+), in (.+)')  # a frame of a stack trace


def strict_program(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    leaves: Sequence[InputLeaf],
    argument_names: Sequence[str],
    *,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
) -> FakeProgram:
    """The captured graph with fakes for state and inputs. Raises the errors of capture for a graph break."""
    run_instead = functools.partial(
        non_strict_program, module, leaves=leaves, argument_names=argument_names,
        prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
    )  # fmt: skip
    if isinstance(module, (fx.GraphModule, UnflattenedModule)):  # its Python code is its graph
        return run_instead(args=args, kwargs=kwargs)
    promised = _PromisesState()
    captured = _captured(
        module, args, kwargs, leaves, promised, prefers_assertions=prefer_deferred_runtime_asserts_over_guards
    )
    mode = _fake_mode(captured.graph_module)
    if mode is None:  # nothing is computed, so strict and non-strict export are the same
        return run_instead(args=captured.args, kwargs=captured.kwargs)
    env: Any = mode.shape_env
    promised.restore(env)
    mode.allow_non_fake_inputs = True  # constants, which are inputs of the captured graph
    state = fake_state(module, mode, env)
    num_parameters = len(dict(module.named_parameters(remove_duplicate=False)))
    return FakeProgram(
        root=module,
        call=_CapturedCall(captured.graph_module, module, captured.assigned),
        scopes=None,
        parameters=dict(list(state.items())[:num_parameters]),
        buffers=dict(list(state.items())[num_parameters:]),
        leaves=leaves,
        inputs=_inputs(captured.graph_module, leaves, mode, env),
        in_spec=captured.in_spec,
        argument_names=argument_names,
        fake_mode=mode,
        shape_env=env,
    )


@dataclass(frozen=True, kw_only=True)
class _Captured:
    """A captured graph, and the arguments it was captured with, in which a repeated tensor is a copy."""

    graph_module: fx.GraphModule
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    in_spec: pytree.TreeSpec
    assigned: dict[str, Any]
    """The values that the program assigned to buffers, by name."""


def _captured(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    leaves: Sequence[InputLeaf],
    promised: _PromisesState,
    *,
    prefers_assertions: bool,
) -> _Captured:
    """Capture the module with the policies of the leaves; promises on sizes are left to `promised`."""
    values, in_spec = pytree.tree_flatten((args, dict(kwargs)))
    distinct = _distinct(values)
    policies = {
        id(value): promised.unpromised(leaf)
        for value, leaf in zip(distinct, leaves, strict=True)
        if leaf.policy is not None
    }
    names = _source_names(args, kwargs) if any(leaf.number is not None for leaf in leaves) else [""] * len(leaves)
    numbers = {
        name: promised.unpromised_number(leaf)
        for name, leaf in zip(names, leaves, strict=True)
        if leaf.number is not None
    }
    read: dict[str, None] = {}
    args, given = pytree.tree_unflatten(distinct, in_spec)
    with _state_kept(module) as assigned:
        graph_module = capture_graph(
            module,
            dynamic_shapes=SpecifiedSizes(
                policies=policies,
                numbers=numbers,
                positions={name: position for position, name in enumerate(names) if name in numbers},
                asked=read,
                takes_fakes=True,
                prefers_assertions=prefers_assertions,
            ),
            assume_static_by_default=True,
            _log_export_usage=False,
        )(*args, **given).graph_module
    if numbers:
        _check_read(read, names)
    _assert_in_branches(graph_module)
    return _Captured(graph_module=graph_module, args=args, kwargs=given, in_spec=in_spec, assigned=assigned)


class _PromisesState:
    """Hides promises on sizes from capture, which would check them itself, and restores them afterwards."""

    def __init__(self) -> None:
        self._specs: dict[int, tuple[DimSpec, DimSpec, Source]] = {}

    def unpromised(self, leaf: InputLeaf) -> InputPolicy:
        """The leaf's policy without promises, for capture."""
        assert leaf.policy is not None
        dims: dict[int, DimSpec] = {}
        for dim, spec in leaf.policy.dims.items():
            if spec.policy == "DYNAMIC":
                dims[dim] = replace(spec, policy="OWN")
                source = size_source(Source(leaf.source, leaf.source), dim)
                self._specs[id(dims[dim])] = (dims[dim], spec, source)
            else:
                dims[dim] = spec
        return InputPolicy(dims)

    def unpromised_number(self, leaf: InputLeaf) -> DimSpec:
        """The policy of an integer without promises."""
        assert leaf.number is not None
        if leaf.number.policy != "DYNAMIC":
            return leaf.number
        made = replace(leaf.number, policy="OWN")
        self._specs[id(made)] = (made, leaf.number, Source(leaf.source, leaf.source))
        return made

    def restore(self, env: ShapeEnv) -> None:
        """Restore the user's promises."""
        for index, promise in enumerate(env.promises):
            if id(promise.spec) in self._specs:
                _, spec, source = self._specs[id(promise.spec)]
                env.promises[index] = replace(promise, spec=spec, source=source)


def _assert_in_branches(graph_module: fx.GraphModule) -> None:
    """Replace checks in functions of higher-order operators by asserts. The trace of the captured graph would drop a check, since
    its condition is already known to hold."""
    for module in graph_module.modules():
        if module is graph_module or not isinstance(module, fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            if node.op == "call_function" and node.target in torch_checks and isinstance(node.args[0], fx.Node):
                _make_assertion(node, node.args[0])
        module.recompile()


def _make_assertion(check: fx.Node, condition: fx.Node) -> None:
    """Turn a `torch._check` call into an assert."""
    value = condition.meta.get("example_value")
    if isinstance(value, torch.SymInt):  # torch._check_is_size
        value = value >= 0
        with check.graph.inserting_before(check):
            condition = check.graph.call_function(operator.ge, (condition, 0))
    if isinstance(value, torch.SymBool):
        message = f"Runtime assertion failed for expression {value}"
        check.target, check.args, check.kwargs = torch.ops.aten._assert_scalar.default, (condition, message), {}


_ARGUMENTS = ("args", "kwargs")


def _source_names(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[str]:
    """The sources that capture uses for the leaves of a module call's inputs."""
    paths, _ = pytree.tree_flatten_with_path((args, dict(kwargs)))
    return [f"L[{_ARGUMENTS[getattr(path[0], 'idx')]!r}]{pytree.keystr(path[1:])}" for path, _ in paths]


def _check_read(read: Iterable[str], known: Sequence[str]) -> None:
    """Raises UnsupportedByRefimpl if capture has read an integer of the inputs by a source that is no leaf's: it might be a
    dynamic one."""
    beginnings = tuple(f"L[{name!r}]" for name in _ARGUMENTS)
    others = [name for name in read if name.startswith(beginnings) and name not in known]
    if others:
        raise UnsupportedByRefimpl(
            seen=f"dynamic integers, in strict export of inputs in which {others[0]} is an integer and no leaf",
            supported="integers in tuples, lists, dicts and dataclasses",
            do="export with strict=False, or leave the integers out of dynamic_shapes",
        )


def _distinct(values: Sequence[Any]) -> list[Any]:
    """The values; a tensor that shares memory with an earlier one is copied."""
    seen: set[int] = set()
    found: list[Any] = []
    for value in values:
        parts = [part for part in dense_parts(value) if isinstance(part, torch.Tensor)]
        if all(part.layout is torch.strided and not isinstance(part, FakeTensor) for part in parts):
            storages = [part.untyped_storage() for part in parts]
            if any(storage.data_ptr() in seen and storage.nbytes() for storage in storages):
                value = _copied(value)
            seen.update(storage.data_ptr() for storage in storages)
        found.append(value)
    return found


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_leaf:
        return tensor.clone()
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@contextlib.contextmanager
def _state_kept(module: torch.nn.Module) -> Iterator[dict[str, Any]]:
    """Restore the buffers after the block. Yields a dictionary that then has the values assigned to them."""
    before = {path: dict(inner._buffers) for path, inner in module.named_modules()}
    assigned: dict[str, Any] = {}
    with _detect_attribute_assignment(module):
        try:
            yield assigned
        finally:
            for path, inner in module.named_modules():
                for name, value in list(inner._buffers.items()):
                    if value is not before[path].get(name):
                        assigned[f"{path}.{name}" if path else name] = value
                inner._buffers.clear()
                inner._buffers.update(before[path])


def _fake_mode(graph_module: fx.GraphModule) -> FakeTensorMode | None:
    for node in graph_module.graph.nodes:
        value = node.meta.get("val")
        for leaf in pytree.tree_leaves(value):
            if isinstance(leaf, FakeTensor):
                return leaf.fake_mode
    return None


def _inputs(
    graph_module: fx.GraphModule, leaves: Sequence[InputLeaf], mode: FakeTensorMode, env: ShapeEnv
) -> list[Any]:
    """The fake inputs of capture, and new ones for inputs that it did not read."""
    inputs: list[Any] = []
    for node, leaf in zip(graph_module.graph.find_nodes(op="placeholder"), leaves, strict=True):
        value = node.meta.get("val")
        is_known = isinstance(value, (torch.Tensor, torch.SymInt)) and not _was_reshaped(value, leaf)
        asked = None if is_known else _asked_number(leaf, env)
        if asked is not None:
            inputs.append(asked)
        else:
            inputs.append(value if is_known else fake_leaf(leaf, mode, env))
    return inputs


def _asked_number(leaf: InputLeaf, env: ShapeEnv) -> Any:
    """The symbol of an integer that capture asked about, although no node has it; None for other inputs."""
    for promise in env.promises:
        if leaf.number is not None and promise.spec is leaf.number:
            expr = promise.spec.scale * promise.expr + promise.spec.offset
            return env.create_symintnode(expr, hint=leaf.value)
    return None


def _was_reshaped(value: Any, leaf: InputLeaf) -> bool:
    """Whether the program changed the input's shape or strides in place, when capture ran it on this fake."""
    if not isinstance(value, torch.Tensor) or not isinstance(leaf.value, torch.Tensor):
        return False
    if leaf.value.layout is not torch.strided:
        return False
    before, after = ((*t.shape, *t.stride(), t.storage_offset()) for t in (leaf.value, value))
    if len(before) == len(after) and all(_may_be(new, old) for old, new in zip(before, after, strict=True)):
        return False
    if any(not isinstance(number, int) for number in after):
        raise UnsupportedByRefimpl(
            seen=f"an in-place change of shape or strides of {leaf.argument}{leaf.path}, which has dynamic sizes",
            supported="such changes of inputs with static sizes in strict export",
            do="export with strict=False, or make the sizes of the argument static",
        )
    return True


def _may_be(number: Any, value: Any) -> bool:
    """Whether a size or stride can have this value: a symbol only its hint."""
    seen = number if isinstance(number, int) else number.node.hint
    return seen is None or not isinstance(value, int) or seen == value


class _CapturedCall:
    """Runs the captured graph with the given values as the module's state."""

    def __init__(self, graph_module: fx.GraphModule, module: torch.nn.Module, assigned: Mapping[str, Any]) -> None:
        self._graph_module = graph_module
        names: dict[int, str] = {}
        for name, value in (
            *module.named_parameters(remove_duplicate=False),
            *module.named_buffers(remove_duplicate=False),
        ):
            names.setdefault(id(value), name)
        self._names = {
            name: names[id(value)]
            for name, value in (*graph_module.named_parameters(), *graph_module.named_buffers())
            if id(value) in names
        }
        self._out_spec = _out_spec(graph_module)
        self._assigned = list(assigned)
        self._return_also(assigned)

    def _return_also(self, assigned: Mapping[str, Any]) -> None:
        """Make the values assigned to buffers outputs."""
        by_value = {id(node.meta["val"]): node for node in self._graph_module.graph.nodes if "val" in node.meta}
        output = self._graph_module.graph.output_node()
        also: list[Any] = []
        for name, value in assigned.items():
            node = by_value.get(id(value))
            if node is None:
                raise UnsupportedByRefimpl(
                    seen=f"a {type(value).__name__} assigned to the buffer {name!r} that the graph does not compute",
                    supported="values computed from inputs and state",
                    do="use copy_ on the buffer",
                )
            also.append(node)
        output.args = ((*list(output.args[0]), *also),)  # type: ignore[arg-type]

    def __call__(
        self, values: Mapping[str, torch.Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, torch.Tensor]]:
        interpreter = _StateInterpreter(self._graph_module, {name: values[fqn] for name, fqn in self._names.items()})
        with fx_traceback.preserve_node_meta(), interpreting(_place):
            results = interpreter.run(*pytree.tree_leaves((args, kwargs)), enable_io_processing=False)
        count = len(results) - len(self._assigned)
        assigned = dict(zip(self._assigned, results[count:], strict=True))
        return pytree.tree_unflatten(list(results[:count]), self._out_spec), assigned


def _place() -> UserLine | None:
    """The line of the program that the current node was captured from."""
    lines = _LINE.findall(fx_traceback.get_current_meta().get("stack_trace") or "")
    return UserLine(lines[-1][0], int(lines[-1][1]), lines[-1][2]) if lines else None


class _StateInterpreter(fx.Interpreter):
    """Runs a graph with some attributes replaced by values from a dictionary.

    Branches and other nested graphs are interpreted too, so that their nodes keep their metadata.
    """

    def __init__(self, module: fx.GraphModule, values: Mapping[str, Any]) -> None:
        super().__init__(module)
        self._values = values

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        if target in self._values:
            return self._values[target]
        found = super().get_attr(target, args, kwargs)
        if not isinstance(found, fx.GraphModule):
            return found
        interpreted = copy.copy(found)  # still a GraphModule: activation_checkpoint reads the graph of its body
        interpreted.forward = _StateInterpreter(found, {}).run
        return interpreted


def _out_spec(graph_module: fx.GraphModule) -> pytree.TreeSpec:
    codegen: Any = graph_codegen(graph_module.graph)
    spec = codegen.pytree_info.out_spec
    assert spec is not None, "a captured graph has an out_spec"
    return spec
