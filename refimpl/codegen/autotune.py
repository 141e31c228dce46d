"""Chooses the configuration that a kernel is launched with: measured at the first launch for sizes of a kind, and cached on disk.

Counterpart: torch/_inductor/runtime/triton_heuristics.py CachingAutotuner, torch/_inductor/runtime/autotune_cache.py
Differs: chooses among the few configurations that are valid for the kernel's source; a cache file is for one device and one set
of versions.

The choice affects results only by the order of summation. Trials write into scratch memory.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import statistics
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from refimpl.codegen.configurations import Configuration
from refimpl.codegen.emulator import KernelError
from refimpl.codegen.kernel import Kernel, Launcher
from refimpl.codegen.levels.cubin import cache_folder, replace_file

FORMAT = 1  # version of the cache files' format
ROUNDS = 7
_CACHE_BYTES = 64 << 20  # L2 size assumed for a device that does not report one


@dataclass(frozen=True, slots=True)
class Trial:
    """One of several ways to do the same work. `prepare` runs before each `run`, and is not timed."""

    prepare: Callable[[], object]
    run: Callable[[], object]


# Milliseconds of each trial; infinity for one that cannot run.
Bench = Callable[[Sequence[Trial]], list[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The device and the versions that a choice is valid for."""

    device: str
    capability: str
    torch: str
    triton: str

    @property
    def key(self) -> str:
        """The name of the cache file."""
        return hashlib.blake2b(json.dumps([FORMAT, asdict(self)]).encode(), digest_size=12).hexdigest()


def machine_of(device: torch.device) -> Machine:
    """Describes a tensor's device and the installed versions."""
    is_gpu = device.type == "cuda"
    triton = importlib.metadata.version("triton") if importlib.util.find_spec("triton") is not None else "none"
    return Machine(
        device=torch.cuda.get_device_name(device) if is_gpu else device.type,
        capability=".".join(map(str, torch.cuda.get_device_capability(device))) if is_gpu else "none",
        torch=torch.__version__,
        triton=triton,
    )


class ChoicesState:
    """The choices for one machine by key, in memory and on disk. A cache file that is damaged, or for another machine or format,
    is ignored with a warning."""

    def __init__(self, machine: Machine, folder: Path | None = None) -> None:
        self.machine = machine
        self.path = (cache_folder() if folder is None else folder) / "choices" / f"{machine.key}.json"
        self._choices: dict[str, Any] = self._read()

    def find(self, key: str, names: Sequence[str]) -> int | None:
        """The index of the cached choice among these names. None if there is none, or if it is not among them."""
        found = self._choices.get(key)
        if found is None:
            return None
        if not isinstance(found, dict) or found.get("choice") not in names:
            warnings.warn(
                f"{self.path}: ignores a choice that is not among the configurations: {found!r}", stacklevel=2
            )
            return None
        return list(names).index(found["choice"])

    def keep(self, key: str, names: Sequence[str], milliseconds: Sequence[float]) -> int:
        """Caches the fastest, merged with what other processes have cached meanwhile. Returns its index."""
        best = min(range(len(names)), key=lambda at: milliseconds[at])
        measured = {name: time for name, time in zip(names, milliseconds, strict=True) if time != float("inf")}
        self._choices = {**self._read(), **self._choices, key: {"choice": names[best], "milliseconds": measured}}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"format": FORMAT, "machine": asdict(self.machine), "choices": self._choices}, indent=1)
        replace_file(self.path, text.encode())
        return best

    def _read(self) -> dict[str, Any]:
        if not self.path.exists():
            return {}
        try:
            content = json.loads(self.path.read_text())
        except (OSError, ValueError) as error:
            warnings.warn(f"{self.path} is damaged and ignored: {error}", stacklevel=2)
            return {}
        expected = {"format": FORMAT, "machine": asdict(self.machine)}
        if not isinstance(content, dict) or {name: content.get(name) for name in expected} != expected:
            warnings.warn(f"{self.path} is of another format or machine, and ignored", stacklevel=2)
            return {}
        choices = content.get("choices")
        return choices if isinstance(choices, dict) else {}


class TunerState:
    """Measures trials. `bench` times them; by default CUDA events do, and on other devices nothing is measured and the first
    configuration is launched."""

    def __init__(self, bench: Bench | None = None, folder: Path | None = None) -> None:
        self._bench = bench
        self._folder = folder
        self._choices: dict[torch.device, ChoicesState] = {}

    def measures(self, device: torch.device) -> bool:
        """Whether trials on this device are measured now."""
        return self._bench is not None or (device.type == "cuda" and not torch.cuda.is_current_stream_capturing())

    def choose(
        self,
        key: str,
        device: torch.device,
        names: Sequence[str],
        trials: Callable[[], Sequence[Trial]],
        *,
        otherwise: int = 0,
    ) -> int:
        """The index of the fastest of several ways, which have these names. `otherwise` if nothing is measured, or if none can
        run."""
        if not self.measures(device):
            return otherwise
        if device not in self._choices:
            self._choices[device] = ChoicesState(machine_of(device), self._folder)
        choices = self._choices[device]
        found = choices.find(key, names)
        if found is not None:
            return found
        made = trials()
        milliseconds = (self._bench or bench_on_gpu)(made) if made else []
        if min(milliseconds, default=float("inf")) == float("inf"):
            return otherwise
        return choices.keep(key, names, milliseconds)


class TunedLauncherState:
    """Launches a kernel with the configuration that was fastest for similar sizes. Takes one grid per configuration, in order."""

    def __init__(
        self,
        kernel: Kernel,
        configurations: Sequence[Configuration],
        launchers: Sequence[Launcher],
        written: Sequence[int],
        tuner: TunerState,
    ) -> None:
        self.kernel = kernel
        self.configurations = configurations
        self.launchers = launchers
        self.written = written
        self.tuner = tuner
        self._known: dict[Any, int] = {}

    def __call__(self, grids: tuple[Any, ...], arguments: Sequence[Any]) -> None:
        """`arguments` are those of a launch. Tensors at the positions in `written` are written."""
        chosen = self._known.get(grids[0])
        if chosen is None:
            chosen = self._known[grids[0]] = self._choose(grids, arguments)
        self.launchers[chosen](grids[chosen], arguments)

    def _choose(self, grids: tuple[Any, ...], arguments: Sequence[Any]) -> int:
        names = [name_of(configuration) for configuration in self.configurations]
        sizes = [argument.bit_length() for argument in arguments if isinstance(argument, int)]
        key = json.dumps([self.kernel.hash, [size.bit_length() for size in grids[0]], sizes, names])
        digest = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        device = next(argument.device for argument in arguments if isinstance(argument, torch.Tensor))
        return self.tuner.choose(digest, device, names, lambda: self._trials(grids, arguments))

    def _trials(self, grids: tuple[Any, ...], arguments: Sequence[Any]) -> list[Trial]:
        scratch, prepare = scratch_arguments(arguments, self.written)
        return [
            Trial(prepare, lambda launcher=launcher, grid=grid: launcher(grid, scratch))
            for launcher, grid in zip(self.launchers, grids, strict=True)
        ]


def name_of(configuration: Configuration) -> str:
    """The name under which a configuration is cached."""
    blocks = ", ".join(f"{name}={length}" for name, length in configuration.blocks)
    return f"{blocks}, {configuration.num_warps} warps, {configuration.num_stages} stages"


def scratch_arguments(arguments: Sequence[Any], written: Sequence[int]) -> tuple[list[Any], Callable[[], None]]:
    """Arguments with copies in place of the written tensors, and a function that restores the copies' values. Tensors that share
    memory get one copy."""
    copies: list[tuple[torch.Tensor, torch.Tensor]] = []
    made = list(arguments)
    for position in written:
        original = arguments[position]
        if made[position] is not original:
            continue
        copy = torch.empty_strided(original.shape, original.stride(), dtype=original.dtype, device=original.device)
        copies.append((copy, original))
        for at, other in enumerate(arguments):
            if isinstance(other, torch.Tensor) and other.data_ptr() == original.data_ptr():
                made[at] = copy.as_strided(other.shape, other.stride(), 0)

    def prepare() -> None:
        for copy, original in copies:
            copy.copy_(original)

    return made, prepare


# ----------------------------------------------------------------------------------------------------------------- measuring


def launch_errors() -> tuple[type[Exception], ...]:
    """Exceptions of launches that need more resources than the device has."""
    if importlib.util.find_spec("triton") is None:
        return (KernelError,)
    return KernelError, importlib.import_module("triton.runtime.errors").OutOfResources


def bench_on_gpu(trials: Sequence[Trial], rounds: int = ROUNDS) -> list[float]:
    """Median times by CUDA events. The trials alternate, each with a cold L2 cache."""
    device = torch.cuda.current_device()
    size = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 0) or _CACHE_BYTES
    flush = torch.empty(2 * size, dtype=torch.int8, device="cuda")

    def measure(trial: Trial) -> Callable[[], float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        trial.prepare()
        flush.zero_()
        start.record()
        trial.run()
        end.record()
        return lambda: start.elapsed_time(end)

    return by_turns(trials, measure, torch.cuda.synchronize, rounds)


def by_turns(
    trials: Sequence[Trial], measure: Callable[[Trial], Callable[[], float]], wait: Callable[[], None], rounds: int
) -> list[float]:
    """Median times over rounds that alternate between the trials; infinity for a trial whose first run raises."""
    runs: dict[int, list[float]] = {}
    for at, trial in enumerate(trials):
        try:
            trial.prepare()
            trial.run()
        except launch_errors():
            continue
        runs[at] = []
    wait()
    for _ in range(rounds):
        pending = {at: measure(trials[at]) for at in runs}
        wait()
        for at, elapsed in pending.items():
            runs[at].append(elapsed())
    return [statistics.median(runs[at]) if at in runs else float("inf") for at in range(len(trials))]


@functools.cache
def default_tuner() -> TunerState:
    """The tuner of this process: measures on GPUs, and caches choices beside compiled kernels."""
    return TunerState()
