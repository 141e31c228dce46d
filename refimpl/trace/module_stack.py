"""Writes a node's `nn_module_stack`: the running module calls, by the paths by which the program accessed the modules.

Counterpart: torch/fx/experimental/proxy_tensor.py _ModuleStackTracer, _AttrProxy; torch/fx/_symbolic_trace.py Tracer.call_module
Differs: the program sees its own modules, not proxies, so that `is`, `type` and dicts keyed by modules work as in eager, and the
result needs no replacements. A module in a slice keeps its own name, "layers.2", not "layers.slice(1, None, None).1". Children of
an unregistered module have no entry.

Note [Paths as accessed]
A shared module has several names, and the one it was accessed by counts: `self.b.d(x)` is "b.d" although `self.c.d` is the same
module. `nn.Module` finds children in the dict `_modules`, by attribute, by index and in loops. During a trace this is a dict that
notes the path of each look-up. A call takes the last look-up of its module that no call has taken: `self.b.d(self.c.d(x))` looks
up both before it calls either. A module without one (it was kept in a variable) keeps its last path. Look-ups made in a call and
not used are dropped at its end. A loop over `(self.b.d, self.c.d)` therefore swaps the two names; upstream's proxies get this
right, and break `is`.

Calls are intercepted by the attribute that `Module.compile` sets, in the modules of the root only. No hook is registered and no
class is patched, so that other threads and modules are not affected, and the user's hooks run inside of the scope.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

import torch

from refimpl._torch import call_replaced, call_slot, children_replaced


class ModuleStackState:
    """The running calls of modules of `root`. Paths are relative to `root`, whose own path is empty."""

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = root
        self._first_names: dict[torch.nn.Module, str] = {}
        for name, module in root.named_modules(remove_duplicate=False):
            self._first_names.setdefault(module, name)
        self._paths: dict[torch.nn.Module, str] = {}  # path of the last look-up or call
        self._running: dict[torch.nn.Module, str] = {}  # path of the innermost running call
        self._look_ups: list[tuple[torch.nn.Module, str]] = []  # look-ups that no call has taken
        self._calls: Counter[str] = Counter()
        self._scopes: dict[str, tuple[str, str]] = {}

    def write(self, node: torch.fx.Node) -> None:
        """Write `nn_module_stack`: key -> (path, "module.QualName"), outermost first; a repeated call has the key "path@n"."""
        if node.meta.get("nn_module_stack") is None:
            node.meta["nn_module_stack"] = self._scopes.copy()

    def innermost(self) -> str | None:
        """The key of the innermost running call."""
        return next(reversed(self._scopes), None)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """A block in which look-ups and calls of modules are noted. Only the program's own changes of modules remain."""
        with contextlib.ExitStack() as stack:
            for module in self._first_names:
                if isinstance(module, torch.jit.ScriptModule):
                    continue  # has no Python dict of children and no Python call
                stack.enter_context(children_replaced(module, _Children(self, module)))
                if not isinstance(module, torch.fx.GraphModule) and not _is_compiled(module):
                    stack.enter_context(call_replaced(module, self._scoped(module)))
            yield

    def accessed(self, owner: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
        """Note that the program has looked up a child."""
        if self._look_ups and self._look_ups[-1][0] is owner:  # self.b.d: the look-up of b is used up
            path = self._look_ups.pop()[1]
        else:
            path = self._running.get(owner) or self._known_path(owner)
        path = self._paths[module] = f"{path}.{name}" if path else name
        self._look_ups.append((module, path))

    def _path_of_call(self, module: torch.nn.Module) -> str:
        for index in reversed(range(len(self._look_ups))):
            if self._look_ups[index][0] is module:
                return self._look_ups.pop(index)[1]
        return self._known_path(module)

    def _known_path(self, module: torch.nn.Module) -> str:
        return self._paths.get(module) or self._first_names[module]

    def _scoped(self, module: torch.nn.Module) -> Callable[..., Any]:
        """The module's call, wrapped in its own entry of the module stack."""
        call = call_slot(module)
        kind = type(module)
        kind_name = f"{kind.__module__}.{kind.__qualname__}"

        def call_in_scope(*args: Any, **kwargs: Any) -> Any:
            path = self._paths[module] = self._path_of_call(module)
            looked_up = len(self._look_ups)
            count = self._calls[path]
            self._calls[path] += 1
            key = f"{path}@{count}" if count else path
            self._scopes[key] = (path, kind_name)
            around = self._running.get(module)
            self._running[module] = path
            try:
                return call(*args, **kwargs)
            finally:
                del self._scopes[key], self._look_ups[looked_up:]
                if around is None:
                    del self._running[module]
                else:  # an outer call of the same module is running
                    self._running[module] = around

        return call_in_scope


class _Children(dict[str, Any]):
    """A module's `_modules` that notes look-ups; `values()` and `items()` note each child as they reach it."""

    def __init__(self, state: ModuleStackState, owner: torch.nn.Module) -> None:
        super().__init__(owner._modules)
        self._state = state
        self._owner = owner

    def __getitem__(self, name: str) -> Any:
        module = super().__getitem__(name)
        if module is not None:
            self._state.accessed(self._owner, name, module)
        return module

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default  # noqa: SIM401 (this is `get`)

    def values(self) -> Any:
        return ValuesView(self)

    def items(self) -> Any:
        return ItemsView(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return dict, (dict(super().items()),)  # a copy of a module has a plain dict


def _is_compiled(module: torch.nn.Module) -> bool:
    """Whether the module is torch.compile's wrapper of another one."""
    return "_orig_mod" in module.__dict__["_modules"]
