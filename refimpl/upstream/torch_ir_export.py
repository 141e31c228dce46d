"""Exports a program as a graph of torch functions, before it is traced to aten ops.

Counterpart: torch/export/_trace.py _export_to_torch_ir, _restore_state_dict, _fill_values of strict export
Differs: the graph is that of `refimpl.export_graph`; parameters and buffers have their full names with dots, as since torch 2.6.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from refimpl._torch import FakeTensor, pytree
from refimpl.capture.entry_points.export import export as capture_graph
from refimpl.errors import UnsupportedByRefimpl
from refimpl.export.errors import invalid_input, translated


def _export_to_torch_ir(
    f: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    *,
    preserve_module_call_signature: tuple[str, ...] = (),
    disable_constraint_solver: bool = False,
    prefer_deferred_runtime_asserts_over_guards: bool = False,
    restore_fqn: bool = True,
    _log_export_usage: bool = True,
    same_signature: bool = True,
) -> fx.GraphModule:
    """Capture a call of `f`, a module or function, as a graph of torch functions.

    args, kwargs, dynamic_shapes: as for `export`; sizes that `dynamic_shapes` does not name are static.
    restore_fqn: name parameters and buffers as in the module's state dict, not as capture does.
    same_signature: the graph takes the arguments of `f`; otherwise flat inputs.

    Raises UserError if `args` is not a tuple or `dynamic_shapes` does not fit the program, the errors of capture for a graph
    break, and UnsupportedByRefimpl for `preserve_module_call_signature`.
    """
    if not isinstance(args, tuple):
        raise invalid_input(f"Expecting `args` to be a tuple of example positional inputs, got {type(args)}")
    if preserve_module_call_signature:
        raise UnsupportedByRefimpl(
            seen=f"preserve_module_call_signature={preserve_module_call_signature} in a graph of torch's functions",
            supported="signatures of submodules in exported programs",
            do="use export, or leave it out",
        )
    try:
        made = capture_graph(
            f,
            dynamic_shapes=dynamic_shapes,
            assume_static_by_default=True,
            tracing_mode="symbolic",
            disable_constraint_solver=disable_constraint_solver,
            prefer_deferred_runtime_asserts_over_guards=prefer_deferred_runtime_asserts_over_guards,
            same_signature=same_signature,
            _log_export_usage=_log_export_usage,
        )(*args, **dict(kwargs or {})).graph_module
    except RuntimeError as error:
        known = translated(error)
        if known is error:
            raise
        raise known from error
    if isinstance(f, torch.nn.Module) and restore_fqn:
        restore_state_names(f, made)
    note_values_of_attributes(made)
    return made


def restore_state_names(original: torch.nn.Module, graph_module: fx.GraphModule) -> None:
    """Rename the graph's parameters and buffers to their full names in `original`, as parameters and buffers again.

    They are matched by identity; a tensor with several names gets the first.
    """
    names: dict[int, str] = {}
    for name, value in (
        *original.named_parameters(remove_duplicate=False),
        *original.named_buffers(remove_duplicate=False),
    ):
        names.setdefault(id(value), name)
    values = {
        str(node.target): _attribute(graph_module, str(node.target))
        for node in graph_module.graph.find_nodes(op="get_attr")
    }
    renamed = {target: names[id(value)] for target, value in values.items() if id(value) in names}
    for target in renamed:
        owner, _, last = target.rpartition(".")
        delattr(graph_module.get_submodule(owner), last)
    for target, name in renamed.items():
        _put(graph_module, name, values[target], original)
    for node in graph_module.graph.find_nodes(op="get_attr"):
        node.target = renamed.get(str(node.target), node.target)
    graph_module.recompile()


def note_values_of_attributes(graph_module: fx.GraphModule) -> None:
    """Set a missing `val` of get_attr nodes, such as a pass has added, to a fake of the attribute.

    The fake is made in the mode of the graph's other fake tensors. Raises AssertionError if there are none.
    """
    missing = [node for node in graph_module.graph.find_nodes(op="get_attr") if "val" not in node.meta]
    missing = [node for node in missing if isinstance(_attribute(graph_module, str(node.target)), torch.Tensor)]
    if not missing:
        return
    leaves = pytree.tree_leaves([node.meta.get("val") for node in graph_module.graph.nodes])
    mode = next((leaf.fake_mode for leaf in leaves if isinstance(leaf, FakeTensor)), None)
    assert mode is not None, (
        f"no node of the graph module has a fake tensor\n  seen: {[node.name for node in missing]} without `val`\n"
        "  expected: placeholders with `val`, as of a captured graph"
    )
    for node in missing:
        node.meta["val"] = mode.from_tensor(_attribute(graph_module, str(node.target)), static_shapes=True)


def _attribute(module: torch.nn.Module, target: str) -> Any:
    owner, _, last = target.rpartition(".")
    return getattr(module.get_submodule(owner), last)


def _put(module: torch.nn.Module, name: str, value: Any, original: torch.nn.Module) -> None:
    path, _, last = name.rpartition(".")
    owner = module
    for part in path.split(".") if path else ():
        if part not in owner._modules:
            owner.add_module(part, torch.nn.Module())
        owner = owner.get_submodule(part)
    if isinstance(value, torch.nn.Parameter):
        owner.register_parameter(last, value)
    else:
        is_absent = last in original.get_submodule(path)._non_persistent_buffers_set
        owner.register_buffer(last, value, persistent=not is_absent)
