"""Hypothesis strategies for property tests of your own backend.

    >>> from hypothesis import given, settings
    >>> import fuzz
    >>> @given(fuzz.programs(focus="ops", max_statements=2))
    ... @settings(max_examples=5, deadline=None, database=None, derandomize=True)
    ... def my_backend_is_right(program):
    ...     fuzz.assert_agrees(program, "aot_eager")
    >>> my_backend_is_right()

Campaigns (`torch-oracle fuzz`) draw from the same grammar, faster and with coverage feedback.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
import torch
from hypothesis import strategies as st

from fuzz.draw.choices import HypothesisDraw
from fuzz.draw.inputs.shapes import draw_pool, draw_shape
from fuzz.draw.inputs.specs import DTYPE_WEIGHTS, draw_dtype, draw_spec
from fuzz.draw.scene import Scene
from fuzz.draw.settings import Settings
from fuzz.judge.refusal import refusal_of
from fuzz.judge.single import judge
from fuzz.program.render import render, to_program
from fuzz.program.structure import Entries, Expr, FuzzProgram, Items, OpCall, Operand, Ref
from fuzz.vocabulary.operators import OPERATORS
from fuzz.vocabulary.programs import draw_program
from oracle.checking import DisagreementError
from oracle.errors import UsageError
from oracle.program.inputs import decode
from oracle.subjects.base import Subject
from oracle.subjects.registry import check_requirements, load, of_callable, resolve
from oracle.verdict import Status, Verdict

_LARGEST_SEED = (1 << 31) - 1
PROFILES = {"torch-oracle-ci": 200, "torch-oracle-nightly": 10_000}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpExample:
    """A call of one operator that eager accepts.

    `args` and `kwargs` are live values; a call may write to them if the operator does. `program` is the same as a program.
    """

    name: str  # "torch.add", ".add_" (a method of the first argument), "operator.floordiv", "getitem", "setitem"
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    program: FuzzProgram

    def __call__(self) -> Any:
        """Call the operator; returns its result."""
        return _function(self.name)(*self.args, **self.kwargs)


@st.composite
def programs(
    draw: Callable[[st.SearchStrategy[Any]], Any],
    *,
    focus: str = "all",
    max_statements: int = 6,
    dtypes: Sequence[str] = (),
    random_ops: bool = True,
    calls: int = 3,
) -> FuzzProgram:
    """Programs with their call plans, each accepted by eager on its first call.

    `focus` is one of `fuzz.draw.settings.FOCUSES` ("ops", "views", "autograd", "python", "guards", "dynamic", ..., "all");
    `max_statements` limits the steps: most are one statement, some a few that belong together. `dtypes` limits the dtypes of new
    tensors ("float32", ...) unless an operator needs others; indices stay integers. `calls` limits the number of calls. Raises
    UsageError for an unknown focus or dtype.
    """
    settings = Settings(
        focus=focus, max_statements=max_statements, dtypes=_known(dtypes), is_random=random_ops, calls=calls
    )
    state = random.getstate()  # a program runs while it is drawn, which seeds all generators
    try:
        return draw_program(HypothesisDraw(draw), settings)
    finally:
        random.setstate(state)


@st.composite
def tensors(
    draw: Callable[[st.SearchStrategy[Any]], Any],
    *,
    shape: Sequence[int] | None = None,
    dtypes: Sequence[str] = (),
    requires_grad: bool = False,
    layouts: Sequence[str] = (),
    max_numel: int = 4096,
) -> torch.Tensor:
    """CPU tensors of any geometry: strided, expanded, transposed, with an offset, channels last, overlapping; values with ties,
    NaN, infinities, denormals. `layouts` narrows the geometry (`fuzz.draw.inputs.specs.LAYOUT_WEIGHTS`)."""
    source = HypothesisDraw(draw)
    if shape is None:
        shape = draw_shape(source, draw_pool(source), max_numel=max_numel)
    spec = draw_spec(source, shape, draw_dtype(source, _known(dtypes)), requires_grad=requires_grad, layouts=layouts)
    return decode(spec, seed=0)


@st.composite
def op_calls(draw: Callable[[st.SearchStrategy[Any]], Any], *names: str) -> OpExample:
    """Calls of operators that eager accepts: of those named ("torch.add"), or of any. Raises UsageError for an unknown name."""
    for name in names:
        if name not in OPERATORS:
            raise UsageError(
                seen=f"operator {name!r}",
                expected="a name in fuzz.vocabulary.operators.OPERATORS",
                do="list(fuzz.vocabulary.operators.OPERATORS)",
            )
    source = HypothesisDraw(draw)
    scene = Scene(source, Settings(), seed=source.integer(0, _LARGEST_SEED))
    spec = OPERATORS[source.choice(names or tuple(OPERATORS))]
    call = spec.draw_call(source, scene)
    before = {name: decode(value, seed=scene.seed) for name, value in scene.specs.items()}
    hypothesis.assume(call is not None and scene.add(call))
    assert isinstance(call, OpCall)
    result = Ref(call.results[0]) if call.results else None
    return OpExample(
        name=call.target,
        args=tuple(_value(arg, before) for arg in call.args),
        kwargs={name: _value(value, before) for name, value in call.kwargs},
        program=scene.to_program(result),
    )


def assert_agrees(program: FuzzProgram, subject: str | Callable[..., Any]) -> Verdict:
    """Raise DisagreementError, with the program's source, unless `subject` agrees with eager on every call of the plan.

    `subject` is a name (`torch-oracle list subjects`), a path "module:function", or a Dynamo backend. It runs in this process.
    Programs that eager refuses, or on which two eager runs differ, are discarded (`hypothesis.assume`), and so are those that the
    subject refuses (`fuzz.judge.refusal`).
    """
    asked = _subject(subject)
    result = judge(to_program(program, name="example"), asked)
    verdict = result.verdict
    if hypothesis.currently_in_test_context():
        hypothesis.assume(verdict.status not in (Status.EAGER_FAIL_TO_RUN, Status.EAGER_TWO_RUNS_DIFFER))
        hypothesis.assume(not refusal_of(verdict, asked.spec, traceback=result.traceback))
    misuse = getattr(asked, "misuse", None)
    if misuse is not None:  # a backend that returns something that cannot be called
        raise misuse
    if verdict.status.is_finding:
        if hypothesis.currently_in_test_context():
            hypothesis.note(render(program))
        raise DisagreementError(asked.spec.name, verdict)
    return verdict


def register_profiles() -> None:
    """Hypothesis profiles: "torch-oracle-ci" (200 examples, always the same), "torch-oracle-nightly" (10 000, new ones)."""
    for name, count in PROFILES.items():
        hypothesis.settings.register_profile(
            name,
            max_examples=count,
            deadline=None,
            derandomize=name.endswith("-ci"),
            suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large],
            print_blob=True,
        )


@functools.lru_cache(maxsize=8)
def _loaded(name: str) -> Subject:
    spec = resolve(name)
    check_requirements(spec)
    return load(spec)


def _subject(subject: str | Callable[..., Any]) -> Subject:
    return _loaded(subject) if isinstance(subject, str) else of_callable(subject)


def _known(dtypes: Sequence[str]) -> tuple[str, ...]:
    for dtype in dtypes:
        if dtype not in DTYPE_WEIGHTS:
            raise UsageError(
                seen=f"dtype {dtype!r}", expected=f"one of {', '.join(DTYPE_WEIGHTS)}", do="choose among them"
            )
    return tuple(dtypes)


def _value(operand: Operand, values: dict[str, Any]) -> Any:
    match operand:
        case Ref(name=name):
            return values[name]
        case Expr(text=text):
            return eval(text, {"torch": torch})  # text of our own grammar
        case Items(items=items, kind=kind):
            found = [_value(item, values) for item in items]
            return tuple(found) if kind == "tuple" else found
        case Entries(entries=entries):
            return {key: _value(item, values) for key, item in entries}
        case _:
            return operand


def _function(target: str) -> Callable[..., Any]:
    if target.startswith("."):
        return lambda first, *args, **kwargs: getattr(first, target[1:])(*args, **kwargs)
    if target in ("getitem", "setitem"):
        return getattr(operator, target)
    root, *parts = target.split(".")
    return functools.reduce(getattr, parts, {"torch": torch, "operator": operator}[root])


__all__ = [
    "PROFILES",
    "DisagreementError",
    "OpExample",
    "assert_agrees",
    "op_calls",
    "programs",
    "register_profiles",
    "tensors",
]
