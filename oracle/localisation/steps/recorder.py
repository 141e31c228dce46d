"""Recorder: watches torch's compiler while it compiles a program, and copies each graph before and after each step.

Steps are AOT autograd's tracing (functionalization and decompositions), the partitioner, each graph pass of Inductor, and code
generation. A copy is made only if the graph's text changed. Changes between two passes that Inductor does not announce are a
step of their own.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo.backends.common
import torch._functorch.config
import torch._inductor.config
from torch._inductor import graph as inductor_graph
from torch.fx import GraphModule
from torch.fx.passes.graph_transform_observer import GraphTransformObserver

from oracle.localisation.capture_parts import replaced
from oracle.localisation.steps.compiled_graph import CompiledGraph, graph_call
from oracle.localisation.steps.graph_runs import (
    JointGraph,
    copied,
    draws,
    outputs_of,
    placeholders_of,
    tangent_positions,
    text_of,
)

TRACED = "functionalization and decompositions"
PARTITIONED = "partitioner"
GENERATED = "lowering and code generation"
_MOST_CALLS = 8  # of one graph; a graph in a loop has many
_COMPILERS = {"fw_compiler": "forward", "inference_compiler": "inference", "bw_compiler": "backward"}
_PRE_GRAD, _JOINT, _POST_GRAD = "pre_grad", "joint", "post_grad"


@dataclass(slots=True)
class _Watched:
    """The graph that the compiler changes at present."""

    graph: CompiledGraph
    direction: str
    module: GraphModule
    stage: Callable[[GraphModule], dict[str, Any]]  # what a copy of the module stands in for
    phase: str
    text: str = ""
    last: str = ""  # name of the last step
    passes: list[str] = field(default_factory=list)  # those that run now, the outermost first


class Recorder:
    """Collects the graphs of one program. Use `watching` while the program is compiled and run. Mutable."""

    def __init__(self) -> None:
        self.graphs: list[CompiledGraph] = []
        self.call = 0  # number of the program's call that runs at present
        self.is_recording = True  # whether arguments of captured graphs are kept
        self.raised_in = ""  # the step, innermost pass or decomposition in which the compiler raised
        self._watched: list[_Watched] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Patch the compiler, without its caches, which would skip the passes."""
        common = torch._dynamo.backends.common
        enter, leave = GraphTransformObserver.__enter__, GraphTransformObserver.__exit__
        lower = inductor_graph.GraphLowering.run

        @functools.wraps(enter)
        def entered(observer: Any) -> Any:
            self._before_pass(observer.gm, observer.passname, getattr(observer, "subsystem", None))
            return enter(observer)

        @functools.wraps(leave)
        def left(observer: Any, kind: Any, value: Any, traceback: Any) -> Any:
            result = leave(observer, kind, value, traceback)
            self._after_pass(observer.gm, is_raising=kind is not None)
            return result

        @functools.wraps(lower)
        def lowered(lowering: Any, *args: Any) -> Any:
            if self._watched and lowering.module is self._watched[-1].module:
                self._see(lowering.module, GENERATED)
            return lower(lowering, *args)

        with contextlib.ExitStack() as stack:
            stack.enter_context(torch._inductor.config.patch(fx_graph_cache=False, fx_graph_remote_cache=False))
            stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
            patched = self._aot_module_simplified(common.aot_module_simplified)
            stack.enter_context(replaced(common, "aot_module_simplified", patched))
            stack.enter_context(replaced(GraphTransformObserver, "__enter__", entered))
            stack.enter_context(replaced(GraphTransformObserver, "__exit__", left))
            stack.enter_context(replaced(inductor_graph.GraphLowering, "run", lowered))
            yield

    # ------------------------------------------------------------------------------------------------- AOT autograd

    def _aot_module_simplified(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def aot_module_simplified(mod: Any, args: Any, **options: Any) -> Any:
            if not isinstance(mod, GraphModule):  # one that takes lists, which Dynamo does not capture
                return original(mod, args, **options)
            graph = CompiledGraph(number=len(self.graphs), captured=copied(mod), options=options)
            self.graphs.append(graph)
            self.raised_in = ""
            with self._raising_in(TRACED):
                compiled = original(mod, args, **self._options(graph, options))
            graph.call = compiled

            @functools.wraps(compiled)
            def call(*given: Any) -> Any:
                return self._run(graph, compiled, given)

            return call

        return aot_module_simplified

    def _run(self, graph: CompiledGraph, compiled: Callable[..., Any], given: tuple[Any, ...]) -> Any:
        if self.is_recording and len(graph.calls) < _MOST_CALLS:
            graph.calls.append(graph_call(self.call, given))
        return compiled(*given)

    def _options(self, graph: CompiledGraph, options: dict[str, Any]) -> dict[str, Any]:
        """The options of AOT autograd, with each function among them watched."""
        watched = dict(options)
        for name, direction in _COMPILERS.items():
            if options.get(name) is not None:
                watched[name] = self._compiler(graph, direction, options[name])
        watched["bw_compiler"] = watched.get("bw_compiler") or self._compiler(graph, "backward", options["fw_compiler"])
        watched["inference_compiler"] = watched.get("inference_compiler") or self._compiler(
            graph, "inference", options["fw_compiler"]
        )
        if options.get("partition_fn") is not None:
            watched["partition_fn"] = self._partition_fn(graph, options["partition_fn"])
        if options.get("pre_grad_passes") is not None:
            watched["pre_grad_passes"] = self._pre_grad_passes(graph, options["pre_grad_passes"])
        if options.get("decompositions"):
            depth = [0]
            watched["decompositions"] = {
                overload: self._noting(graph.decomposed, overload, rule, depth)
                for overload, rule in options["decompositions"].items()
            }
        return watched

    def _pre_grad_passes(self, graph: CompiledGraph, original: Callable[..., Any]) -> Callable[..., Any]:
        def pre_grad_passes(mod: GraphModule, args: Any) -> GraphModule:
            stage = functools.partial(_as, "captured")
            with self._watch(graph, "captured", mod, stage, _PRE_GRAD):
                result = original(mod, args)
                self._see(result)
                return result

        return pre_grad_passes

    def _partition_fn(self, graph: CompiledGraph, original: Callable[..., Any]) -> Callable[..., Any]:
        def partition_fn(joint: GraphModule, joint_inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
            def stage(copy: GraphModule) -> dict[str, Any]:
                return {"captured": None, "joint": JointGraph(module=copy, forward_outputs=num_fwd_outputs)}

            # Graphs in the graph are partitioned first, and have no inputs of their own that could be recorded.
            graph.steps = [step for step in graph.steps if step.direction == "captured"]
            graph.step("joint", TRACED, is_changed=True, **stage(copied(joint)))
            graph.draws = draws(joint)
            with self._watch(graph, "joint", joint, stage, _JOINT), self._raising_in(PARTITIONED):
                forward, backward = original(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **more)
            graph.saved = outputs_of(forward)[num_fwd_outputs:]
            graph.tangents = tangent_positions(backward)
            graph.step(
                "joint", PARTITIONED, is_changed=True, joint=None, forward=copied(forward), backward=copied(backward)
            )
            return forward, backward

        return partition_fn

    def _compiler(self, graph: CompiledGraph, direction: str, original: Callable[..., Any]) -> Callable[..., Any]:
        side = "backward" if direction == "backward" else "forward"
        first = _JOINT if direction == "inference" else _POST_GRAD

        def compiler(module: GraphModule, example_inputs: Sequence[Any]) -> Any:
            stage = functools.partial(_as, side)
            traced = copied(module)
            if direction == "inference":
                graph.step(direction, TRACED, is_changed=True, captured=None, forward=traced)
                graph.draws = draws(module)
            code: Callable[..., Any]
            try:
                with self._watch(graph, direction, module, stage, first), self._raising_in(GENERATED):
                    code = original(module, example_inputs)
            except Exception as error:  # whatever the compiler raises
                if direction != "backward":
                    raise
                # A backward is compiled when it first runs, in any stage. It has to raise only where the compiled code runs.
                code = functools.partial(_raise, error)
            graph.step(direction, GENERATED, is_changed=True, **{side: None})
            return graph.in_place_of(side, code, traced)

        return compiler

    @contextlib.contextmanager
    def _raising_in(self, name: str) -> Iterator[None]:
        """Note the step if the compiler raises in it, but in no pass or decomposition of it."""
        try:
            yield
        except Exception:  # whatever the compiler raises
            self.raised_in = self.raised_in or name
            raise

    def _noting(
        self, found: dict[Any, int], overload: Any, rule: Callable[..., Any], depth: list[int]
    ) -> Callable[..., Any]:
        """A decomposition that notes that it ran, and how deep in others."""

        @functools.wraps(rule)
        def noted(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            found[overload] = max(found.get(overload, 0), depth[0])
            try:
                with self._raising_in(f"decomposition: {overload}"):
                    return rule(*args, **kwargs)
            finally:
                depth[0] -= 1

        return noted

    # ------------------------------------------------------------------------------------------------------- passes

    @contextlib.contextmanager
    def _watch(
        self,
        graph: CompiledGraph,
        direction: str,
        module: GraphModule,
        stage: Callable[[GraphModule], dict[str, Any]],
        phase: str,
    ) -> Iterator[None]:
        """Watch the passes on one graph."""
        self._watched.append(_Watched(graph, direction, module, stage, phase, text=text_of(module)))
        try:
            yield
        finally:
            self._watched.pop()

    def _before_pass(self, module: GraphModule, name: str, subsystem: str | None) -> None:
        if not self._watched:
            return
        watched = self._watched[-1]
        if not watched.passes:
            self._see(module, name)
            if subsystem is not None:
                watched.phase = subsystem.removesuffix("_passes").removesuffix("_graph")
        watched.passes.append(name)

    def _after_pass(self, module: GraphModule, *, is_raising: bool) -> None:
        if not self._watched or not self._watched[-1].passes:
            return
        watched = self._watched[-1]
        names = list(watched.passes)
        watched.passes.pop()
        if is_raising:
            self.raised_in = self.raised_in or f"{watched.phase}: {names[0]}"
        elif len(names) == 1:
            self._take(watched, module, names[0], is_pass=True)

    def _see(self, module: GraphModule, before: str = "") -> None:
        """Look for changes that no pass announced, between the last pass and the next one."""
        if not self._watched or self._watched[-1].passes:
            return
        watched = self._watched[-1]
        name = f"after {watched.last}" if watched.last else f"before {before}"
        self._take(watched, module, name, is_pass=False)

    def _take(self, watched: _Watched, module: GraphModule, name: str, *, is_pass: bool) -> None:
        if not _may_replace(watched.module, module):
            module = watched.module
        watched.module = module
        text = text_of(module)
        is_changed = text != watched.text
        if is_changed or is_pass:
            named = f"{watched.phase}: {name}"
            changed = watched.stage(copied(module)) if is_changed else {}
            watched.graph.step(watched.direction, named, is_changed=is_changed, **changed)
        watched.text = text
        if is_pass:
            watched.last = name


def _may_replace(module: GraphModule, other: GraphModule) -> bool:
    """Whether a pass may have returned `other` for `module`. It may be a graph in it instead, or a pattern being traced."""
    if any(inner is other for inner in module.modules()):
        return other is module
    has_its_inputs = set(placeholders_of(other)) <= set(placeholders_of(module))
    return has_its_inputs and len(outputs_of(other)) == len(outputs_of(module))


def _raise(error: Exception, *args: Any) -> Any:
    raise error


def _as(name: str, module: GraphModule) -> dict[str, Any]:
    return {name: module}
