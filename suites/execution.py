"""The pool of workers that runs a sweep, on this machine or on a cluster."""

from __future__ import annotations

import os
from collections.abc import Callable

from oracle.cluster import Execution, SlotSettings, open_cluster
from oracle.isolate import AfterHang, Pool, TaskPool
from oracle.isolate.settings import StartMethod
from oracle.limits import ADDRESS_SPACE_MARGIN_BYTES
from suites.registry import modules_of
from suites.request import SweepRequest

PRELOAD = ("torch", "oracle.case")
# Preloaded modules are imported once and shared by all workers, which are forked from one process: a worker that takes the place
# of one that died would import it again, and these take longer than torch. The first AOT compile with a gradient loads Inductor.
_COMPILER_PRELOAD = ("torch._dynamo", "torch._functorch.aot_autograd", "torch._inductor.compile_fx")
_KINDS_WITH_COMPILER = frozenset({"torch_compile", "backend", "compiler", "export"})


def preload_of(request: SweepRequest) -> tuple[str, ...]:
    """Modules that every worker of the sweep would import: compilers if a subject is one, and the suites."""
    kinds = {spec.kind for spec in request.spec_by_name().values()}
    compilers = _COMPILER_PRELOAD if kinds & _KINDS_WITH_COMPILER else ()
    return (*PRELOAD, *compilers, *modules_of(request.suites))


def open_pool(
    request: SweepRequest, execution: Execution, *, cache: str | None, tell: Callable[[str], None]
) -> TaskPool:
    """The pool that runs the sweep. `cache`: an empty folder for Inductor's caches; `tell` gets lines about lost nodes.

    Raises UsageError if there is no cluster.
    """
    is_cuda = request.options["device"].startswith("cuda")
    # Workers already use every core, so compile processes in each of them would not help.
    environment = {"TORCHINDUCTOR_COMPILE_THREADS": os.environ.get("TORCHINDUCTOR_COMPILE_THREADS", "1")}
    if cache is not None:
        environment["TORCHINDUCTOR_CACHE_DIR"] = cache
    start_method: StartMethod = "spawn" if is_cuda else "forkserver"
    margin = None if is_cuda else ADDRESS_SPACE_MARGIN_BYTES
    after_hang = None
    if execution.on_hang:
        after_hang = AfterHang(
            command=execution.on_hang, device=request.options["device"], timeout_s=execution.on_hang_timeout_s
        )
    if execution.resources is None:
        return Pool(
            workers=request.workers, preload=preload_of(request), start_method=start_method,
            threads_per_worker=request.threads, environment=environment, address_space_margin_bytes=margin,
            after_hang=after_hang,
        )  # fmt: skip
    settings = SlotSettings(
        workers=request.workers, preload=preload_of(request), start_method=start_method,
        threads_per_worker=request.threads, environment=environment, address_space_margin_bytes=margin,
        after_hang=after_hang,
    )  # fmt: skip
    return open_cluster(execution, settings, tell=tell)
