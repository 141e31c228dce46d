"""Explain a program that passes: which graphs, graph breaks, guards and recompiles a compiler makes of it.

Torch's Dynamo runs all calls with a backend that keeps its graphs; refimpl's capture runs them beside it. What the calls
change and what their outputs share is read from the run itself.
"""

from __future__ import annotations

import functools
import importlib.util
import linecache
import operator
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
from torch._dynamo import utils as dynamo_utils

from oracle.configure import configured
from oracle.explanation import Break, Capture, Explanation, Memory
from oracle.explanation import explained as explained
from oracle.hygiene import restore, snapshot
from oracle.observe import observe
from oracle.observe.flatten import flatten
from oracle.observe.outcome import Leaf, Outcome, Raised, Returned
from oracle.program.build import Instance
from oracle.program.clone import bytes_of, has_plain_storage
from oracle.subjects.base import CompileRequest
from oracle.subjects.refimpl import RefimplCapture
from oracle.subjects.registry import resolve
from oracle.subjects.torch_compile import RECOMPILE_LIMIT

_ADDRESS = re.compile(r", \d{6,}\b|\b0x[0-9a-f]+")
_LOCAL = re.compile(r"\b[LG]\['(\w+)'\]")
_IMPORTED = re.compile(r"\b__import_(\w+)")
_BUILTINS = re.compile(r"\b__builtins_dict___\d+\['(\w+)'\]")
_SAME_TYPE = re.compile(r"^___check_type_id\((.*)\), type=<class '(.*)'>$")
_SAME_OBJECT = re.compile(r"^___check_obj_id\((.*)\), type=.*$")
_OF_TORCH = ("torch.", "torch ", "type(torch", "builtins.", "not torch", "len(torch")
_COMMENT = re.compile(r"\s+# .*", re.DOTALL)
_CALLS = ("call_function", "call_method", "call_module")


def explain(make: Callable[[], Instance]) -> Explanation:
    """Run the program's calls by Dynamo and by refimpl's capture, each on a fresh instance of `make`.

    Dynamo forgets all compiled code before and after; other global settings stay as they were.
    """
    before = snapshot()
    try:
        dynamo, graphs, outcome = _dynamo(make())
        restore(before)
        refimpl = _refimpl(make())
    finally:
        torch._dynamo.reset()
        restore(before)
    instance = make()
    return Explanation(
        program=instance.program.name,
        calls=len(instance.program.calls),
        dynamo=dynamo,
        refimpl=refimpl,
        mutations=tuple(_mutations(instance, outcome)),
        aliases=tuple(_aliases(outcome)),
        memory=_memory(instance, outcome, graphs),
        tools=tuple(_tools()),
    )


def captured_by_dynamo(make: Callable[[], Instance]) -> Capture:
    """The capture of the program by Dynamo alone. This forgets all compiled code before and after."""
    before = snapshot()
    try:
        return _dynamo(make())[0]
    finally:
        torch._dynamo.reset()
        restore(before)


def _dynamo(instance: Instance) -> tuple[Capture, list[torch.fx.GraphModule], Outcome]:
    graphs: list[torch.fx.GraphModule] = []
    guards: dict[str, None] = {}

    def keep(graph_module: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        graphs.append(graph_module)
        return graph_module.forward

    def note_guards(found: Iterable[Any]) -> None:
        guards.update(dict.fromkeys(text for guard in found if (text := _guard_text(guard))))

    torch._dynamo.reset()
    dynamo_utils.clear_compilation_metrics()
    breaks_before = len(dynamo_utils.graph_break_reasons)
    compiler = functools.partial(
        torch._dynamo.optimize, keep, guard_export_fn=note_guards, dynamic=instance.program.dynamic
    )
    with configured(instance.program.config), torch._dynamo.config.patch(recompile_limit=RECOMPILE_LIMIT):
        outcome = observe(instance, compile_target=compiler())
    reasons = [reason for reason in dynamo_utils.graph_break_reasons[breaks_before:] if reason.graph_break]
    capture = Capture(
        name="Dynamo",
        graphs=tuple(map(_operators, graphs)),
        breaks=breaks_once(
            (short_reason(each.reason), _line_of(each.user_stack), len(each.user_stack)) for each in reasons
        ),
        guards=tuple(sorted(guards, key=lambda text: text.startswith(_OF_TORCH))),
        recompiles=tuple(
            readable(metrics.recompile_reason)
            for metrics in dynamo_utils.get_compilation_metrics()
            if metrics.recompile_reason
        ),
        error=_error(outcome),
    )
    return capture, graphs, outcome


def _refimpl(instance: Instance) -> Capture:
    subject = RefimplCapture(resolve("refimpl.capture"))
    subject.reset()
    subject.transcript.is_kept = True

    def compile_target(target: Callable[..., Any]) -> Callable[..., Any]:
        return subject.compile(CompileRequest(target=target, dynamic=instance.program.dynamic))

    with configured(instance.program.config):
        outcome = observe(instance, compile_target=compile_target)
    segments = subject.captured()
    return Capture(
        name="refimpl",
        graphs=tuple(_operators(segment.graph) for segment in segments if segment.graph is not None),
        breaks=breaks_once((each.reason, each.where, each.depth) for each in segments if each.reason is not None),
        guards=tuple(dict.fromkeys(readable(guard) for segment in segments for guard in segment.guards)),
        recompiles=tuple(map(readable, subject.failed_guards)),
        error=_error(outcome),
    )


def _error(outcome: Outcome) -> str:
    if not isinstance(outcome, Raised):
        return ""
    found = outcome.exception
    return f"call {found.call} raised {found.type_name} in {found.phase}: {found.message.partition(chr(10))[0]}"


# ------------------------------------------------------------------------------------------------------------ captured


def _operators(graph_module: torch.fx.GraphModule) -> tuple[str, ...]:
    return tuple(_operator(graph_module, node) for node in graph_module.graph.nodes if node.op in _CALLS)


def _operator(graph_module: torch.fx.GraphModule, node: torch.fx.Node) -> str:
    target = node.target
    if node.op == "call_method":
        return f"Tensor.{target}"
    if node.op == "call_module":
        return type(graph_module.get_submodule(str(target))).__name__
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    name = getattr(target, "__name__", str(target))
    module = getattr(target, "__module__", None) or ""
    if module in ("_operator", "builtins") or getattr(operator, name, None) is target:
        return f"operator.{name}"
    return (
        f"torch.{name}"
        if getattr(torch, name, None) is target
        else f"{module.removeprefix('torch.')}.{name}".lstrip(".")
    )


def breaks_once(
    found: Iterable[tuple[str, tuple[str, int] | None, int]], show: Callable[[str, int], str] | None = None
) -> tuple[Break, ...]:
    """Graph breaks of (reason, line, depth). One in a called function is left out where that function has the same break itself:
    both systems then capture the caller up to the call, and the called function alone. `show` writes a file and line, by default
    with the line's text.
    """
    listed = list(found)
    own = {where for _, where, depth in listed if depth <= 1}
    return tuple(
        Break(reason=reason, where=(show or _place)(*where) if where else "")
        for reason, where, depth in listed
        if depth <= 1 or where not in own
    )


def short_reason(reason: str) -> str:
    """The first line of a reason, and the explanation below it."""
    first, _, rest = reason.partition("\n")
    found = re.search(r"^\s*Explanation: (.*)$", rest, re.MULTILINE)
    return f"{first}: {found[1]}" if found else first


def _line_of(stack: Sequence[Any]) -> tuple[str, int] | None:
    return (stack[-1].filename, stack[-1].lineno) if stack else None


def _place(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    return f"{Path(file).name}:{line}" + (f": {text}" if text else "")


def _guard_text(guard: Any) -> str:
    """A guard of Dynamo as one line; "" for those that every program has."""
    kind, name = guard.create_fn_name(), str(guard.name)
    held = guard.obj_weakref() if callable(guard.obj_weakref) else None
    if kind == "TENSOR_MATCH" and isinstance(held, torch.Tensor):
        facts = f"{str(held.dtype).removeprefix('torch.')} on {held.device}, shape {tuple(held.shape)}, stride {held.stride()}"
        return readable(f"{name}: a {type(held).__name__}, {facts}, requires_grad={held.requires_grad}")
    if not name and kind != "SHAPE_ENV":
        return ""
    return readable(" and ".join(guard.code_list)) if guard.code_list else ""


def readable(text: str) -> str:
    """A guard without addresses, and with names of arguments as the program has them."""
    first = _COMMENT.sub("", text.strip().partition("\nUser stack trace")[0])
    line = _LOCAL.sub(r"\1", _ADDRESS.sub("", " ".join(first.split())))
    line = _BUILTINS.sub(r"builtins.\1", _IMPORTED.sub(lambda found: found[1].replace("_dot_", "."), line))
    return _SAME_OBJECT.sub(r"\1 is the same object", _SAME_TYPE.sub(r"type(\1) is \2", line))


# ---------------------------------------------------------------------------------------------------------- what calls do


def _mutations(instance: Instance, outcome: Outcome) -> Iterable[str]:
    """The arguments whose values a call changes, and the buffers that some call changes."""
    if not isinstance(outcome, (Returned, Raised)):
        return
    target = instance.target
    state = dict(target.named_buffers()) if isinstance(target, torch.nn.Module) else {}
    earlier = {f"module.{name}": buffer.detach().clone() for name, buffer in state.items()}
    for number, call in enumerate(outcome.calls):
        instance.prepare(number)
        args, kwargs, _ = instance.arguments(*instance.inputs(number))
        given = {leaf.path: leaf.value for leaf in flatten(args, "args")[0] + flatten(kwargs, "kwargs")[0]}
        yield from (f"call {number}: {leaf.path}" for leaf in call.inputs_after if _is_changed(given, leaf))
        yield from (f"call {number}: {leaf.path}" for leaf in call.module_state if _is_changed(earlier, leaf))
        earlier.update((leaf.path, leaf.value) for leaf in call.module_state if leaf.path in earlier)


def _is_changed(before: dict[str, Any], leaf: Leaf) -> bool:
    if leaf.path not in before:
        return False
    old, new = before[leaf.path], leaf.value
    if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
        return False
    if old.shape != new.shape or old.dtype != new.dtype:
        return True
    return has_plain_storage(old) and has_plain_storage(new) and not torch.equal(bytes_of(old), bytes_of(new))


def _aliases(outcome: Outcome) -> Iterable[str]:
    if not isinstance(outcome, (Returned, Raised)):
        return
    for number, call in enumerate(outcome.calls):
        for group in call.aliases.objects:
            yield from (f"call {number}: {out} is {_listed(group, out)}" for out in _outputs(group))
        for group in call.aliases.storages:
            if group not in call.aliases.objects:
                outputs = _outputs(group)
                yield from (f"call {number}: {out} shares memory with {_listed(group, out)}" for out in outputs)


def _outputs(group: tuple[str, ...]) -> list[str]:
    """The outputs to list for a group of paths that share memory: all, or all but the last if the group has only outputs."""
    found = [path for path in group if path.startswith("output")]
    return found if len(found) < len(group) else found[:-1]


def _listed(group: tuple[str, ...], but: str) -> str:
    return ", ".join(path for path in group if path != but)


def _memory(instance: Instance, outcome: Outcome, graphs: Sequence[torch.fx.GraphModule]) -> Memory | None:
    if not isinstance(outcome, (Returned, Raised)) or not outcome.calls:
        return None
    target, first = instance.target, outcome.calls[0]
    is_module = isinstance(target, torch.nn.Module)
    peaks = [_alive(graph_module) for graph_module in graphs]
    known = [peak for peak in peaks if peak is not None]
    return Memory(
        parameters=_size(target.parameters()) if is_module else 0,
        buffers=_size(target.buffers()) if is_module else 0,
        inputs=_size(leaf.value for leaf in first.inputs_after),
        outputs=_size(leaf.value for leaf in first.outputs),
        intermediates=max(known) if known and len(known) == len(peaks) else None,
    )


def _size(values: Iterable[Any]) -> int:
    return sum(value.nbytes for value in values if isinstance(value, torch.Tensor))


def _alive(graph_module: torch.fx.GraphModule) -> int | None:
    """The most bytes of results that are alive at one time, if each is freed after its last use; None if a size is a symbol.

    Views share the storage of what they view, and inputs are not counted.
    """
    nodes = list(graph_module.graph.nodes)
    position = {node: at for at, node in enumerate(nodes)}
    storages: dict[int, int] = {}  # storage -> its bytes
    last_use: dict[int, int] = {}
    made_at: dict[int, int] = {}
    given: set[int] = set()
    for at, node in enumerate(nodes):
        value = node.meta.get("example_value")
        for tensor in value if isinstance(value, (tuple, list)) else (value,):
            if not isinstance(tensor, torch.Tensor) or not has_plain_storage(tensor):
                continue
            storage = tensor.untyped_storage()
            if not isinstance(nbytes := storage.nbytes(), int):
                return None
            storages[storage._cdata] = nbytes
            made_at.setdefault(storage._cdata, at)
            given |= {storage._cdata} if node.op in ("placeholder", "get_attr") else set()
            uses = [at, *(position[user] for user in node.users)]
            last_use[storage._cdata] = max(last_use.get(storage._cdata, 0), *uses)
    own = storages.keys() - given
    return max(
        (sum(storages[key] for key in own if made_at[key] <= at <= last_use[key]) for at in range(len(nodes))),
        default=0,
    )


def _tools() -> Iterable[str]:
    """Commands that show more; those of other packages only where they are installed."""
    yield 'TORCH_LOGS="graph_breaks,recompiles,guards,output_code" python SCRIPT: what torch logs while it compiles'
    if importlib.util.find_spec("depyf") is not None:
        yield 'depyf: "with depyf.prepare_debug(FOLDER):" around the calls writes the bytecode of Dynamo as Python'
    if shutil.which("tlparse") is not None or importlib.util.find_spec("tlparse") is not None:
        yield "TORCH_TRACE=trace python SCRIPT; tlparse trace/*.log -o report: a report of every compile"
