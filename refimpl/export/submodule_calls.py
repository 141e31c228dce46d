"""Records inputs and outputs of submodule calls as nodes, for `preserve_module_call_signature`.

Counterpart: torch/_export/passes/collect_tracepoints_pass.py, torch/_export/wrappers.py _wrap_submodules
Differs: forward hooks look up the nodes while the trace runs; upstream adds tracepoint nodes and removes them.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from refimpl._torch import pytree
from refimpl.errors import NotTracked
from refimpl.export.module_call_graph import ModuleCallSignature
from refimpl.export.shapes.policies import argument_names

NodeOf = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmoduleCall:
    """One call. Inputs and outputs are nodes of the traced graph, or constants."""

    inputs: Sequence[Any]
    outputs: Sequence[Any]
    in_spec: pytree.TreeSpec
    out_spec: pytree.TreeSpec
    argument_names: Sequence[str]

    def signature(self, copies: Mapping[fx.Node, fx.Node], argument_of: Callable[[Any], Any]) -> ModuleCallSignature:
        """The signature with the final graph's copies of the nodes."""

        def argument(value: Any) -> Any:
            return argument_of(copies[value] if isinstance(value, fx.Node) else value)

        return ModuleCallSignature(
            inputs=[argument(value) for value in self.inputs],
            outputs=[argument(value) for value in self.outputs],
            in_spec=self.in_spec,
            out_spec=self.out_spec,
            forward_arg_names=list(self.argument_names),
        )


class SubmoduleCallsState:
    """Notes calls of submodules. The key of the n-th call of one is "name@n", as in `nn_module_stack`. Mutable."""

    def __init__(self, root: torch.nn.Module, names: Sequence[str]) -> None:
        self._modules: dict[torch.nn.Module, list[str]] = {}  # one may have several names
        for name in names:
            self._modules.setdefault(root.get_submodule(name), []).append(name)
        self.calls: dict[str, SubmoduleCall] = {}
        self._running: list[tuple[Any, ...]] = []

    @contextlib.contextmanager
    def watching(self, node_of: NodeOf, innermost: Callable[[], str | None]) -> Iterator[None]:
        """A context in which calls are noted by hooks. innermost: returns the key of the running call."""
        with contextlib.ExitStack() as stack:
            for module, names in self._modules.items():
                before = module.register_forward_pre_hook(self._before(node_of, innermost), with_kwargs=True)
                stack.callback(before.remove)
                after = module.register_forward_hook(self._after(names, node_of), with_kwargs=True)
                stack.callback(after.remove)
            yield

    def _before(self, node_of: NodeOf, innermost: Callable[[], str | None]) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            leaves, spec = pytree.tree_flatten((args, kwargs))
            names = argument_names(inspect.signature(module.forward), args, kwargs)
            self._running.append((innermost(), _nodes(leaves, node_of), spec, names))

        return hook

    def _after(self, known_as: Sequence[str], node_of: NodeOf) -> Callable[..., None]:
        def hook(module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
            key, inputs, in_spec, names = self._running.pop()
            leaves, out_spec = pytree.tree_flatten(result)
            outputs = _nodes(leaves, node_of)
            if key is None or not {key, key.rpartition("@")[0]} & set(known_as):
                return  # called by a name that is not to be preserved
            if inputs is None or outputs is None:
                return  # called in a function of a higher-order operator, which has its own graph
            self.calls[key] = SubmoduleCall(
                inputs=inputs,
                outputs=outputs,
                in_spec=in_spec,
                out_spec=out_spec,
                argument_names=names,
            )

        return hook


def _nodes(leaves: Sequence[Any], node_of: NodeOf) -> list[Any] | None:
    """The nodes of the leaves; constants as they are. None if a leaf is not in the graph."""
    try:
        return [node_of(leaf) for leaf in leaves]
    except NotTracked:
        return None
