"""Graph breaks: a registered reason why capture stops, the user's line, and what to do about it.

Counterpart: torch/_dynamo/exc.py Unsupported, unimplemented; torch/_dynamo/graph_break_registry.json, graph_break_hints.py
Differs: the kinds of breaks are a table in Python, and an id is never used for another kind. A graph break is an error under
`fullgraph` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

_NOT_YET = "This is a limit of refimpl.capture, not of your program."
_RAISES = "Run the function eagerly: if it raises there too, capture is not the cause."
_FORBID = "If the call is intended, mark it with torch._dynamo.disable, or add a graph break before it."
_TENSORS = "Keep the value in tensors (torch.where, masks), or capture data-dependent values (capture_scalar_outputs)."


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakKind:
    """A kind of graph break. `{...}` in its texts is filled in with the details of one break."""

    id: str
    name: str
    explanation: str
    hints: tuple[str, ...]


def _kinds(*kinds: BreakKind) -> Mapping[str, BreakKind]:
    found = {kind.name: kind for kind in kinds}
    assert len(found) == len(kinds) == len({kind.id for kind in kinds}), "names and ids of graph breaks are used once"
    return MappingProxyType(found)


def _kind(id_: str, name: str, explanation: str, *hints: str) -> BreakKind:
    return BreakKind(id=id_, name=name, explanation=explanation, hints=hints)


REGISTRY = _kinds(
    _kind(
        "RC0001",
        "branch_on_tensor",
        "control flow depends on the value of a tensor ({what})",
        _TENSORS,
        "Use torch.cond, which captures both branches.",
    ),
    _kind("RC0002", "data_dependent_read", "{what} reads a value out of a tensor", _TENSORS),
    _kind(
        "RC0003",
        "dynamic_output_shape",
        "the output shape of {what} depends on data",
        "Set capture_dynamic_output_shape_ops.",
    ),
    _kind(
        "RC0004",
        "op_raises_on_fake",
        "{what} raises {error} on tensors of these shapes and dtypes{said}",
        "Run the function eagerly: it raises there too.",
    ),
    _kind(
        "RC0005",
        "op_without_fake_kernel",
        "{what} has no fake kernel",
        "Register one with torch.library.register_fake.",
    ),
    _kind("RC0006", "not_a_graph_argument", "a {what} is given to a torch function", _NOT_YET),
    _kind("RC0007", "op_returns", "{what} returns a {result}, which a graph cannot contain", _NOT_YET),
    _kind(
        "RC0008",
        "guard_on_data",
        "Could not guard on data-dependent expression: it needs a number that is read from a tensor ({what})",
        "State its range with torch._check, or keep it in tensors (torch.where, masks).",
    ),
    _kind(
        "RC0009",
        "outside_of_range",
        "{what} needs a number that is read from a tensor to have an impossible value: {error}",
        "Look for calls of torch._check that contradict each other.",
    ),
    _kind(
        "RC0010",
        "call_of_native_code",
        "{what} is written in C, and nothing is known of what it does",
        "Wrap it in a custom operator (torch.library.custom_op).",
        _FORBID,
    ),
    _kind(
        "RC0011",
        "call_of_skipped_function",
        "{what} is marked to be skipped by capture",
        "Remove the mark, or call it outside of the captured function.",
    ),
    _kind("RC0012", "unsupported_code", "{what} cannot be interpreted: {error}", _NOT_YET),
    _kind("RC0013", "user_break", "the program asks for a graph break here", "Remove the call of graph_break()."),
    _kind(
        "RC0014",
        "output_of_program",
        "{what} prints or logs",
        "List it in reorderable_logging_functions if it may run later.",
    ),
    _kind("RC0016", "wrong_arguments", "{what} does not accept these arguments: {error}", _RAISES),
    _kind("RC0020", "unsupported_operation", "{what} is not known for a {kind}", _NOT_YET),
    _kind("RC0021", "unsupported_input", "a {kind} is not supported as an input ({what})", _NOT_YET),
    _kind("RC0022", "cannot_rebuild", "a {kind} cannot be rebuilt after the graph", _NOT_YET),
    _kind(
        "RC0023",
        "effect_in_branch",
        "a function given to {what} changes {kind}",
        "Return the new value instead of changing an object.",
    ),
    _kind("RC0024", "exception_leaves", "{what} is raised, and the captured code does not handle it", _RAISES),
    _kind(
        "RC0025",
        "generator_waits",
        "a generator is suspended inside a `try` or `with` where the graph ends",
        "Run it to its end, or close it.",
    ),
    _kind(
        "RC0026",
        "update_of_shared_places",
        "{what} updates a tensor whose elements share memory: the result depends on the order in which they are computed",
        "Write to a clone of it.",
    ),
    _kind(
        "RC0027",
        "read_after_write",
        "{what} writes to memory that another argument reads: the result depends on the order of reads and writes",
        "Pass a clone of one of them.",
    ),
    _kind(
        "RC0030",
        "too_many_instructions",
        "more than {what} instructions in one segment: a loop is unrolled, perhaps one over an infinite generator",
        "Put the loop's body into a function that is captured on its own.",
    ),
    _kind("RC0031", "too_deep", "calls are nested more than {what} deep", "Look for endless recursion."),
    _kind(
        "RC0032",
        "recompile_limit",
        "{what} was captured {kind} times for different inputs",
        "Use mark_dynamic, or raise recompile_limit.",
    ),
    _kind(
        "RC0034",
        "operator_aliases",
        "Encountered aliasing during higher order op tracing: {which} of a function given to {what} share memory",
        "Clone the tensor before it is returned, or before it is given to the operator.",
    ),
    _kind(
        "RC0035",
        "operator_mutates",
        "Encountered input mutation during higher order op tracing: a function given to {what} writes to a tensor that it did "
        "not make",
        "Write to a clone of it, and return the clone.",
    ),
    _kind(
        "RC0036",
        "aliases_of_region",
        "Encountered aliasing during higher order op tracing: an input or result of {what} shares memory with another one",
        "Clone one of them.",
    ),
    _kind(
        "RC0037",
        "attribute_of_script_object",
        "attribute {what} of a script object of class {kind}: either it is no method, or the class has no registered fake",
        "Register a fake with torch._library.register_fake_class, and call methods only.",
    ),
    _kind(
        "RC0038",
        "direct_call_of_region",
        "Directly using invoke_subgraph is not supported: capture gives the names by which equal calls find their graph",
        "Mark the function with torch.compiler.nested_compile_region, and call it.",
    ),
    _kind(
        "RC0039",
        "too_many_graphs_of_region",
        "a nested compile region exceeded maximum reuse entries: its calls need more than {what} graphs, so little is shared",
        "Raise max_reuse_entries, or give what varies as tensors.",
    ),
)


@dataclass(frozen=True, slots=True)
class UserLine:
    """A line of the user's program."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'


class BreakSetting:
    """What `error_on_graph_break` and `disable_nested_graph_breaks` set. Capture interprets the reads and writes of it as those
    of any object of the program.

    So a write during capture is seen by the rest of the segment, is made after the segment has run, and what was read is guarded.
    Unlike torch's, the setting is one for all threads.
    """

    is_error: bool = False
    nests: bool = True  # whether `config.nested_graph_breaks` counts


BREAK_SETTING = BreakSetting()


class GraphBreak(Exception):
    """Capture stops before the current instruction. The domain raises it; the user's program never sees it."""

    def __init__(self, name: str, /, **details: Any) -> None:
        self.kind = REGISTRY[name]
        self.details = details
        self.stack: tuple[UserLine, ...] = ()  # innermost last; filled in by the function that catches the break
        self.is_done = False  # whether the instruction has no effect but the break, so that it need not run again
        self.operator: str | None = None  # the higher-order operator whose call broke the graph
        self.is_error = False  # whether the program forbids it by `error_on_graph_break`
        self.is_of_body = False  # whether a function given to such an operator broke it
        self.restart_at: int | None = None  # the position that the segment has to end at
        super().__init__(name)

    def restarting_at(self, position: int | None) -> GraphBreak:
        """The same break, for a segment that has to end before an earlier instruction."""
        self.restart_at = position
        return self

    @property
    def explanation(self) -> str:
        """The reason, as a sentence."""
        return self.kind.explanation.format(**{"said": "", **self.details})

    def __str__(self) -> str:
        hints = "".join(f"\n  Hint: {hint}" for hint in self.kind.hints)
        places = "".join(f"\n  {place}" for place in self.stack)
        return f"graph break {self.kind.id} ({self.kind.name})\n  Explanation: {self.explanation}{hints}\nfrom user code:{places}"
