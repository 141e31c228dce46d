"""Subjects that run refimpl, and refimpl's substitutes for upstream names. Outside refimpl only this module and
`refimpl_kernels` import it.

Counterpart: torch/fx/experimental/proxy_tensor.py make_fx; the backend aot_eager of torch.compile
"""

from __future__ import annotations

import functools
import io
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch

import refimpl
from oracle.errors import UsageError
from oracle.subjects.base import CompileRequest, Counters, Subject
from oracle.subjects.export import Export
from oracle.subjects.make_fx import GraphTracedSubject, flat_function
from oracle.subjects.spec import SubjectSpec
from oracle.subjects.traced import FlatProgram, FlatTrace
from refimpl.aot.functional_transform import functionalize
from refimpl.backend_registry import Backend, lookup_backend
from refimpl.backends.partition import partition_for_kernels
from refimpl.backends.triton import triton
from refimpl.capture.captured import CaptureOptions, GuardFail
from refimpl.capture.compile import with_options
from refimpl.capture.segment import Segment
from refimpl.codegen.compile import compile_graph
from refimpl.codegen.decompositions import codegen_decompositions
from refimpl.codegen.kernel import LevelUnavailable
from refimpl.codegen.launch_plan import CompiledGraph
from refimpl.codegen.levels.choice import level_named
from refimpl.codegen.options import CodegenOptions, codegen_options
from refimpl.export import export, load, save, unflatten
from refimpl.pipeline import Partition, compile_aot

# Option `breaks`: graph breaks only where they are needed, or after each captured instruction, so that the next instruction is
# interpreted. The first instruction of a function is then captured ("second") or interpreted ("first").
BREAKS: Mapping[str, Callable[[int, int], bool] | None] = MappingProxyType(
    {
        "needed": None,
        "second": lambda start, offset: offset != start,
        "first": lambda start, offset: offset != start or start == 0,
    }
)
# kind of subject -> backend for captured graphs, if the kind implies one
BACKENDS: Mapping[str, str] = MappingProxyType({"refimpl.full": "aot_eager"})
RECOMPILE_LIMIT = 64  # a plan may need more than the default of 8, beyond which it runs without graphs
SOURCE_FOLDER = Path(refimpl.__file__).parent
# kind of subject -> partitioner of the joint graph; None: it is not partitioned
PARTITIONS: Mapping[str, Partition] = MappingProxyType(
    {"refimpl.joint": None, "refimpl.partitioned": "min_cut", "refimpl.aot": "default"}
)


def substituted_names(parts: Sequence[str]) -> tuple[str, ...]:
    """The dotted upstream names that these parts of `refimpl.SUBSTITUTION_PARTS` substitute, sorted."""
    return tuple(sorted(_table(parts)))


def substitutes(parts: Sequence[str]) -> dict[str, object]:
    """Dotted upstream name -> refimpl's substitute. Raises AttributeError if the table names a missing object."""
    return {upstream: pkgutil.resolve_name(ours) for upstream, ours in sorted(_table(parts).items())}


def substitute_places(parts: Sequence[str]) -> dict[str, str]:
    """Dotted upstream name -> dotted name of its substitute, for `mock.patch`."""
    return dict(sorted(_table(parts).items()))


def _table(parts: Sequence[str]) -> dict[str, str]:
    return {upstream: ours for part in parts for upstream, ours in refimpl.SUBSTITUTION_PARTS[part].items()}


class Transcript:
    """Graphs and kernels compiled since the subject's last `reset`, as text. Empty unless `is_kept`: printing takes time."""

    def __init__(self) -> None:
        self.is_kept = False
        self._texts: list[tuple[str, str]] = []

    def clear(self) -> None:
        self._texts.clear()

    def add_graph(self, graph_module: torch.fx.GraphModule) -> None:
        """Add a graph with the dtype, shape and strides of every tensor in it."""
        if self.is_kept:
            text = graph_module.print_readable(print_output=False, include_stride=True)
            self._texts.append(("graphs", "\n".join(line.rstrip() for line in text.splitlines())))

    def add(self, kind: str, text: str) -> None:
        """Add another text of this kind."""
        if self.is_kept:
            self._texts.append((kind, text))

    def by_kind(self) -> dict[str, str]:
        """Kind ("graphs", "guards", "kernels", "programs") -> its texts, joined by lines."""
        kinds = dict.fromkeys(kind for kind, _ in self._texts)
        return {kind: "\n\n".join(text for each, text in self._texts if each == kind) for kind in kinds}


class RefimplMakeFx(GraphTracedSubject):
    """refimpl's make_fx, in real, fake or symbolic mode."""

    def __init__(self, spec: SubjectSpec) -> None:
        super().__init__(spec)
        self.transcript = Transcript()

    def reset(self) -> None:
        super().reset()
        self.transcript.clear()

    def trace(self, flat: FlatProgram, tensors: list[torch.Tensor]) -> FlatTrace:
        mode = self.spec.options.get("mode", "real")
        traced = refimpl.make_fx(flat_function(flat), tracing_mode=mode, _allow_non_fake_inputs=mode != "real")(
            *tensors
        )
        self.transcript.add_graph(traced)
        if traced.shape_env is not None:
            self.transcript.add("guards", "\n".join(str(guard.expr) for guard in traced.shape_env.guards))
        return traced


class RefimplFunctionalized:
    """refimpl's functionalize: a forward graph without mutations, traced at every call and differentiated by autograd."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._graphs = 0

    def reset(self) -> None:
        self._graphs = 0

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        run = functionalize(request.target)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self._graphs += 1
            return run(*args, **kwargs)

        return counted

    def counters(self) -> Counters:
        return Counters(graphs=self._graphs, graph_breaks=0)


class RefimplAot:
    """refimpl.compile_aot with the partitioner of the subject's kind; graphs are run as they are.

    It recompiles for calls that differ in the arguments' metadata, but has no guards on globals and other state.
    """

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self.transcript = Transcript()
        self._graphs = 0

    def reset(self) -> None:
        self._graphs = 0
        self.transcript.clear()

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        def run_as_it_is(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            self._graphs += 1
            self.transcript.add_graph(graph_module)
            return graph_module

        return compile_aot(
            request.target,
            backend=run_as_it_is,
            partition=PARTITIONS[self.spec.kind],
            dynamic=bool(self.spec.options.get("dynamic", request.dynamic)),
        )

    def counters(self) -> Counters:
        return Counters(graphs=self._graphs, graph_breaks=0)


def kernel_options(spec: SubjectSpec) -> CodegenOptions:
    """The code generator's options in a subject's options."""
    known = ("random", "strict", "fuse_attention")
    return codegen_options({name: spec.options[name] for name in known if name in spec.options})


class KernelCompilerState:
    """Compiles graphs to Triton kernels for the level in a subject's options, and counts the kernels.

    Raises UsageError for a level that this process cannot use.
    """

    def __init__(self, spec: SubjectSpec) -> None:
        self.options = kernel_options(spec)
        capabilities = [int(part) for part in str(spec.options.get("cubin", "")).split("+") if part]
        try:
            self._level = level_named(spec.options.get("level"), cubin=capabilities)
        except LevelUnavailable as error:
            raise UsageError(
                seen=f"subject {spec.name!r}: {error.seen}",
                expected="a level that kernels can run on here",
                do=error.do,
            ) from error
        self.made: list[CompiledGraph] = []
        self.transcript = Transcript()

    def reset(self) -> None:
        """Forget all compiled graphs."""
        self.made.clear()
        self.transcript.clear()

    def compile(
        self, graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any], options: CodegenOptions | None = None
    ) -> CompiledGraph:
        """Compile one graph."""
        self.transcript.add_graph(graph_module)
        made = compile_graph(graph_module, example_inputs, level=self._level, options=options or self.options)
        self.made.append(made)
        self.transcript.add("kernels", made.source)
        return made

    def counted(self, counters: Counters) -> Counters:
        """The counters with the counts of kernels added."""
        return replace(
            counters,
            kernels=sum(len(graph.kernels) for graph in self.made),
            lowered=sum(graph.lowered.total() for graph in self.made),
            fallbacks=sum(graph.fallbacks.total() for graph in self.made),
        )


class RefimplCodegen:
    """Decomposed graphs of compile_aot, as they are or as Triton kernels. Operators without a lowering run in eager."""

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._graphs = 0
        self._kernels = None if spec.kind == "refimpl.decomposed" else KernelCompilerState(spec)
        self.transcript = Transcript() if self._kernels is None else self._kernels.transcript

    def reset(self) -> None:
        self._graphs = 0
        self.transcript.clear()
        if self._kernels is not None:
            self._kernels.reset()

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        def compile_one(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            self._graphs += 1
            if self._kernels is not None:
                return self._kernels.compile(graph_module, example_inputs)
            self.transcript.add_graph(graph_module)
            return graph_module

        options = CodegenOptions() if self._kernels is None else self._kernels.options
        return compile_aot(
            request.target, backend=compile_one, decompositions=codegen_decompositions(),
            partition=functools.partial(partition_for_kernels, options=options),
            dynamic=bool(self.spec.options.get("dynamic", request.dynamic)),
            record_stack_traces=bool(self.spec.options.get("strict", False)),
        )  # fmt: skip

    def counters(self) -> Counters:
        counters = Counters(graphs=self._graphs, graph_breaks=0)
        return counters if self._kernels is None else self._kernels.counted(counters)


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturedSegment:
    """The capture of a part of a function by refimpl."""

    graph: torch.fx.GraphModule | None  # None where there is nothing to compute
    guards: tuple[str, ...]
    reason: str | None  # why the graph breaks after it; None where the function returns
    where: tuple[str, int] | None  # file and line of the graph break
    # How many functions deep the break is. Deeper than 1, the called function is captured by itself and breaks there.
    depth: int = 1


class RefimplCapture:
    """refimpl.capture: graphs with guards, and interpreted code at graph breaks.

    The kind refimpl.full adds AOT autograd, the kind triton also Triton kernels.
    """

    def __init__(self, spec: SubjectSpec) -> None:
        self.spec = spec
        self._options: list[CaptureOptions] = []
        self.failed_guards: list[str] = []
        """The guards that did not hold when a part of a function was captured again, in order; kept with the transcript."""
        self._kernels = KernelCompilerState(spec) if spec.kind == "triton" else None
        self.transcript = Transcript() if self._kernels is None else self._kernels.transcript

    def reset(self) -> None:
        self._options.clear()
        self.failed_guards.clear()
        self.transcript.clear()
        if self._kernels is not None:
            self._kernels.reset()

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        options = self.spec.options
        made = CaptureOptions(
            backend=self._backend(), fullgraph=bool(options.get("fullgraph", False)),
            dynamic=options.get("dynamic", request.dynamic), recompile_limit=RECOMPILE_LIMIT,
            breaks_at=BREAKS[options.get("breaks", "needed")],
            guard_fail_fn=self._note_failed if self.transcript.is_kept else None,
        )  # fmt: skip
        self._options.append(made)
        return with_options(request.target, made)

    def _backend(self) -> Backend:
        if self._kernels is not None:
            return functools.partial(triton, options=self._kernels.options, compiler=self._kernels.compile)
        return lookup_backend(BACKENDS.get(self.spec.kind) or self.spec.options.get("backend", "eager"))

    def counters(self) -> Counters:
        segments = self._segments()
        counters = Counters(
            graphs=sum(segment.graph is not None for segment in segments),
            graph_breaks=sum(segment.reason is not None for segment in segments),
        )
        return counters if self._kernels is None else self._kernels.counted(counters)

    def note_segments(self) -> None:
        """Add the captured graphs, their guards and the graph breaks to the transcript."""
        for segment in self._segments():
            if segment.graph is not None:
                self.transcript.add_graph(segment.graph)
            self.transcript.add(
                "guards", "\n".join([*map(str, segment.guards), f"then: {segment.reason or 'returns'}"])
            )

    def _note_failed(self, failed: GuardFail) -> None:
        self.failed_guards.append(failed.reason)

    def captured(self) -> list[CapturedSegment]:
        """The captures since the last `reset`, function by function."""
        found = []
        for segment in self._segments():
            stack = segment.reason.stack if segment.reason is not None else ()
            found.append(
                CapturedSegment(
                    graph=segment.graph,
                    guards=tuple(map(str, segment.guards)),
                    reason=segment.reason.explanation if segment.reason is not None else None,
                    where=(stack[-1].file, stack[-1].line) if stack else None,
                    depth=max(1, len(stack)),
                )
            )
        return found

    def _segments(self) -> list[Segment]:
        functions = [function for options in self._options for function in options.functions.values()]
        return [segment for function in functions for segment in function.cache.segments()]


class RefimplExport(Export):
    """The subject `export` with refimpl's export."""

    def __init__(self, spec: SubjectSpec) -> None:
        super().__init__(spec)
        self.transcript = Transcript()

    def reset(self) -> None:
        self._exports = 0
        self.transcript.clear()

    def export(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], **options: Any) -> Any:
        program = export(module, args, kwargs, **options)
        self.transcript.add("programs", str(program))
        return program

    def loaded(self, program: Any) -> Any:
        file = io.BytesIO()
        save(program, file)
        file.seek(0)
        return load(file)

    def unflattened(self, program: Any) -> torch.nn.Module:
        return unflatten(program)


class ThroughRefimpl:
    """Another subject that compiles the forward and backward graphs of refimpl's compile_aot.

    Guards are refimpl's, on the arguments only. The subject must support GraphModules.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self.spec = replace(subject.spec, guards=False)

    def reset(self) -> None:
        self._subject.reset()

    def compile(self, request: CompileRequest) -> Callable[..., Any]:
        def compile_graph(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
            graph = CompileRequest(
                target=graph_module, args=tuple(example_inputs), kwargs={}, dynamic=False, backward=False
            )
            return self._subject.compile(graph)

        return compile_aot(request.target, backend=compile_graph, partition="default", dynamic=bool(request.dynamic))

    def counters(self) -> Counters:
        return self._subject.counters()
