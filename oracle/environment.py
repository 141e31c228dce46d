"""Environment of a run: the fingerprint that is recorded, and checks of Python, torch and the compiler before it starts.

`fingerprint` does not import torch, for the parent process; `torch_fingerprint` runs in a worker and uses torch.
Only environment variables with listed prefixes are recorded, and never one whose name looks like that of a secret.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from oracle.errors import UsageError

PYTHON_RANGE = ((3, 10), (3, 13))  # both ends are supported
TORCH_RANGE = ((2, 11), (2, 14))  # the upper end is not supported

LABEL_VARIABLE = "TORCH_ORACLE_LABEL"  # a version that only the user knows: a driver, a simulator, a build

_PACKAGES = ("torch", "triton", "numpy", "transformers", "torch-oracle")
_ISA_FLAGS = (
    "avx2",
    "avx512f",
    "avx512_bf16",
    "avx512_fp16",
    "avx512_vnni",
    "amx_tile",
    "amx_bf16",
    "fma",
    "asimd",
    "sve",
)
_VARIABLE_PREFIXES = (
    "TORCH",
    "PYTORCH_",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "TRITON_",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_LAUNCH_BLOCKING",
    "CUBLAS_",
    "NVIDIA_TF32_OVERRIDE",
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_",
    "DNNL_",
    "LD_PRELOAD",
    "CXX",
    "CXXFLAGS",
    "CFLAGS",
)
_SECRET = re.compile(r"TOKEN|KEY|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


def fingerprint() -> dict[str, Any]:
    """The machine and its software as JSON, without importing torch. Takes about ten milliseconds."""
    return {
        "versions": {name: package_version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "python_implementation": platform.python_implementation(),
        "os": platform.system(),
        "os_release": platform.release(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
        "cpu_model": _cpu_field("model name") or platform.processor(),
        "cpu_flags": _cpu_flags(),
        "cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "memory_bytes": _memory_bytes(),
        "compiler": _compiler_version(),
        "variables": recorded_variables(os.environ),
        **({"label": label} if (label := os.environ.get(LABEL_VARIABLE)) else {}),
    }


def torch_fingerprint() -> dict[str, Any]:
    """Torch's build, devices and thread counts as JSON. For workers, since it imports torch."""
    import torch  # noqa: PLC0415  (takes seconds; the parent process must not import it)

    devices = []
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            devices.append(
                {
                    "name": properties.name,
                    "capability": f"{properties.major}.{properties.minor}",
                    "memory_bytes": properties.total_memory,
                    "multiprocessors": properties.multi_processor_count,
                }
            )
    return {
        "torch": torch.__version__,
        "torch_git": torch.version.git_version,
        "torch_debug": bool(torch.version.debug),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if torch.cuda.is_available() else None,
        "cuda_driver": _cuda_driver() if devices else None,
        "devices": devices,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "mkl": torch.backends.mkl.is_available(),
        "mkldnn": torch.backends.mkldnn.is_available(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def torch_fingerprint_task(payload: Mapping[str, Any], progress: Callable[[str], None]) -> dict[str, Any]:
    """Task function: `torch_fingerprint` in a worker."""
    progress("fingerprint")
    return torch_fingerprint()


def check_supported(*, python: tuple[int, int] | None = None, torch_version: str | None = None) -> None:
    """Raises UsageError if Python or the installed torch is outside the supported range. Does not import torch.

    Tests pass versions in place of the installed ones.
    """
    python = python or sys.version_info[:2]
    first, last = PYTHON_RANGE
    if not first <= python <= last:
        raise UsageError(
            seen=f"Python {_dotted(python)}",
            expected=f"Python {_dotted(first)} to {_dotted(last)}",
            do="make a virtual environment with a supported Python",
        )
    found = torch_version or package_version("torch")
    low, high = TORCH_RANGE
    wanted = f"torch >= {_dotted(low)} and < {_dotted(high)}"
    if found is None:
        raise UsageError(seen="no torch installed", expected=wanted, do="pip install torch")
    match = re.match(r"(\d+)\.(\d+)", found)
    if match is None or not low <= (int(match[1]), int(match[2])) < high:
        raise UsageError(
            seen=f"torch {found}",
            expected=wanted,
            do="install a supported torch, or a torch-oracle version that supports this one",
        )


def find_compiler() -> str:
    """Path of the C++ compiler that generated code is built with: $CXX, else g++. Raises UsageError if there is none."""
    wanted = os.environ.get("CXX") or "g++"
    command = wanted.split()[0]
    found = shutil.which(command)
    if found is None:
        source = "named by $CXX" if os.environ.get("CXX") else "on PATH"
        raise UsageError(
            seen=f"no C++ compiler: {command!r} {source} was not found",
            expected="g++ (or the compiler $CXX names), which inductor builds its CPU kernels with",
            do="install it (Debian, Ubuntu: apt-get install g++; Fedora: dnf install gcc-c++), "
            "or leave out the subjects that need it: --subject aot_eager",
        )
    return found


def package_version(name: str) -> str | None:
    """Version of an installed distribution, None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def recorded_variables(variables: Any) -> dict[str, str]:
    """The environment variables that affect results, sorted; never one whose name looks like that of a secret."""
    return {
        name: variables[name]
        for name in sorted(variables)
        if name.startswith(_VARIABLE_PREFIXES) and not _SECRET.search(name)
    }


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(part) for part in version)


def _cpu_field(field: str) -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == field:
            return value.strip()
    return ""


def _cpu_flags() -> list[str]:
    present = set((_cpu_field("flags") or _cpu_field("Features")).split())
    return [flag for flag in _ISA_FLAGS if flag in present]


def _usable_cores() -> int | None:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _memory_bytes() -> int | None:
    """Physical memory, or the control group's limit if that is smaller."""
    match = re.search(r"MemTotal:\s*(\d+) kB", _read("/proc/meminfo"))
    total = int(match[1]) * 1024 if match else None
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    if limit.isdigit():
        total = min(total, int(limit)) if total else int(limit)
    return total


def _compiler_version() -> str | None:
    try:
        return _first_line([find_compiler(), "--version"])
    except UsageError:
        return None


def _cuda_driver() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    return _first_line(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])


def _first_line(command: list[str]) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = result.stdout.splitlines()
    return lines[0].strip() if lines else None


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:  # not Linux, or a sandbox; the field stays empty
        return ""
