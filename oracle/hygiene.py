"""Process state that a case must not change: snapshot, compare, restore.

A subject that changes the default dtype, a thread count or a flag of the floating-point unit would make later cases in its worker
wrong, so each case runs between a `snapshot` and `differences`. Reading everything takes about 200 microseconds. `restore` puts
back what it can; if differences remain, the worker is replaced.

Not covered: the frame-evaluation hook (no public way to read it), FTZ in other threads, and the environment as C code sees it.
RNG states are not part of it, since every case seeds the generators first (see `rng_digest`).
"""

from __future__ import annotations

import builtins
import copy
import gc
import hashlib
import logging
import operator
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# Compilers store their cache directories, and libraries their defaults, in these variables, without effect on values.
ENVIRONMENT_MAY_CHANGE = (
    "TORCHINDUCTOR_",
    "_TORCHINDUCTOR_",
    "TORCH_COMPILE_",
    "TRITON_",
    "KMP_",
    "PYTEST_CURRENT_TEST",
    "CUDA_MODULE_LOADING",
    "TOKENIZERS_PARALLELISM",
)

# Modules and classes whose functions nobody may replace.
_PATCHABLE: tuple[Any, ...] = (
    torch, torch.Tensor, torch.nn.Module, torch.nn.functional, torch.autograd, torch.autograd.Function,
    builtins, random, time, copy,
)  # fmt: skip
_C: Any = torch._C  # has no type stubs
_autograd: Any = getattr(torch._C, "_autograd")
_functorch: Any = getattr(torch._C, "_functorch")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)
_SMALLEST_NORMAL = sys.float_info.min
_HALF_EPSILON = sys.float_info.epsilon / 2
_AUTOCAST_DEVICES = ("cpu", "cuda")
_TORCH_DIRECTORY = os.path.dirname(torch.__file__) + os.sep
_NO_CODE = compile("", "", "exec")
_FUNCTIONS: Any = (Callable, type, staticmethod, classmethod, property)
_PRECISION = type(getattr(torch.backends.mkldnn, "matmul"))  # not public
_ATTENTION = [name.removesuffix("_sdp_enabled") for name in dir(torch.backends.cuda) if name.endswith("_sdp_enabled")]
_GONE, _INHERITED = "nothing", "what it inherits"
_held_guards: list[Any] = []  # contexts entered to undo a leaked one; leaving them would restore the leaked state


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One value per probe, in the order of `_PROBES`. Equal if and only if no probe differs."""

    values: tuple[Any, ...]

    def __getitem__(self, name: str) -> Any:
        return self.values[_POSITIONS[name]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Probe:
    name: str  # as in the message: "default dtype is torch.float64, but should be torch.float32"
    read: Callable[[], Any]
    write: Callable[[Any], object] | None = None  # None: cannot be put back from Python
    differences: Callable[[str, Any, Any], list[str]] | None = None  # None: values are compared with ==


def snapshot() -> ProcessState:
    """Read the state of this process and thread."""
    return ProcessState(tuple([probe.read() for probe in _PROBES]))


def differences(before: ProcessState, after: ProcessState) -> tuple[str, ...]:
    """One line for each change: "default dtype is torch.float64, but should be torch.float32"."""
    found: list[str] = []
    for probe, old, new in zip(_PROBES, before.values, after.values, strict=True):
        found += _compare(probe, old, new)
    return tuple(found)


def restore(state: ProcessState) -> None:
    """Restore what differs from `state`, as far as possible. A new snapshot shows what could not be restored."""
    for _ in range(
        2
    ):  # some settings change others (inference mode changes grad mode, matmul precision the TF32 flags)
        for probe, old in zip(_PROBES, state.values, strict=True):
            if probe.write is not None and _compare(probe, old, probe.read()):
                probe.write(old)


def seed_everything(seed: int) -> None:
    """Seed every global generator: torch on all devices, `random`, NumPy. `seed` is any non-negative integer."""
    # torch.manual_seed would queue the seed, with a formatted stack, for every kind of device that is missing.
    torch.default_generator.manual_seed(seed % 2**63)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(seed % 2**63)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def rng_digest() -> str:
    """A digest of the state of each global generator: "cpu=9f... python=... numpy=... cuda:0=..."."""
    version, numbers, gauss = random.getstate()
    words = [
        f"cpu={_digest(torch.get_rng_state().numpy().tobytes())}",
        f"python={_digest(f'{version}{hash(numbers)}{gauss}'.encode())}",  # hashes of integers are the same everywhere
        f"numpy={_numpy_digest()}",
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            words.append(f"cuda:{index}={_digest(state.numpy().tobytes())}")
    return " ".join(words)


def _compare(probe: _Probe, old: Any, new: Any) -> list[str]:
    if old is new or old == new:
        return []
    return probe.differences(probe.name, old, new) if probe.differences else [_says(probe.name, new, old)]


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def _numpy_digest() -> str:
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return _digest(np.asarray(keys).tobytes() + f"{position}{has_gauss}{gauss}".encode())


def _says(what: str, new: Any, old: Any) -> str:
    return f"{what} is {new!s:.200}, but should be {old!s:.200}"


def _read_default_device() -> tuple[str, bool]:
    # A default device that was set is a function mode, so "cpu" by default and "cpu" as set are two states. The public getter
    # makes a tensor, which a leaked mode may intercept.
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return ("cpu", False) if context is None else (str(context.device), True)


def _write_default_device(value: tuple[str, bool]) -> None:
    torch.set_default_device(value[0] if value[1] else None)


def _write_inference_mode(is_on: bool) -> None:
    guard = torch.inference_mode(is_on)
    guard.__enter__()
    _held_guards.append(guard)


def _write_anomaly(value: tuple[bool, bool]) -> None:
    torch.autograd.set_detect_anomaly(value[0], check_nan=value[1])


def _read_deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _write_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _read_matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the old and the new flags contradict each other
        return "inconsistent"


def _attribute(name: str, owner: Any, attribute: str) -> _Probe:
    return _Probe(
        name=name, read=lambda: getattr(owner, attribute), write=lambda value: setattr(owner, attribute, value)
    )


def _settings() -> Iterator[_Probe]:
    """The settings of torch.backends and its parts, but `allow_tf32`, an older name of `fp32_precision`."""
    modules = [
        (name, module)
        for name, module in sys.modules.items()
        if name.startswith("torch.backends") and isinstance(module, torch.backends.PropModule)
    ]
    for name, module in modules:
        kinds = {key: value for part in type(module).__mro__ for key, value in vars(part).items()}
        for key, kind in kinds.items():
            if type(kind).__name__ == "ContextProp" and key != "allow_tf32":  # there are two classes of this name
                yield _attribute(f"{name}.{key}", module, key)
            elif isinstance(kind, _PRECISION):
                yield _attribute(f"{name}.{key}.fp32_precision", kind, "fp32_precision")


def _read_autocast() -> tuple[Any, ...]:
    devices = [(torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in _AUTOCAST_DEVICES]
    torch.autocast_increment_nesting()
    return (*devices, torch.is_autocast_cache_enabled(), torch.autocast_decrement_nesting())


def _write_autocast(value: tuple[Any, ...]) -> None:
    for name, (is_enabled, dtype) in zip(_AUTOCAST_DEVICES, value[:-2], strict=True):
        torch.set_autocast_enabled(name, is_enabled)
        torch.set_autocast_dtype(name, dtype)
    torch.set_autocast_cache_enabled(value[-2])
    # Within a context that is never left, casts of parameters are kept, and later contexts of another dtype use them.
    torch.autocast_increment_nesting()
    while torch.autocast_decrement_nesting() > value[-1]:
        torch.clear_autocast_cache()
    for _ in range(value[-1] - _read_autocast()[-1]):
        torch.autocast_increment_nesting()


def _flushes_denormals() -> bool:
    return _SMALLEST_NORMAL * 0.5 == 0.0  # torch's kernels run in this thread's floating-point environment


def _rounding_mode() -> str:
    up, down = 1.0 + _HALF_EPSILON, 1.0 - _HALF_EPSILON / 2  # both are ties, and go to 1.0 when rounding to nearest
    return "to nearest" if up == down == 1.0 else "upward" if up > 1.0 else "downward or to zero"


def _pop_modes(depth: Callable[[], int], pop: Callable[[], object]) -> Callable[[int], None]:
    def write(wanted: int) -> None:
        while depth() > wanted:
            pop()

    return write


def _read_saved_tensor_hooks() -> tuple[bool, Any]:
    return _autograd._saved_tensors_hooks_is_enabled(), _autograd._top_saved_tensors_default_hooks(True)


def _write_saved_tensor_hooks(value: tuple[bool, Any]) -> None:
    if value[0]:
        _autograd._saved_tensors_hooks_enable()
    top = _autograd._top_saved_tensors_default_hooks(True)
    while top is not None and top != value[1]:
        _autograd._pop_saved_tensors_default_hooks()
        top = _autograd._top_saved_tensors_default_hooks(True)


def _functorch_level() -> int:
    level = _functorch.maybe_current_level()
    return 0 if level is None else level


def _read_dispatch_keys() -> tuple[int, int]:
    included, excluded = _C._dispatch_tls_local_include_set(), _C._dispatch_tls_local_exclude_set()
    return included.raw_repr(), excluded.raw_repr()


def _write_dispatch_keys(value: tuple[int, int]) -> None:
    included, excluded = (_C.DispatchKeySet.from_raw_repr(keys) for keys in value)
    guard = _C._ForceDispatchKeyGuard(included, excluded)
    guard.__enter__()
    _held_guards.append(guard)


def _dispatch_key_differences(name: str, old: tuple[int, int], new: tuple[int, int]) -> list[str]:
    found = []
    for what, o, n in zip(("included", "excluded"), old, new, strict=True):
        if o != n:
            old_keys, new_keys = (_C.DispatchKeySet.from_raw_repr(keys) for keys in (o, n))
            found.append(_says(f"set of {what} {name}", new_keys, old_keys))
    return found


def _warning_differences(name: str, old: list[Any], new: list[Any]) -> list[str]:
    """Sweeping changes of the warning filters. Libraries add filters for their own warnings when they are imported."""
    found = [f"a warning filter {entry!r:.150} is gone, but should be there" for entry in old if entry not in new]
    for entry in new:
        action, message, category, module, _ = entry
        if entry not in old and message is None and module is None and category is Warning:
            found.append(f"a warning filter {action!r} for all warnings is set, but should not be")
    return found


def _write_warnings(filters: list[Any]) -> None:
    warnings.resetwarnings()  # also invalidates the registries that modules keep
    warnings.filters[:] = filters  # pyright: ignore  (a list at run time)


def _recursion_differences(name: str, old: int, new: int) -> list[str]:
    """A lowered recursion limit. Compilers raise it on import, which harms nothing."""
    return [_says(name, new, old)] if new < old else []


def _environment_differences(name: str, old: dict[str, str], new: dict[str, str]) -> list[str]:
    found = []
    for key in _changed_variables(old, new):  # names only: values may be secrets
        verb = "changed" if key in old and key in new else "set" if key in new else "removed"
        found.append(f"environment variable {key} is {verb}, but should be as before")
    return found


def _changed_variables(old: dict[str, str], new: dict[str, str]) -> list[str]:
    keys = sorted(old.keys() | new.keys())
    return [key for key in keys if old.get(key) != new.get(key) and not key.startswith(ENVIRONMENT_MAY_CHANGE)]


def _write_environment(value: dict[str, str]) -> None:
    for key in _changed_variables(value, os.environ.copy()):
        if key in value:
            os.environ[key] = value[key]
        else:
            del os.environ[key]


def _write_signals(handlers: tuple[Any, ...]) -> None:
    if threading.current_thread() is threading.main_thread():  # only it may set handlers
        for number, handler in zip(_SIGNALS, handlers, strict=True):
            if handler is not None:  # None: installed by C code, not ours to set
                signal.signal(number, handler)


def _write_gc(value: tuple[bool, tuple[int, int, int]]) -> None:
    if value[0]:
        gc.enable()
    else:
        gc.disable()
    gc.set_threshold(*value[1])


def _write_standard_streams(value: tuple[Any, ...]) -> None:
    sys.stdout, sys.stderr, sys.excepthook, sys.displayhook = value


def _stream_differences(name: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> list[str]:
    names = ("sys.stdout", "sys.stderr", "sys.excepthook", "sys.displayhook")
    return [
        f"{what} is {n!r:.80}, but should be {o!r:.80}"
        for what, o, n in zip(names, old, new, strict=True)
        if o is not n
    ]


class _Namespaces(tuple[dict[str, Any], ...]):
    """The contents of each of `_PATCHABLE`. Equal if they are the same objects, since a program may put any object there."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Namespaces) and all(map(_holds_the_same, self, other))

    __hash__ = None  # type: ignore[assignment]


def _holds_the_same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one.values(), other.values()))


def _read_functions() -> _Namespaces:
    return _Namespaces([vars(owner).copy() for owner in _PATCHABLE])


def _is_patched(original: Any, found: Any) -> bool:
    """Whether a function was replaced, other than by the wrappers that importing torch's compiler installs for good."""
    if found is original or not isinstance(original, _FUNCTIONS):
        return False
    cells = getattr(found, "__closure__", None) or ()
    is_wrapper = getattr(found, "__wrapped__", None) is original or any(
        cell.cell_contents is original for cell in cells
    )
    return not (is_wrapper and getattr(found, "__code__", _NO_CODE).co_filename.startswith(_TORCH_DIRECTORY))


def _patches(old: tuple[Any, ...], new: tuple[Any, ...]) -> Iterator[tuple[Any, str, Any, Any]]:
    """Owner, name, original and new value of each function that was replaced; _INHERITED, _GONE: the owner has none."""
    for owner, before, now in zip(_PATCHABLE, old, new, strict=True):
        if _holds_the_same(before, now):
            continue
        for name, original in before.items():
            if _is_patched(original, now.get(name, _GONE)):
                yield owner, name, original, now.get(name, _GONE)
        for name in now.keys() - before.keys() if isinstance(owner, type) else ():
            if any(name in vars(base) for base in owner.__mro__[1:]):
                yield owner, name, _INHERITED, now[name]


def _patch_differences(name: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> list[str]:
    return [f"{owner.__name__}.{what} is replaced by {n!r:.80}" for owner, what, _, n in _patches(old, new)]


def _write_patches(originals: tuple[Any, ...]) -> None:
    for owner, name, original, _ in list(_patches(originals, _read_functions())):
        if original is _INHERITED:
            delattr(owner, name)
        else:
            setattr(owner, name, original)


def _read_global_module_hooks() -> tuple[int, ...]:
    module = torch.nn.modules.module
    return tuple([len(getattr(module, name)) for name in _GLOBAL_HOOKS])


def _write_global_module_hooks(counts: tuple[int, ...]) -> None:
    for name, count in zip(_GLOBAL_HOOKS, counts, strict=True):
        hooks = getattr(torch.nn.modules.module, name)
        for key in list(hooks)[count:]:
            del hooks[key]


_GLOBAL_HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_parameter_registration_hooks",
    "_global_module_registration_hooks",
    "_global_buffer_registration_hooks",
)

# Each state has a way of its own to be read and written, which no rule gives; the settings of torch.backends follow from theirs.
# Order matters to `restore`: modes that intercept torch functions go first, grad mode after inference mode.
_PROBES: tuple[_Probe, ...] = (
    _Probe(
        name="functorch level",
        read=_functorch_level,
        write=_pop_modes(_functorch_level, lambda: _functorch.pop_dynamic_layer_stack()),
    ),
    _Probe(
        name="number of TorchDispatchModes",
        read=torch._C._len_torch_dispatch_stack,
        write=_pop_modes(torch._C._len_torch_dispatch_stack, lambda: torch._C._pop_torch_dispatch_stack(None)),
    ),
    _Probe(name="default device", read=_read_default_device, write=_write_default_device),
    _Probe(
        name="number of TorchFunctionModes",
        read=torch._C._len_torch_function_stack,
        write=_pop_modes(torch._C._len_torch_function_stack, torch._C._pop_torch_function_stack),
    ),
    _Probe(name="default dtype", read=torch.get_default_dtype, write=torch.set_default_dtype),
    _Probe(name="inference mode", read=torch.is_inference_mode_enabled, write=_write_inference_mode),
    _Probe(name="grad mode", read=torch.is_grad_enabled, write=torch._C._set_grad_enabled),
    _Probe(
        name="anomaly mode (enabled, checks NaN)",
        read=lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        write=_write_anomaly,
    ),
    _Probe(name="deterministic algorithms (enabled, warn only)", read=_read_deterministic, write=_write_deterministic),
    _attribute(
        "torch.utils.deterministic.fill_uninitialized_memory", torch.utils.deterministic, "fill_uninitialized_memory"
    ),
    _Probe(
        name="float32 matmul precision",
        read=_read_matmul_precision,
        write=lambda value: None if value == "inconsistent" else torch.set_float32_matmul_precision(value),
    ),
    _attribute("torch.backends.cuda.matmul.fp32_precision", torch.backends.cuda.matmul, "fp32_precision"),
    *_settings(),
    *(
        _Probe(
            name=f"{name} attention enabled",
            read=getattr(torch.backends.cuda, f"{name}_sdp_enabled"),
            write=getattr(torch.backends.cuda, f"enable_{name}_sdp"),
        )
        for name in _ATTENTION
    ),
    _Probe(name="autocast (cpu, cuda, cache, depth)", read=_read_autocast, write=_write_autocast),
    _Probe(name="number of threads", read=torch.get_num_threads, write=torch.set_num_threads),
    _Probe(name="number of interop threads", read=torch.get_num_interop_threads),
    _Probe(name="flush denormals", read=_flushes_denormals, write=torch.set_flush_denormal),
    _Probe(name="floating-point rounding", read=_rounding_mode),
    _Probe(name="saved-tensor hooks (enabled, top)", read=_read_saved_tensor_hooks, write=_write_saved_tensor_hooks),
    _Probe(name="global module hooks", read=_read_global_module_hooks, write=_write_global_module_hooks),
    _Probe(name="torch warns always", read=torch.is_warn_always_enabled, write=torch.set_warn_always),
    _Probe(
        name="warning filters",
        read=lambda: list(warnings.filters),
        write=_write_warnings,
        differences=_warning_differences,
    ),
    _Probe(name="logging.disable level", read=lambda: logging.root.manager.disable, write=logging.disable),
    _Probe(name="sys.settrace function", read=sys.gettrace, write=sys.settrace),
    _Probe(name="sys.setprofile function", read=sys.getprofile, write=sys.setprofile),
    _Probe(
        name="recursion limit",
        read=sys.getrecursionlimit,
        write=sys.setrecursionlimit,
        differences=_recursion_differences,
    ),
    _Probe(
        name="standard streams",
        read=lambda: (sys.stdout, sys.stderr, sys.excepthook, sys.displayhook),
        write=_write_standard_streams,
        differences=_stream_differences,
    ),
    _Probe(name="working directory", read=os.getcwd, write=os.chdir),
    _Probe(name="environment", read=os.environ.copy, write=_write_environment, differences=_environment_differences),
    _Probe(
        name="handlers of SIGINT, SIGTERM, SIGALRM",
        read=lambda: tuple([signal.getsignal(number) for number in _SIGNALS]),
        write=_write_signals,
    ),
    _Probe(
        name="garbage collector (enabled, thresholds)",
        read=lambda: (gc.isenabled(), gc.get_threshold()),
        write=_write_gc,
    ),
    _Probe(name="NumPy error state", read=np.geterr, write=lambda value: np.seterr(**value)),
    _Probe(
        name="functions of torch and Python",
        read=_read_functions,
        write=_write_patches,
        differences=_patch_differences,
    ),
    # Last: leaving modes and levels sets keys too. A compile that fails in one may leave keys with which no operator runs.
    _Probe(
        name="dispatch keys of the thread",
        read=_read_dispatch_keys,
        write=_write_dispatch_keys,
        differences=_dispatch_key_differences,
    ),
)
_POSITIONS = {probe.name: position for position, probe in enumerate(_PROBES)}
