"""The lines of a short script after the program: inputs, calls, what is printed, and the comparison that sets the exit code."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fuzz.triage.symptom_place import Kind, Place
from fuzz.triage.written import WrittenCall, WrittenProgram
from oracle.program import Call

_WIDTH = 110
_TENSORS = "torch.utils._pytree.tree_leaves({}) if isinstance(t, torch.Tensor)"
_TIE = "\0"  # a space at which a line is not broken
_SIZES = re.compile(r"\(\d+(?:, \d+)+\)")
_MODES = {"no_grad": "torch.no_grad()", "inference": "torch.inference_mode()"}

Compiling = Callable[[str], str]  # the expression of what is called -> that of the compiled one


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How careful a short script is."""

    is_fresh: bool  # a function `run` makes new inputs for each run
    is_seeded: bool  # and seeds the random generator
    is_uneven: bool  # the gradients of outputs differ from one another
    is_named: bool  # compares one tensor, not all


def body_lines(
    text: WrittenProgram,
    place: Place,
    style: Style,
    limits: Mapping[str, float],
    compiling: Compiling,
    *,
    is_warm: bool,
    is_trial: bool = False,
) -> list[str]:
    """The lines. `is_warm`: the plan's earlier calls are made first, and what they compiled is used again.

    `is_trial`: an exception that is not the symptom ends the script with 2.
    """
    call = text.calls[place.call]
    lines, target, compiled = _targets(text, call, style, compiling, is_warm=is_warm, up_to=place.call)
    if style.is_fresh:
        lines = [*_run_function(text, call, place, style), "", *lines]
        calls = [f"run({target})", f"run({compiled})"]
    else:
        lines += call.lines
        if call.args and not all(arg.isidentifier() for arg in call.args):
            lines += [f"args = {_bracketed(call.args)}"]
            given = ", ".join(["*args", *(f"{name}={value}" for name, value in call.kwargs)])
        else:
            given = call.given
        suffix = place.path.removeprefix("output") if style.is_named and place.kind is Kind.OUTPUT else ""
        calls = [f"{target}({given}){suffix}", f"{compiled}({given}){suffix}"]
    return [short for line in [*lines, *_ending(place, calls, limits, is_trial=is_trial)] for short in _wrapped(line)]


def _ending(place: Place, calls: list[str], limits: Mapping[str, float], *, is_trial: bool) -> list[str]:
    """The two runs and their comparison."""
    if place.kind is Kind.RETURNS:
        code = f"1 if type(error).__name__ == {place.exception!r} else 2"
        return [calls[0], *(_tried(calls[1], code) if is_trial else [f"{calls[1]}  # raises {place.exception}"])]
    both = f"eager, compiled = {calls[0]}, {calls[1]}"
    lines = [*(_tried(both, "2") if is_trial else [both]), 'print("eager   ", eager)', 'print("compiled", compiled)']
    match place.kind:
        case Kind.FACT | Kind.GENERATOR:
            return [*lines, "raise SystemExit(eager != compiled)"]
        case Kind.EXCEPTION:
            return [*lines, "raise SystemExit(eager is not compiled)"]
        case _:
            near = "".join(f"{name}={value!r}, " for name, value in limits.items())
            return [*lines, f"torch.testing.assert_close(compiled, eager, {near}equal_nan=True)"]


def _tried(line: str, code: str) -> list[str]:
    return ["try:", f"    {line}", "except Exception as error:", f"    raise SystemExit({code})"]


# ------------------------------------------------------------------------------------------------------- what is called


def _targets(
    text: WrittenProgram, call: WrittenCall, style: Style, compiling: Compiling, *, is_warm: bool, up_to: int
) -> tuple[list[str], str, str]:
    """Lines that make it and bring it into the state of the call, then the expressions of eager and of the compiled one."""
    made, lines = text.target, []
    if style.is_seeded and text.is_module:
        lines = ["def model():", f"    torch.manual_seed({text.seed})", f"    return {made}", ""]
        made = "model()"
    if not is_warm and not call.plan.before:
        made += "" if call.plan.training is None or not text.is_module else f".train({call.plan.training})"
        return lines, made, compiling(made)
    earlier = text.calls[:up_to] if is_warm else ()
    before = "\n".join(one.plan.before for one in (*earlier, call))
    if text.is_module or re.search(r"\btarget\b", before):
        lines.append(f"target = {made}")
        made = "target"
    if not earlier:
        return [*lines, *_before(text, call.plan)], made, compiling(made)
    lines.append(f"optimized = {compiling(made)}")
    for one in earlier:
        lines += _before(text, one.plan)
        is_same = (one.lines, one.given) == (call.lines, call.given) and one.plan.grad_mode == call.plan.grad_mode
        if style.is_fresh and is_same:
            lines.append("run(optimized)")
        else:
            lines += [*one.lines, *_under(one.plan, [f"optimized({one.given})"])]
    return [*lines, *_before(text, call.plan)], made, "optimized"


def _before(text: WrittenProgram, plan: Call) -> list[str]:
    """The plan's changes before a call."""
    training = [] if plan.training is None or not text.is_module else [f"target.train({plan.training})"]
    return [*plan.before.strip("\n").splitlines(), *training]


def _under(plan: Call, lines: list[str]) -> list[str]:
    """The lines under the plan's gradient mode."""
    mode = _MODES.get(plan.grad_mode)
    return [f"with {mode}:", *(f"    {line}" for line in lines)] if mode else lines


# --------------------------------------------------------------------------------------------------- the function `run`


def _run_function(text: WrittenProgram, call: WrittenCall, place: Place, style: Style) -> list[str]:
    lines = [f"torch.manual_seed({text.seed})"] if style.is_seeded else []
    made, given = _arguments(text, call, place)
    lines += made
    called = f"f({given})"
    needs_backward = place.in_backward or (place.kind is Kind.GENERATOR and call.plan.backward)
    result = _result(place, style, called)
    needs_output = needs_backward or re.search(r"\boutput\b", result) is not None
    if place.kind is Kind.EXCEPTION:
        seen = [f"output = {called}", *_backward(style), "return output"] if needs_backward else [f"return {called}"]
        tried = [f"    {line}" for line in _under(call.plan, seen)]
        lines += ["try:", *tried, "except Exception as error:", "    return type(error)"]
    elif result.startswith(called) and not needs_output:
        lines += _under(call.plan, [f"return {result}"])
    else:
        lines += _under(call.plan, [f"output = {called}" if needs_output else called])
        lines += _backward(style) if needs_backward else []
        lines += [f"return {result}"] if result else []
    return ["def run(f):", *(f"    {line}" for line in lines)]


def _arguments(text: WrittenProgram, call: WrittenCall, place: Place) -> tuple[list[str], str]:
    """Lines that make the arguments, and the arguments as they stand in the call."""
    used = place.kind in (Kind.ARGUMENT, Kind.GRADIENT)
    lines, args, kwargs = list(call.lines), call.args, call.kwargs
    if text.derives:
        if text.derived is None or call.rest:
            return [*lines, f"args, kwargs = derive({call.given})"], "*args, **kwargs"
        lines += _unpacked(text.derived.names, args, is_bound=place.names("inputs"))
        lines += [*text.derived.made.lines]
        args, kwargs = text.derived.made.args, text.derived.made.kwargs
    elif call.rest:
        return lines, call.rest
    rest = [f"{name}={value}" for name, value in kwargs]
    if place.names("kwargs"):
        lines.append("kwargs = {" + ", ".join(f"{name!r}: {value}" for name, value in kwargs) + "}")
        rest = ["**kwargs"]
    if place.names("args") or (used and not place.names("inputs")):
        lines.append(f"args = {_bracketed(args)}")
        return lines, ", ".join(["*args", *rest])
    return lines, ", ".join([*args, *rest])


def _unpacked(names: Sequence[str], values: Sequence[str], *, is_bound: bool) -> list[str]:
    """Assignments of the inputs to the parameters of `derive`, and to `inputs` if the script compares these."""
    if is_bound:
        unpacked = f"({names[0]},)" if len(names) == 1 else ", ".join(names)
        return [f"inputs = {_bracketed(values)}", f"{unpacked} = inputs"]
    return [f"{name} = {value}" for name, value in zip(names, values, strict=True) if name != value]


def _backward(style: Style) -> list[str]:
    if not style.is_uneven:
        return ["output.sum().backward()"]
    tangent = "torch.arange(1.0, t.numel() + 1).reshape(t.shape).to(t.dtype)"
    return [
        f"results = [t for t in {_TENSORS.format('output')} and t.requires_grad]",
        f"torch.autograd.backward(results, [{tangent} for t in results])",
    ]


def _result(place: Place, style: Style, called: str) -> str:
    """The expression that `run` returns; "" for nothing."""
    root = re.split(r"[.\[]", place.path, maxsplit=1)[0]
    match place.kind:
        case Kind.OUTPUT:
            return called + (place.path.removeprefix("output") if style.is_named else "")
        case Kind.ARGUMENT:
            return place.path if style.is_named else root
        case Kind.STATE:
            return place.path
        case Kind.GRADIENT if style.is_named:
            return f"{place.path}.grad"
        case Kind.GRADIENT if root == "f":
            return "[p.grad for p in f.parameters()]"
        case Kind.GRADIENT:
            return f"[t.grad for t in {_TENSORS.format(root)} and t.is_leaf]"
        case Kind.FACT if re.findall(r"\b(?:output|args|kwargs|inputs|f)\b", place.fact) == ["output"]:
            return place.fact.replace("output", called, 1)
        case Kind.FACT:
            return place.fact
        case Kind.GENERATOR:
            return "torch.rand(()).item()  # the next random number"
        case Kind.RETURNS | Kind.EXCEPTION:
            return ""


# ------------------------------------------------------------------------------------------------------------------ text


def _bracketed(values: Sequence[str]) -> str:
    return f"[{', '.join(values)}]"


def _wrapped(line: str) -> list[str]:
    """The line in several ones, if it is a long list of tensors or numbers, which may be broken between its items."""
    has_text = re.search(r"['\"#]| for ", re.sub(r"float\('\w+'\)", "", line))
    if len(line) <= _WIDTH or has_text or not line.endswith(("]", ")")):
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    tied = _SIZES.sub(lambda sizes: sizes[0].replace(" ", _TIE), re.sub(r"(?<!,) ", _TIE, line.strip()))
    found = textwrap.wrap(
        tied, _WIDTH, initial_indent=indent, subsequent_indent=indent + "    ", break_long_words=False,
        break_on_hyphens=False,
    )  # fmt: skip
    return [one.replace(_TIE, " ") for one in found]
