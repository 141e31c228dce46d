"""Kernels compiled to machine code without a GPU: what the compiler refuses, and what ptxas says of the rest.

Counterpart: torch/_inductor/async_compile.py, triton/compiler/compiler.py compile
Differs: compiles in a worker process, where Triton is not interpreting; results are kept on disk by what they depend on.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import importlib
import io
import json
import linecache
import os
import queue
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refimpl.codegen.emulator import KernelError, WouldNotCompile
from refimpl.codegen.kernel import Kernel, check_constants
from refimpl.codegen.levels.transport import constant_from_json, constant_to_json, kernel_from_json, kernel_to_json
from refimpl.codegen.levels.triton_version import language_type, require_triton
from refimpl.codegen.levels.worker import Worker, serve

TIMEOUT_S = 120.0  # for one kernel
FEWEST_FOR_A_WORKER = 4
"""The number of kernels that justifies another process."""

_workers = [Worker("refimpl.codegen.levels.cubin", interpret=False)]  # the first one serves unless several are needed
_FORMAT = 2  # version of the cache files' format


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledKernel:
    """The result of ptxas. `spills` is in bytes per thread, `shared_memory` in bytes per program."""

    registers: int
    spills: int
    shared_memory: int
    ptx: str
    cubin: bytes
    seconds: float  # CPU time of the compilation, ptxas included


def compile_to_cubin(
    kernel: Kernel,
    constants: Mapping[str, Any],
    capability: int = 90,
    *,
    fp_fusion: bool = False,
    has_aligned_tensors: bool = False,
) -> CompiledKernel:
    """Compiles for a GPU of this capability (80, 90), which need not be present. `has_aligned_tensors`: tensors start at
    multiples of 16 bytes, as allocators place them. Raises WouldNotCompile with the compiler's message."""
    (result,) = compile_batch(
        [(kernel, constants)], capability, fp_fusion=fp_fusion, has_aligned_tensors=has_aligned_tensors
    )
    if isinstance(result, KernelError):
        raise result
    return result


def compile_batch(
    kernels: Sequence[tuple[Kernel, Mapping[str, Any]]],
    capability: int = 90,
    *,
    fp_fusion: bool = False,
    has_aligned_tensors: bool = False,
) -> list[CompiledKernel | WouldNotCompile]:
    """Compiles several kernels, those not in the cache in one process per core. A kernel that does not compile gives its error in
    place of a result."""
    version = require_triton("cubin")
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    options = {"capability": capability, "fp_fusion": fp_fusion, "has_aligned_tensors": has_aligned_tensors}
    requests = [_request(kernel, constants, options, version) for kernel, constants in kernels]
    missing = {key: request for key, request in requests if not (folder / f"{key}.json").exists()}
    _ask([{"key": key, "folder": str(folder), **request} for key, request in missing.items()])
    return [_read(folder, key, kernel.name) for (key, _), (kernel, _) in zip(requests, kernels, strict=True)]


def _ask(requests: Sequence[Mapping[str, Any]]) -> None:
    """Sends each request to an idle worker, so that a compiler crash loses one kernel. Raises WorkerDied for it."""
    count = max(1, min(len(os.sched_getaffinity(0)), len(requests) // FEWEST_FOR_A_WORKER))
    while len(_workers) < count:
        _workers.append(Worker("refimpl.codegen.levels.cubin", interpret=False))
    if count == 1:
        for request in requests:
            _workers[0].ask(request, TIMEOUT_S)
        return
    waiting: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
    for request in requests:
        waiting.put(request)

    def work(worker: Worker) -> None:
        while True:
            try:
                request = waiting.get_nowait()
            except queue.Empty:
                return
            worker.ask(request, TIMEOUT_S)

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        for done in [pool.submit(work, worker) for worker in _workers[:count]]:
            done.result()


def cache_folder() -> Path:
    """The cache of compiled kernels: TORCH_ORACLE_KERNEL_CACHE, or a folder in the user's cache."""
    chosen = os.environ.get("TORCH_ORACLE_KERNEL_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(chosen) if chosen else Path(base) / "torch-oracle" / "kernels"


def _request(
    kernel: Kernel, constants: Mapping[str, Any], options: Mapping[str, Any], version: str
) -> tuple[str, dict[str, Any]]:
    check_constants(kernel, constants)
    values = {name: constant_to_json(kernel.name, name, value) for name, value in sorted(constants.items())}
    request = {"kernel": kernel_to_json(kernel), "constants": values, **options}
    facts = json.dumps([_FORMAT, version, request], sort_keys=True)
    return hashlib.blake2b(facts.encode(), digest_size=20).hexdigest(), request


def _read(folder: Path, key: str, kernel: str) -> CompiledKernel | WouldNotCompile:
    facts = json.loads((folder / f"{key}.json").read_text())
    if "error" in facts:
        return WouldNotCompile(kernel, facts["error"])
    return CompiledKernel(
        registers=facts["registers"], spills=facts["spills"], shared_memory=facts["shared_memory"], seconds=facts["seconds"],
        ptx=(folder / f"{key}.ptx").read_text(), cubin=(folder / f"{key}.cubin").read_bytes(),
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------- in the worker


def load_jit_function(kernel: Kernel) -> Any:
    """The kernel's function from a module run with the real Triton, which must not be interpreting."""
    file = f"<kernel {kernel.name} {kernel.hash}>"
    linecache.cache[file] = (len(kernel.source), None, kernel.source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": f"kernel_{kernel.hash}"}
    exec(compile(kernel.source, file, "exec"), namespace)
    return namespace[kernel.name]


def compile_source(
    kernel: Kernel, constants: Mapping[str, Any], target: Any, *, fp_fusion: bool, aligned: Iterable[int] = ()
) -> Any:
    """Triton's compiled kernel. `aligned`: positions of parameters whose values are multiples of 16."""
    compiler = importlib.import_module("triton.compiler")
    source = compiler.ASTSource(
        fn=load_jit_function(kernel),
        signature={p.name: p.type for p in kernel.parameters},
        constexprs={(i,): constants[p.name] for i, p in enumerate(kernel.parameters) if p.is_constant},
        attrs={(position,): [["tt.divisibility", 16]] for position in aligned},
    )
    options = {
        "num_warps": kernel.num_warps,
        "num_stages": kernel.num_stages,
        "enable_fp_fusion": fp_fusion,
        "debug": "tl.device_assert(" in kernel.source,  # device_assert does nothing without it
        "sanitize_overflow": False,  # integers wrap, as in eager
    }
    return compiler.compile(source, target=target, options=options)


def _answer(request: Mapping[str, Any]) -> Any:
    folder, key = Path(request["folder"]), request["key"]
    kernel = kernel_from_json(request["kernel"])
    constants = {name: constant_from_json(value, language_type) for name, value in request["constants"].items()}
    target = importlib.import_module("triton.backends.compiler").GPUTarget("cuda", request["capability"], 32)
    is_aligned = request["has_aligned_tensors"]
    aligned = [at for at, parameter in enumerate(kernel.parameters) if is_aligned and parameter.is_pointer]
    printed, files = io.StringIO(), {}
    knobs = importlib.import_module("triton.knobs")
    start = sum(os.times()[:4])
    try:
        # Triton's own cache would answer without running ptxas, which prints the statistics.
        with tempfile.TemporaryDirectory(prefix="triton-") as knobs.cache.dir, contextlib.redirect_stdout(printed):
            compiled = compile_source(kernel, constants, target, fp_fusion=request["fp_fusion"], aligned=aligned)
    except Exception as error:
        facts: dict[str, Any] = {"error": _reason(error)}
    else:
        seconds = sum(os.times()[:4]) - start
        log = printed.getvalue()
        facts = {"seconds": seconds, "shared_memory": compiled.metadata.shared, **_statistics(log)}
        files = {"ptx": compiled.asm["ptx"].encode(), "cubin": compiled.asm["cubin"]}
    for suffix, data in {**files, "json": json.dumps(facts).encode()}.items():  # the last one says that all are there
        replace_file(folder / f"{key}.{suffix}", data)
    return {"key": key}


def _reason(error: BaseException) -> str:
    """The compiler's message, then its location."""
    where, caret, what = str(error).strip().rpartition("^\n")
    parts = [f"{what}\n{where}{caret.strip()}" if what and caret else str(error).strip() or type(error).__name__]
    cause = error.__cause__
    while cause is not None:
        parts.append(f"{type(cause).__name__}: {cause}".strip())
        cause = cause.__cause__
    return "\n".join(dict.fromkeys(parts))


def _statistics(log: str) -> dict[str, int]:
    registers = re.findall(r"Used (\d+) registers", log)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", log)
    return {"registers": int(registers[-1]) if registers else -1, "spills": sum(map(int, spills))}


def replace_file(path: Path, data: bytes) -> None:
    """Writes a file atomically, so that other processes never read half of it."""
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(data)
    Path(file.name).replace(path)


def serve_worker(arguments: list[str]) -> None:
    """The worker process: see Worker."""
    knobs = importlib.import_module("triton.knobs")
    knobs.nvidia.dump_ptxas_log = True  # only its statistics are used
    serve(_answer, arguments)
