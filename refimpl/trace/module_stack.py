"""Which modules' calls a node was made in, by the paths the program reached them by.

Counterpart: torch/fx/experimental/proxy_tensor.py _ModuleStackTracer, _AttrProxy; torch/fx/_symbolic_trace.py Tracer.call_module
Differs: the program gets its own modules, not proxies of them, so that `is`, `type` and dictionaries keyed by modules do what
they do in eager mode, and nothing has to be replaced in the result. A module taken out of a slice has its own name, "layers.2",
not "layers.slice(1, None, None).1". Children of a module that is not registered have no scope.

Note [Paths as accessed]
A shared module has several names, and which one counts is how the program got hold of it: `self.b.d(x)` is "b.d" though
`self.c.d` is the same. `nn.Module` finds children in one dictionary, `_modules`, by attribute and by index and in loops. For the
time of a trace that is a dictionary which notes, at every look-up, the path of the owner and the name. A call takes the last
look-up of its module that no call has taken, since `self.b.d(self.c.d(x))` looks both up before it calls either; where there is
none, as with a module kept in a variable, it has the name it had before. What was looked up and not called is forgotten with the
call it was looked up in. A loop over `(self.b.d, self.c.d)` therefore gets the two names in the wrong order; upstream's proxies
tell them apart, and break `is` for it.

Calls are seen through the slot that `Module.compile` fills, in the modules of the root only: no hook is registered and no class
is patched, so that other threads and other modules see nothing, and hooks of the user's run inside of the scope.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, ItemsView, Iterator, ValuesView
from typing import Any

import torch

from refimpl._torch import call_replaced, call_slot, children_replaced


class ModuleStackState:
    """The modules of `root` whose calls are under way. Paths are relative to `root`, which has the empty one."""

    def __init__(self, root: torch.nn.Module) -> None:
        self._root = root
        self._first_names: dict[torch.nn.Module, str] = {}
        for name, module in root.named_modules(remove_duplicate=False):
            self._first_names.setdefault(module, name)
        self._paths: dict[torch.nn.Module, str] = {}  # as last looked up or called
        self._running: dict[torch.nn.Module, str] = {}  # as the innermost call under way was made
        self._look_ups: list[tuple[torch.nn.Module, str]] = []  # that no call has taken
        self._calls: Counter[str] = Counter()
        self._scopes: dict[str, tuple[str, str]] = {}

    def write(self, node: torch.fx.Node) -> None:
        """`nn_module_stack`: from key to (path, "module.QualName"), outermost first. The n-th call has "path@n" for a key."""
        if node.meta.get("nn_module_stack") is None:
            node.meta["nn_module_stack"] = self._scopes.copy()

    def innermost(self) -> str | None:
        """The key of the call under way that began last."""
        return next(reversed(self._scopes), None)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note accesses and calls until the block is left; the modules are then as they were, but for what the program did."""
        with contextlib.ExitStack() as stack:
            for module in self._first_names:
                if isinstance(module, torch.jit.ScriptModule):
                    continue  # has neither a dictionary of children nor a call in Python
                stack.enter_context(children_replaced(module, _Children(self, module)))
                if not isinstance(module, torch.fx.GraphModule) and not _is_compiled(module):
                    stack.enter_context(call_replaced(module, self._scoped(module)))
            yield

    def accessed(self, owner: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
        """The program has looked up a child."""
        if self._look_ups and self._look_ups[-1][0] is owner:  # self.b.d: the look-up of b has served
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
        """The module's call, within a scope of its own."""
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
                else:  # the module has called itself by another name
                    self._running[module] = around

        return call_in_scope


class _Children(dict[str, Any]):
    """A module's children. Looking one up tells how it was reached; views do so when they come to it."""

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
        return dict, (dict(super().items()),)  # a copy of a module is not watched


def _is_compiled(module: torch.nn.Module) -> bool:
    """What torch.compile makes of a module, which is itself a child of that."""
    return "_orig_mod" in module.__dict__["_modules"]
