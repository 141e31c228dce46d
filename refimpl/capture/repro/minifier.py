"""Makes an fx graph that fails small: `minifier`.

Counterpart: torch/_functorch/fx_minifier.py minifier, dump_state
Differs: the steps are tried until none makes the graph smaller. Inputs are not merged, values are kept in memory, and of a graph
that raises only the calls before the error become inputs.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from refimpl._torch import OpOverload
from refimpl.capture.values.array import IN_PLACE_NAMES
from refimpl.errors import BadParameter

Fails = Callable[[fx.GraphModule, Sequence[torch.Tensor]], bool]
Inputs = Sequence[torch.Tensor]
_Candidate = tuple[fx.Graph, list[Any]]


def copied_graph(gm: fx.GraphModule) -> fx.GraphModule:
    """A module with a graph of its own, and the same parameters, constants and values in `meta`."""
    made = fx.GraphModule(gm, _copied(gm.graph))
    made.meta = {**gm.meta}
    return made


def dump_state(fx_g: fx.GraphModule, inps: Inputs) -> None:
    """Prints the graph with inputs of the same sizes, dtypes and devices, as a program."""
    shapes = [(tuple(value.shape), value.dtype, str(value.device)) for value in inps]
    print(
        f"# a graph of {len(fx_g.graph.nodes)} nodes that fails\n"
        f"inps = [torch.ones(shape, dtype=dtype, device=device) for shape, dtype, device in {shapes!r}]\n{fx_g.code}"
    )


def minifier(
    fail_f: fx.GraphModule,
    inps: Inputs,
    module_fails: Fails,
    dump_state: Callable[[fx.GraphModule, Inputs], None] = dump_state,
    *,
    save_dir: str | None = None,
    offload_to_disk: bool = False,
    skip_offload: bool = False,
    skip_sanity: bool = False,
    max_granularity: int | None = None,
) -> tuple[fx.GraphModule, Inputs]:
    """Find a smaller graph that still fails: `module_fails(graph_module, inputs)` is true for it, as for the given graph.

    It has fewer nodes or outputs: its last calls are cut off, parts of it become inputs with the values that they had, and unused
    nodes and inputs are removed. dump_state is called with each smaller one.
    skip_sanity: do not ask whether the given graph fails. max_granularity: into how many parts the graph is cut at most for
    making inputs of them. save_dir, offload_to_disk and skip_offload have no effect.

    Raises RuntimeError if the given graph does not fail, BadParameter if max_granularity is no power of two.
    """
    if max_granularity is not None and (max_granularity < 1 or max_granularity & (max_granularity - 1)):
        raise BadParameter(seen=f"max_granularity={max_granularity}", expected="a power of two")
    reducer = _Reducer(fail_f, module_fails, dump_state, max_granularity)
    best: _Candidate = (_copied(fail_f.graph), list(inps))
    if not skip_sanity and not reducer.fails(best):
        raise RuntimeError("Input graph did not fail the tester")
    smallest, values = reducer.reduce(best)
    return fx.GraphModule(fail_f, smallest), values


class _Reducer:
    """Tries candidates, and keeps the last one that fails."""

    def __init__(
        self, root: fx.GraphModule, module_fails: Fails, dump: Callable[..., None], max_granularity: int | None
    ) -> None:
        self._root = root
        self._module_fails = module_fails
        self._dump = dump
        self._max_granularity = max_granularity

    def fails(self, candidate: _Candidate) -> bool:
        graph, inputs = candidate
        graph.lint()
        return bool(self._module_fails(fx.GraphModule(self._root, _copied(graph)), [*inputs]))

    def reduce(self, best: _Candidate) -> _Candidate:
        steps = (_without_unused, _cut_off, self._with_inputs, _with_fewer_outputs, _with_operands)
        before = None
        while before != _size(best):
            before = _size(best)
            for step in steps:
                best = self._first_smaller(best, step)
        return best

    def _first_smaller(self, best: _Candidate, step: Callable[[_Candidate], Iterator[_Candidate]]) -> _Candidate:
        """The candidates of a step are tried; each that fails is what the step goes on with."""
        found: _Candidate | None = best
        while found is not None:
            best, found = found, None
            for candidate in step(best):
                if _size(candidate) < _size(best) and self.fails(candidate):
                    found = candidate
                    self._dump(fx.GraphModule(self._root, _copied(candidate[0])), candidate[1])
                    break
        return best

    def _with_inputs(self, best: _Candidate) -> Iterator[_Candidate]:
        """Runs of calls become inputs that have their values: half of the calls, then quarters, and so on."""
        graph, inputs = best
        values = _values_of(fx.GraphModule(self._root, _copied(graph)), inputs)
        calls = [node.name for node in graph.nodes if isinstance(values.get(node.name), torch.Tensor)]
        length = len(calls)
        while length >= 1:
            parts = -(-len(calls) // length) if calls else 0
            if self._max_granularity is not None and parts > self._max_granularity:
                return
            for start in range(0, len(calls), length):
                yield _as_inputs(best, set(calls[start : start + length]), values)
            length //= 2


def _size(candidate: _Candidate) -> tuple[int, int, int]:
    """Calls, then all nodes, then outputs: a call that becomes an input is progress."""
    graph = candidate[0]
    calls = sum(node.op not in ("placeholder", "output", "get_attr") for node in graph.nodes)
    return calls, len(graph.nodes), len(graph.output_node().all_input_nodes)


def _copied(graph: fx.Graph) -> fx.Graph:
    """A copy that shares values in `meta` and constants."""
    made = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    output: Any = made.graph_copy(graph, nodes)
    made.output(output)
    made.output_node().meta = copy.copy(graph.output_node().meta)
    return made


def _copy_of(candidate: _Candidate) -> tuple[fx.Graph, list[Any], dict[str, fx.Node]]:
    graph = _copied(candidate[0])
    return graph, [*candidate[1]], {node.name: node for node in graph.nodes}


def _pruned(graph: fx.Graph, inputs: list[Any]) -> _Candidate:
    """Remove calls and inputs that nothing uses. Calls that write to a tensor stay."""
    for node in reversed(list(graph.nodes)):
        if not node.users and node.op not in ("placeholder", "output") and not _writes(node):
            graph.erase_node(node)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    kept = [bool(node.users) for node in placeholders]
    for node, is_used in zip(placeholders, kept, strict=True):
        if not is_used:
            graph.erase_node(node)
    return graph, [value for value, is_used in zip(inputs, kept, strict=True) if is_used]


def _writes(node: fx.Node) -> bool:
    """Whether the call may write to an argument: by its schema, or by its name."""
    if isinstance(node.target, OpOverload):
        return bool(node.target._schema.is_mutable)
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_in_place = name.endswith("_") and not name.endswith("__")
    return node.op != "get_attr" and (is_in_place or name in ("setitem", *IN_PLACE_NAMES) or "out" in node.kwargs)


def _without_unused(best: _Candidate) -> Iterator[_Candidate]:
    graph, inputs, _ = _copy_of(best)
    yield _pruned(graph, inputs)
    for name in [node.name for node in best[0].nodes if not node.users and node.op.startswith("call")]:
        graph, inputs, nodes = _copy_of(best)
        graph.erase_node(nodes[name])
        yield _pruned(graph, inputs)


def _cut_off(best: _Candidate) -> Iterator[_Candidate]:
    """The result of one call is the only output, and all after it is gone: calls in the middle first, then those at quarters."""
    names = [node.name for node in best[0].nodes if node.op not in ("placeholder", "output", "get_attr")]
    for index in _halving(len(names)):
        graph, inputs, nodes = _copy_of(best)
        _set_output(graph, (nodes[names[index]],))
        for name in reversed(names[index + 1 :]):
            graph.erase_node(nodes[name])
        yield _pruned(graph, inputs)


def _halving(count: int) -> Iterator[int]:
    """All indices below `count`, widely spread ones first."""
    step, seen = count, set[int]()
    while step >= 1:
        for index in range(step // 2, count, step):
            if index not in seen:
                seen.add(index)
                yield index
        step //= 2
    yield from (index for index in range(count) if index not in seen)


def _with_fewer_outputs(best: _Candidate) -> Iterator[_Candidate]:
    """One of the outputs is left out."""
    outputs = best[0].output_node().args[0]
    if not isinstance(outputs, (tuple, list)) or len(outputs) < 2:
        return
    for left_out in range(len(outputs)):
        graph, inputs, _ = _copy_of(best)
        found: Any = graph.output_node().args[0]
        _set_output(graph, tuple(part for index, part in enumerate(found) if index != left_out))
        yield _pruned(graph, inputs)


def _with_operands(best: _Candidate) -> Iterator[_Candidate]:
    """The operands of an output take its place."""
    for output in best[0].output_node().all_input_nodes:
        if output.op == "placeholder":
            continue
        graph, inputs, nodes = _copy_of(best)
        outputs = dict.fromkeys(graph.output_node().all_input_nodes)
        outputs.pop(nodes[output.name])
        outputs |= dict.fromkeys(nodes[output.name].all_input_nodes)
        _set_output(graph, tuple(outputs))
        if not nodes[output.name].users:
            graph.erase_node(nodes[output.name])
        yield _pruned(graph, inputs)


def _set_output(graph: fx.Graph, result: tuple[Any, ...]) -> None:
    graph.output_node().args = (result,)


def _as_inputs(best: _Candidate, names: set[str], values: dict[str, Any]) -> _Candidate:
    """These calls become inputs."""
    graph, inputs, nodes = _copy_of(best)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    place = placeholders[-1] if placeholders else None
    for name in (node.name for node in best[0].nodes if node.name in names):
        with graph.inserting_before(next(iter(graph.nodes))) if place is None else graph.inserting_after(place):
            place = graph.placeholder(name)
        nodes[name].replace_all_uses_with(place)
        graph.erase_node(nodes[name])
        inputs.append(values[name])
    return _pruned(graph, inputs)


class _Values(fx.Interpreter):
    """Runs a graph and keeps the values of its calls."""

    def __init__(self, module: fx.GraphModule) -> None:
        super().__init__(module, garbage_collect_values=False)
        self.values: dict[str, Any] = {}

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        if n.op not in ("placeholder", "output", "get_attr"):
            self.values[n.name] = _leaf(result) if isinstance(result, torch.Tensor) else result
        return result


def _leaf(value: torch.Tensor) -> torch.Tensor:
    """A copy of the value as it is now, without history."""
    return value.detach().clone(memory_format=torch.preserve_format).requires_grad_(value.requires_grad)


def _values_of(module: fx.GraphModule, inputs: Sequence[Any]) -> dict[str, Any]:
    """The values of the calls. Those before an error, if the graph raises one."""
    interpreter = _Values(module)
    try:
        interpreter.run(*(_leaf(value) if isinstance(value, torch.Tensor) else value for value in inputs))
    except Exception:  # the graph may be one that fails by an error
        return interpreter.values
    return interpreter.values
