"""Settings of capture, under upstream's names. They are read when a segment is made.

Counterpart: torch/_dynamo/config.py
Differs: a table with one sentence for each setting; an unknown setting is refused. Dynamic sizes are always allowed.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import threading
import warnings
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

from refimpl.capture.accepted_settings import ACCEPTED

# name -> (default, what it does). "accepted": a setting of upstream's that has no effect here, with the reason.
_SETTINGS: dict[str, tuple[Any, str]] = {
    "accumulated_recompile_limit": (256, "segments of one code object over all places; past it nothing more is captured"),
    "allow_ignore_mark_dynamic": (False, "a size marked dynamic that has to be one number is no error"),
    "allow_rnn": (False, "recurrent modules are captured like others, with it and without"),
    "assume_static_by_default": (True, "sizes are numbers when a function is first captured"),
    "automatic_dynamic_shapes": (True, "a size that was another one before is a symbol when captured again"),
    "automatic_dynamic_exclusion_guard": (False, "of several segments that fit a call, the one made first runs"),
    "automatic_dynamic_shapes_mark_as": ("dynamic", '"unbacked": such symbols have no value that control flow could ask for'),
    "compiled_autograd_kwargs_override": ({}, '{"fullgraph": False} lets the capture of backward passes stop and go on'),
    "constant_fold_autograd_profiler_enabled": (False, "torch.autograd._profiler_enabled() is a constant and ends no graph"),
    "debug_backend_override": (
        os.environ.get("TORCH_COMPILE_OVERRIDE_BACKENDS", ""), '">2:eager;0-1:aot_eager" chooses backends for captures by number',
    ),
    "debug_dynamo_config_override": (
        os.environ.get("TORCH_COMPILE_OVERRIDE_DYNAMO_CONFIGS", ""), '"0:specialize_int=True" changes settings by that number',
    ),
    "force_compile_during_fx_trace": (False, "symbolic tracing of a captured function by torch.fx records the function itself"),
    "leaf_function_check_escaped_gradients": (False, "a leaf function with a gradient for a tensor that is no argument raises"),
    "leaf_function_validate_outputs": (False, "a leaf function whose fake gives other shapes or dtypes raises"),
    "same_two_models_use_fp64": (True, "repro scripts compare with results in float64"),
    "skip_fwd_side_effects_in_bwd_under_checkpoint": (
        False, "functions under checkpoint may change objects of the program: once, and not when they run again in the backward",
    ),
    "unbacked_sources": ("", "sizes of tensors with these names, separated by commas, are unbacked symbols"),
    "capture_dynamic_output_shape_ops": (False, "ops whose result has a shape that depends on data are captured"),
    "capture_scalar_outputs": (False, "reading a number out of a tensor gives a symbol"),
    "compiled_autograd": (False, "backward passes in captured calls are compiled; read when a function is wrapped"),
    "debug_dir_root": (os.path.join(os.getcwd(), "torch_compile_debug"), "where folders of debugging output are made"),
    "do_not_emit_runtime_asserts": (
        os.environ.get("TORCH_DYNAMO_DO_NOT_EMIT_RUNTIME_ASSERTS", "0") == "1", "exported graphs check nothing of numbers",
    ),
    "dynamic_values": ("", "sizes and integers with these values, separated by commas, are symbols"),
    "dynamic_sources": ("", "tensors and integers with these names, separated by commas, have symbols for sizes and values"),
    "error_on_nested_fx_trace": (True, "symbolic tracing of a captured function by torch.fx raises"),
    "error_on_recompile": (False, "capturing a second time from one place raises RecompileError"),
    "fail_on_recompile_limit_hit": (False, "reaching the limit raises"),
    "force_nn_module_property_static_shapes": (True, "tensors of modules have sizes that are numbers"),
    "force_parameter_static_shapes": (True, "parameters have sizes that are numbers"),
    "inline_invoke_subgraph": (False, "nested compile regions are parts of the graph that calls them"),
    "inline_single_use_invoke_subgraph": (True, "and such as are called once"),
    "install_free_tensors": (False, "parameters and buffers of modules are attributes of graphs"),
    "install_free_tensors_for_export": (True, "tensors that are no arguments become attributes of what is exported"),
    "log_compilation_metrics": (True, "records of what is compiled go to the log refimpl.capture, at level DEBUG"),
    "ignore_logging_functions": (set(), "calls of them are left out, as if the program had none"),
    "log_file_name": (None, "a file that messages are added to"),
    "nested_graph_breaks": (False, "an inlined function continues after a break in it; without, the graph ends before its call"),
    "raise_on_ctx_manager_usage": (True, "`with optimize(...)` raises"),
    "recompile_limit": (8, "segments of one place; past it calls that fit none run without"),
    "repro_after": (
        os.environ.get("TORCHDYNAMO_REPRO_AFTER"),
        'with "dynamo", a script is written for a graph that a backend fails on; "aot" has no effect, as for backends other '
        "than inductor",
    ),
    "repro_forward_only": (os.environ.get("TORCHDYNAMO_REPRO_FORWARD_ONLY") == "1", "values are compared without gradients"),
    "repro_ignore_non_fp": (os.environ.get("TORCHDYNAMO_REPRO_IGNORE_NON_FP") == "1", "and only those of floats"),
    "repro_level": (
        int(os.environ.get("TORCHDYNAMO_REPRO_LEVEL", "2")),
        "1: repro.py runs a graph whose backend raises; 2: minifier_launcher.py makes it smaller; 3: it is written for every "
        "graph; 4: for one whose values differ",
    ),
    "repro_tolerance": (1e-3, "how far values may differ there"),
    "reorderable_logging_functions": (set(), "calls of them with tensors, numbers and constants are made after the graph"),
    "specialize_float": (False, "floats are constants"),
    "specialize_int": (False, "integers are constants"),
    "suppress_errors": (False, "what capture or a backend raises makes the function run without"),
    "disable": (False, 'functions run without being captured anew'),
    "nontraceable_tensor_subclasses": (set(), "graphs end before tensors of these classes"),
    "only_allow_pt2_compliant_ops": (False, 'a graph ends before a custom operator without the tag pt2_compliant_tag'),
    "replay_side_effects": (True, "changes of the program's objects are applied after the graph"),
    "side_effect_replay_policy": ('info', '"warn" warns of changes to objects of the program, "error" raises RuntimeError'),
    "trace_numpy": (True, 'functions of numpy are captured'),
    "verbose": (False, "warnings are given as often as there is reason"),
    "verify_correctness": (False, "what a backend gives is run beside the graph when it is made"),
} | {name: (default, f"accepted: {reason}") for name, (default, reason) in ACCEPTED.items()}  # fmt: skip
_ALIASES = MappingProxyType(
    {
        "cache_size_limit": "recompile_limit",
        "accumulated_cache_size_limit": "accumulated_recompile_limit",
        "fail_on_cache_limit_hit": "fail_on_recompile_limit_hit",
        "skip_code_recursive_on_cache_limit_hit": "skip_code_recursive_on_recompile_limit_hit",
        "ignore_logger_methods": "ignore_logging_functions",
    }
)
_METHODS = (
    "patch", "describe", "to_dict", "shallow_copy_dict", "get_config_copy", "load_config", "codegen_config",
)  # fmt: skip
_WITHOUT_EFFECT = "accepted: "
_LOCK = threading.RLock()


class CaptureConfig:
    """The settings as attributes. Reading or writing an unknown name raises AttributeError that lists the known names.

    A setting that is accepted for upstream's sake warns when it gets another value than the usual one.
    """

    __slots__ = ("_values",)

    def __init__(self) -> None:
        fresh = {name: copy.copy(value) for name, (value, _) in _SETTINGS.items()}
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
        usual, text = _SETTINGS[name]
        if text.startswith(_WITHOUT_EFFECT) and value != usual and value != self._values[name]:
            why = text.removeprefix(_WITHOUT_EFFECT)
            warnings.warn(f"config.{name} = {value!r} changes nothing: {why}", UserWarning, stacklevel=2)
        self._values[name] = value

    def __delattr__(self, name: str) -> None:
        """Restores the default. mock.patch deletes a setting to undo its change."""
        name = _ALIASES.get(name, name)
        if name not in _SETTINGS:
            raise _unknown(name)
        self._values[name] = copy.copy(_SETTINGS[name][0])

    def __dir__(self) -> list[str]:
        return sorted([*_SETTINGS, *_ALIASES, *_METHODS])

    def describe(self, name: str) -> str:
        """What a setting does, in one sentence."""
        if (name := _ALIASES.get(name, name)) not in _SETTINGS:
            raise _unknown(name)
        return _SETTINGS[name][1]

    def to_dict(self) -> dict[str, Any]:
        """The settings and their values; sets, lists and dictionaries are copies."""
        return {name: copy.copy(value) for name, value in self._values.items()}

    shallow_copy_dict = get_config_copy = to_dict

    def load_config(self, saved: dict[str, Any]) -> None:
        """Gives settings the values of such a dictionary. Raises AttributeError for an unknown name."""
        for name, value in saved.items():
            setattr(self, name, value)

    def codegen_config(self) -> str:
        """The lines of Python that set what differs from the defaults."""
        changed = [name for name, value in self._values.items() if value != _SETTINGS[name][0]]
        return "\n".join(f"config.{name} = {self._values[name]!r}" for name in changed)

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
