"""The facts besides the program that the result of a trace depends on: versions, processors, modes and switches of the process.

Counterpart: torch/_inductor/codecache.py torch_key, CacheBase.get_system; AOTAutogradCacheDetails
Differs: the hash of refimpl's sources stands for its version.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import sympy
import torch
from torch.fx import config as fx_config
from torch.fx import traceback as fx_traceback

from refimpl._torch import (
    AUTOCAST_DEVICES,
    active_dispatch_modes,
    active_function_modes,
    attention_order,
    forward_mode_level,
    has_saved_tensors_hooks,
    is_inside_function_transform,
    registered_kernels,
    replays_views,
)
from refimpl.aot.options import current_settings
from refimpl.aot.partition.recomputation import current_options
from refimpl.compile_cache.bypass import Bypass, Reason
from refimpl.compile_cache.callables import Describer
from refimpl.symbolic.symbols import assumes_common_sizes
from refimpl.trace.decompositions.device_numerics import followed_device
from refimpl.trace.tracing import current_trace

FORMAT = 1  # raised by every change of what files contain that the hash of sources does not show
_SOURCES = Path(__file__).parents[1]
# Kernels for these keys do not decide what a trace records, which runs on fake tensors; and batching rules are those that torch
# registers at the first vmap of a process.
_FOR_DATA = ("Meta", "CUDA", "MPS", "XPU")
_BATCHING = "FuncTorchBatched"


@functools.cache
def source_hash() -> str:
    """The hash of refimpl's sources, tests excepted. Raises Bypass if they may be other ones than those that the process has
    loaded."""
    digest, began = hashlib.sha256(), _start_of_process()
    for path in sorted(_SOURCES.rglob("*.py")):
        relative = path.relative_to(_SOURCES)
        if relative.parts[0] != "tests":
            try:
                is_newer, content = path.stat().st_mtime > began, path.read_bytes()
            except OSError as error:  # it was removed meanwhile
                raise Bypass(Reason.CHANGED_SOURCES, relative) from error
            if is_newer:
                raise Bypass(Reason.CHANGED_SOURCES, relative)
            digest.update(f"{relative.as_posix()}\0".encode() + content + b"\0")
    return digest.hexdigest()


def _start_of_process() -> float:
    """The time when `logging` was imported. torch imports it before refimpl is imported."""
    record = logging.makeLogRecord({})
    return record.created - record.relativeCreated / 1000


def refuse_modes() -> None:
    """Raises Bypass under a mode or transform, which a trace would see, and for replaced kernels of torch's operators."""
    if current_settings().functionalize_rng_ops:
        raise Bypass(Reason.RANDOM_STATES)
    if fx_traceback.get_current_meta():
        raise Bypass(Reason.NODE_META, "an annotation of the surrounding code")
    modes = [*active_dispatch_modes(), *active_function_modes()]
    if modes or is_inside_function_transform() or forward_mode_level() >= 0 or current_trace() is not None:
        raise Bypass(Reason.MODES, ", ".join(type(mode).__name__ for mode in modes))
    for name in sorted(registered_kernels()):
        namespace, _, key = name.split("/", 2)
        if namespace == "aten" and not key.startswith((*_FOR_DATA, _BATCHING)):
            raise Bypass(Reason.OVERRIDDEN, name)


def environment_record(describer: Describer, devices: Iterable[torch.device]) -> dict[str, Any]:
    """The facts of the process that a key contains."""
    of_torch = [name for name in registered_kernels() if name.startswith(("aten/", "prims/"))]
    kernels = "\n".join(sorted(name for name in of_torch if not name.endswith(f"/{_BATCHING}")))
    return {
        "format": FORMAT,
        "refimpl": source_hash(),
        "torch": [str(torch.__version__), str(torch.version.git_version), str(torch.version.cuda)],
        "python": [sys.version, sys.byteorder, platform.machine()],
        "sympy": sympy.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
        "devices": [_device(device) for device in sorted(devices, key=str)],
        "modes": _modes(),
        "switches": _switches(),
        "fx": {name: describer.record(getattr(fx_config, name), name) for name in _fx_settings()},
        "partition": describer.record(current_options(), "the partition options"),
        "rules": [followed_device(), assumes_common_sizes()],
        "kernels": hashlib.sha256(kernels.encode()).hexdigest(),
    }


def _device(device: torch.device) -> list[Any]:
    if device.type == "cpu":
        return ["cpu"]
    if device.type != "cuda":
        raise Bypass(Reason.DEVICE, device)
    return [str(device), torch.cuda.get_device_name(device), [*torch.cuda.get_device_capability(device)]]


def _modes() -> dict[str, Any]:
    return {
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [
            [device, torch.is_autocast_enabled(device), str(torch.get_autocast_dtype(device))]
            for device in AUTOCAST_DEVICES
        ],
        "autocast_cache": torch.is_autocast_cache_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "default_dtype": str(torch.get_default_dtype()),
        "default_device": str(torch.get_default_device()),
        "view_replay": replays_views(),
        "saved_tensors_hooks": has_saved_tensors_hooks(),
        "preserves_meta": fx_traceback.has_preserved_node_meta(),
    }


def _switches() -> dict[str, Any]:
    """Switches that choose kernels, or decompositions of operators such as attention."""
    b = torch.backends
    return {
        "deterministic": [
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            getattr(torch.utils.deterministic, "fill_uninitialized_memory"),
        ],
        "matmul": [
            *_precisions(),
            str(b.cuda.matmul.allow_fp16_reduced_precision_reduction),
            str(b.cuda.matmul.allow_bf16_reduced_precision_reduction),
        ],
        "cudnn": [b.cudnn.enabled, b.cudnn.benchmark, b.cudnn.deterministic],
        "mkldnn": [b.mkldnn.enabled, b.mkldnn.is_available()],
        "attention": [
            b.cuda.flash_sdp_enabled(), b.cuda.mem_efficient_sdp_enabled(), b.cuda.math_sdp_enabled(), b.cuda.cudnn_sdp_enabled(),
            b.mha.get_fastpath_enabled(), attention_order(),
        ],
        "einsum": [b.opt_einsum.enabled, str(b.opt_einsum.strategy), b.opt_einsum.is_available()],
        "linalg": str(b.cuda.preferred_linalg_library()),
    }  # fmt: skip


def _precisions() -> list[str]:
    """Whether products may round their operands. torch raises where its older switches cannot say what the newer ones do."""
    b = torch.backends
    newer = [getattr(owner, "fp32_precision", None) for owner in (
        b, b.cuda.matmul, b.cudnn, getattr(b.cudnn, "conv", None), getattr(b.cudnn, "rnn", None), b.mkldnn,
        getattr(b.mkldnn, "matmul", None), getattr(b.mkldnn, "conv", None), getattr(b.mkldnn, "rnn", None),
    )]  # fmt: skip
    older: list[str] = []
    for read in (torch.get_float32_matmul_precision, lambda: b.cuda.matmul.allow_tf32, lambda: b.cudnn.allow_tf32):
        try:
            older.append(str(read()))
        except RuntimeError:
            older.append("that of the newer switches")
    return [*older, *map(str, newer)]


def _fx_settings() -> list[str]:
    return sorted(name for name, value in vars(fx_config).items() if not name.startswith("_") and type(value) is bool)
