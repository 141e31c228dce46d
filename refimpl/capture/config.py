"""Settings of capture, under upstream's names. They are read when a segment is made.

Counterpart: torch/_dynamo/config.py
Differs: a table with one sentence for each setting; an unknown setting is refused. Dynamic sizes are always allowed.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

# name -> (default, what it does). "accepted": a setting of upstream's that has no effect here, followed by what always happens.
_SETTINGS: dict[str, tuple[Any, str]] = {
    "accumulated_recompile_limit": (256, "segments of one code object over all places; past it nothing more is captured"),
    "allow_ignore_mark_dynamic": (False, "a size marked dynamic that has to be one number is no error"),
    "allow_rnn": (False, "accepted: recurrent modules are captured like others"),
    "assume_static_by_default": (True, "sizes are numbers when a function is first captured"),
    "automatic_dynamic_shapes": (True, "a size that was another one before is a symbol when captured again"),
    "capture_dynamic_output_shape_ops": (False, "ops whose result has a shape that depends on data are captured"),
    "capture_scalar_outputs": (False, "reading a number out of a tensor gives a symbol"),
    "compiled_autograd": (False, "backward passes in captured calls are compiled; read when a function is wrapped"),
    "debug_dir_root": (os.path.join(os.getcwd(), "torch_compile_debug"), "where folders of debugging output are made"),
    "debug_disable_compile_counter": (False, "accepted: there is no such counter"),
    "do_not_emit_runtime_asserts": (False, "accepted: graphs hold the checks of the program and no more"),
    "dynamic_shapes": (True, "accepted: assume_static_by_default and automatic_dynamic_shapes decide"),
    "enable_faithful_generator_behavior": (True, "accepted: generators always stop and go on where the program's do"),
    "error_on_nested_fx_trace": (True, "symbolic tracing of a captured function by torch.fx raises"),
    "error_on_recompile": (False, "capturing a second time from one place raises RecompileError"),
    "fail_on_recompile_limit_hit": (False, "reaching the limit raises"),
    "force_nn_module_property_static_shapes": (True, "tensors of modules have sizes that are numbers"),
    "force_parameter_static_shapes": (True, "parameters have sizes that are numbers"),
    "inline_invoke_subgraph": (False, "nested compile regions are parts of the graph that calls them"),
    "inline_single_use_invoke_subgraph": (True, "and such as are called once"),
    "install_free_tensors": (False, "accepted: tensors that are no arguments are inputs of graphs"),
    "install_free_tensors_for_export": (True, "tensors that are no arguments become attributes of what is exported"),
    "log_compilation_metrics": (True, "records of what is compiled go to the log refimpl.capture, at level DEBUG"),
    "ignore_logging_functions": (set(), "calls of them are left out, as if the program had none"),
    "log_file_name": (None, "a file that messages are added to"),
    "nested_graph_breaks": (False, "accepted: a graph ends before the outermost call that a break is in"),
    "prefer_deferred_runtime_asserts_over_guards": (False, "accepted: what is assumed of sizes is guarded"),
    "raise_on_ctx_manager_usage": (True, "`with optimize(...)` raises"),
    "recompile_limit": (8, "segments of one place; past it calls that fit none run without"),
    "reorderable_logging_functions": (set(), "accepted: a graph ends before a call of them"),
    "skip_nnmodule_hook_guards": (False, "accepted: hooks are always guarded"),
    "specialize_float": (False, "accepted: numbers with a fraction are always constants"),
    "specialize_int": (False, "integers are constants"),
    "suppress_errors": (False, "what capture or a backend raises makes the function run without"),
    "traceable_tensor_subclasses": (set(), "classes that predicates.istensor knows; graphs end before them"),
    "verbose": (False, "warnings are given as often as there is reason"),
    "verify_correctness": (False, "what a backend gives is run beside the graph when it is made"),
}  # fmt: skip
_ALIASES = MappingProxyType(
    {"cache_size_limit": "recompile_limit", "accumulated_cache_size_limit": "accumulated_recompile_limit"}
)
_LOCK = threading.RLock()


class CaptureConfig:
    """The settings as attributes. Reading or writing an unknown name raises AttributeError that lists the known names."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        fresh = {name: set(value) if isinstance(value, set) else value for name, (value, _) in _SETTINGS.items()}
        object.__setattr__(self, "_values", fresh)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[_ALIASES.get(name, name)]
        except KeyError:
            raise _unknown(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        name = _ALIASES.get(name, name)
        if name not in _SETTINGS:
            raise _unknown(name)
        self._values[name] = value

    def __delattr__(self, name: str) -> None:
        """Restores the default. mock.patch deletes a setting to undo its change."""
        name = _ALIASES.get(name, name)
        if name not in _SETTINGS:
            raise _unknown(name)
        self._values[name] = _SETTINGS[name][0]

    def __dir__(self) -> list[str]:
        return sorted([*_SETTINGS, *_ALIASES, "patch", "describe"])

    def describe(self, name: str) -> str:
        """What a setting does, in one sentence."""
        if (name := _ALIASES.get(name, name)) not in _SETTINGS:
            raise _unknown(name)
        return _SETTINGS[name][1]

    def patch(self, name: str | dict[str, Any] | None = None, value: Any = None, /, **values: Any) -> ConfigPatch:
        """Changes settings within a `with` block, a decorated function, or all tests of a decorated unittest.TestCase.

        `patch("name", value)`, `patch(name=value, ...)` or `patch({"name": value, ...})`.
        An unknown name raises AttributeError on entry, not before: a decorator may be for a version that has the setting.
        """
        changes = {name: value} if isinstance(name, str) else dict(name or {})
        return ConfigPatch(self, {**changes, **values})


class ConfigPatch:
    """A change of settings. It may be entered again while it is active."""

    def __init__(self, config: CaptureConfig, changes: dict[str, Any]) -> None:
        self._config = config
        self._changes = changes
        self._before: list[dict[str, Any]] = []

    def __enter__(self) -> None:
        self._before.append({name: getattr(self._config, name) for name in self._changes})
        for name, value in self._changes.items():
            setattr(self._config, name, value)

    def __exit__(self, *error: object) -> None:
        for name, value in self._before.pop().items():
            setattr(self._config, name, value)

    def __call__(self, target: Any) -> Any:
        if isinstance(target, type):
            return self._of_tests(target)

        @functools.wraps(target)
        def patched(*args: Any, **kwargs: Any) -> Any:
            with self:
                return target(*args, **kwargs)

        return patched

    def _of_tests(self, class_: Any) -> type:
        before = class_.setUpClass

        def set_up_class(cls: Any) -> None:
            self.__enter__()
            cls.addClassCleanup(self.__exit__)
            before.__func__(cls)

        class_.setUpClass = classmethod(set_up_class)
        return class_


def _unknown(name: str) -> AttributeError:
    return AttributeError(f"capture has no setting {name!r}\n  expected: one of {', '.join(_SETTINGS)}")


config = CaptureConfig()


@contextlib.contextmanager
def settings_of(*, dynamic: bool | None, fullgraph: bool) -> Iterator[None]:
    """The settings that the options of `compile` imply. `dynamic=None` changes nothing.

    Under `fullgraph` a graph break is an error, so operators that read numbers out of tensors are captured.
    """
    changes: dict[str, Any] = {}
    if dynamic is not None:
        changes["assume_static_by_default"] = not dynamic
        if not dynamic:
            changes["automatic_dynamic_shapes"] = False
    if fullgraph:
        changes |= {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    if not changes:
        yield
        return
    with _LOCK, config.patch(changes):
        yield
