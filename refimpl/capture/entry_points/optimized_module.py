"""OptimizedModule: a module whose calls are captured, and which behaves like the original in everything else.

Counterpart: torch/_dynamo/eval_frame.py OptimizedModule
Differs: hooks of the original always run within the captured call. The first call of a module with lazy submodules is not
captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from refimpl._torch import HOOKS_OF_ALL_MODULES

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_OWN = frozenset(
    {"_orig_mod", "dynamo_ctx", "_torchdynamo_orig_callable", "get_compiler_config", "forward", "_forward", "__dict__"}
)


class OptimizedModule(torch.nn.Module):
    """Reads, writes and deletes the original's attributes. Its `state_dict` has the prefix `_orig_mod`."""

    _torchdynamo_orig_callable: Callable[..., Any]
    get_compiler_config: Callable[[], Any]

    def __init__(self, mod: torch.nn.Module, dynamo_ctx: Any) -> None:
        """mod: the original. dynamo_ctx: the context that wraps its call (entry_points/contexts.py)."""
        self.__dict__["_orig_mod"] = mod  # needed until `Module.__init__` is done, which some classes replace
        super().__init__()
        del self.__dict__["_orig_mod"]
        self._modules["_orig_mod"] = mod
        self.dynamo_ctx = dynamo_ctx
        self._initialize()

    def _initialize(self) -> None:
        module = self._orig_mod
        self.forward = self.dynamo_ctx.wrapped(module)
        if any(map(_is_lazy, module.modules())):
            self._forward = self.forward
            self.forward = self._call_lazy_check

    def _call_lazy_check(self, *args: Any, **kwargs: Any) -> Any:
        """The first call of a lazy module: materializes the parameters before capture.

        The inputs of a lazy submodule are known only when it is called, so a first call with such a submodule is not captured.
        """
        module: Any = self._orig_mod
        if _is_lazy(module) and callable(getattr(module, "_infer_parameters", None)):
            module._infer_parameters(module, args, kwargs)
        if any(map(_is_lazy, module.modules())):
            return module(*args, **kwargs)
        self.forward = self._forward
        return self._forward(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the original, which runs the hooks of all modules. They must not run a second time for this module."""
        if any(HOOKS_OF_ALL_MODULES) and not any(getattr(self, name) for name in _HOOKS):
            return self.forward(*args, **kwargs)
        return super().__call__(*args, **kwargs)

    def __len__(self) -> int:
        try:
            return len(self._orig_mod)
        except TypeError:
            raise TypeError(f"object of type {type(self._orig_mod).__name__!r} has no len()") from None

    def __bool__(self) -> bool:
        return True

    def _training(self) -> bool:
        """The original's `training`."""
        return self._orig_mod.training

    def _set_training(self, value: bool) -> None:
        if "_modules" in self.__dict__ and "_orig_mod" in self._modules:  # not during `__init__`
            self._orig_mod.training = value

    if not TYPE_CHECKING:  # torch.nn.Module declares a plain attribute
        training = property(_training, _set_training)

    def __getattr__(self, name: str) -> Any:
        if name == "_orig_mod":
            return self.__dict__["_modules"]["_orig_mod"]
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN or hasattr(type(self), name):
            super().__setattr__(name, value)
        elif "_modules" in self.__dict__ and "_orig_mod" in self._modules:
            setattr(self._orig_mod, name, value)
        else:  # `Module.__init__` sets it
            super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN or hasattr(type(self), name):
            super().__delattr__(name)
        else:
            delattr(self._orig_mod, name)

    def __dir__(self) -> list[str]:
        names = list(self._orig_mod.__dir__())
        return [*names, *(name for name in super().__dir__() if name not in names)]

    def __reduce__(self) -> Any:
        return type(self), (self._orig_mod, self.dynamo_ctx)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("forward", "_forward", "__call__")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._initialize()


def _is_lazy(module: torch.nn.Module) -> bool:
    """Whether a lazy module still waits for its first inputs."""
    return hasattr(module, "_initialize_hook")
