"""Makes graphs and Inductor's Triton code for a GPU on a machine without one, with fake CUDA tensors.

In a build of torch without CUDA, autograd has no GPU support. So graphs are traced on the CPU, and moved to the GPU before they
are compiled; a CPU operator (`_for_cpu`) stays, for both compilers. Inductor gets the properties of an H100.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import re
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

GPU = torch.device("cuda", 0)

_H100 = types.SimpleNamespace(
    name="NVIDIA H100", major=9, minor=0, multi_processor_count=132, total_memory=80 << 30, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024,
    shared_memory_per_block=48 << 10, shared_memory_per_block_optin=227 << 10, shared_memory_per_multiprocessor=228 << 10,
    L2_cache_size=50 << 20, memory_clock_rate=2619000, memory_bus_width=5120, gcnArchName="",
)  # fmt: skip


def moved(value: Any) -> Any:
    """A fake CPU tensor as a fake GPU tensor; other values unchanged."""
    mode = getattr(value, "fake_mode", None)
    if not isinstance(value, torch.Tensor) or mode is None or value.device.type != "cpu":
        return value
    with mode:
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=GPU)


def move_graph(graph_module: torch.fx.GraphModule) -> None:
    """Change the fake tensors of all nodes, and the devices that nodes name."""
    for node in graph_module.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = pytree.tree_map(moved, node.meta["val"])
        node.args, node.kwargs = pytree.tree_map_only(torch.device, lambda _: GPU, (node.args, node.kwargs))


def graph_on_gpu(graph_module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A copy of the graph on the GPU."""
    made = copy.deepcopy(graph_module)
    move_graph(made)
    return made


@dataclass(frozen=True, slots=True)
class InductorGraph:
    """One graph as Inductor's code. `kernels`: Inductor's estimate of the bytes that each launch moves; `calls`: calls of
    operators' own kernels.
    """

    source: str
    kernels: tuple[int, ...]
    calls: tuple[str, ...]


def inductor_graphs(run: Callable[[Callable[..., Any]], Any]) -> list[InductorGraph]:
    """Inductor's code for the graphs of a program. `run` gets a `torch.compile` backend and runs the program with it."""
    compile_fx: Any = importlib.import_module("torch._inductor.compile_fx")
    config: Any = importlib.import_module("torch._inductor.config")
    caches: Any = importlib.import_module("torch._functorch.config")
    made: list[InductorGraph] = []

    class Printed(Exception):
        pass

    class OnGpu(compile_fx.GraphLowering):
        """Moves the graph after the passes over it, which run operators that need a GPU's own guards."""

        def __init__(self, graph_module: torch.fx.GraphModule, *arguments: Any, **keywords: Any) -> None:
            move_graph(graph_module)
            keywords["example_inputs"] = [moved(value) for value in keywords["example_inputs"]]
            super().__init__(graph_module, *arguments, **keywords)

        def run(self, *arguments: Any) -> Any:
            return super().run(*map(moved, arguments))

        def compile_to_module(self) -> Any:
            code, _ = self.codegen()
            made.append(parsed(code.value))
            raise Printed

    def inner(graph_module: torch.fx.GraphModule, inputs: Sequence[Any], **keywords: Any) -> Any:
        try:
            with _stubbed_gpu():
                compile_fx.compile_fx_inner(copy.deepcopy(graph_module), inputs, **keywords)
        except Exception as error:
            if not _is_from(error, Printed):
                raise
        return lambda *arguments: graph_module(*arguments)

    with (
        mock.patch.object(compile_fx, "GraphLowering", OnGpu),
        config.patch(profile_bandwidth=True, compile_threads=1, fx_graph_cache=False),
        caches.patch(enable_autograd_cache=False),
    ):
        torch.compiler.reset()
        run(functools.partial(compile_fx.compile_fx, inner_compile=inner))
    return made


def _is_from(error: BaseException | None, kind: type[Exception]) -> bool:
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error is not None


@contextlib.contextmanager
def _stubbed_gpu() -> Iterator[None]:
    """Inside, torch answers Inductor's questions about the device as on a machine with an H100."""
    scheduler: Any = importlib.import_module("torch._inductor.scheduler")
    of_triton: Any = importlib.import_module("torch.utils._triton")
    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: _H100,
        "_get_device_properties": lambda device=None: _H100,
        "get_device_name": lambda device=None: _H100.name,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
        "set_device": lambda device: None,
        "_lazy_init": lambda: None,
        "is_bf16_supported": lambda *arguments, **keywords: True,
        "get_rng_state": lambda *arguments: torch.empty(0),
        "set_rng_state": lambda *arguments: None,
        "synchronize": lambda *arguments: None,
    }
    with contextlib.ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(mock.patch.object(torch.cuda, name, answer, create=True))
        stack.enter_context(mock.patch.object(scheduler, "has_triton", return_value=True))
        stack.enter_context(mock.patch.object(of_triton, "triton_hash_with_backend", return_value="none"))
        yield


def compile_kernels(graphs: Sequence[InductorGraph]) -> int:
    """Compile each kernel to machine code for an H100, in all configurations that Inductor compiles before a launch.

    Returns how many were compiled.
    """
    codecache: Any = importlib.import_module("torch._inductor.codecache")
    helpers: Any = importlib.import_module("torch._inductor.runtime.triton_helpers")
    fresh: Any = getattr(importlib.import_module("torch._inductor.utils"), "fresh_cache")
    count = 0
    with _stubbed_gpu(), mock.patch.object(helpers, "set_driver_to_gpu"), fresh():
        for name, text in (kernel for graph in graphs for kernel in kernel_texts(graph.source).items()):
            kernel = getattr(codecache.PyCodeCache.load(text), name)
            for configuration in kernel.configs:
                kernel._precompile_config(configuration)
            count += len(kernel.configs)
    return count


def kernel_texts(source: str) -> dict[str, str]:
    """The modules of a graph's kernels, by the kernel's name."""
    found = re.findall(r"^(\w+) = async_compile\.triton\(.*?'''(.*?)'''", source, re.MULTILINE | re.DOTALL)
    return dict(found)


def parsed(source: str) -> InductorGraph:
    """Launches and calls of the function that runs a graph, in order."""
    sizes: dict[str, int] = {}
    for name, text in kernel_texts(source).items():
        found = re.search(r"'kernel_num_gb': ([0-9.e+-]+)", text)
        sizes[name] = 0 if found is None else round(float(found[1]) * 1e9)
    lines = [line.strip() for line in source.splitlines()]
    launches = [found[1] for line in lines if (found := re.match(r"(\w+)\.run\(", line)) and found[1] in sizes]
    calls = [
        found[1]
        for line in lines
        if (found := re.search(r"\b(extern_kernels\.\w+|torch\.ops\.[\w.]+|workspace_\d+\b.*\.sum)\(", line))
    ]
    return InductorGraph(source, tuple(sizes[name] for name in launches), tuple(calls))
