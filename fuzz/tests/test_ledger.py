"""The ledger: entries explain their buckets and no others; what is fixed, changed or expired is said."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuzz.triage.bucket import Bucket
from fuzz.triage.ledger import known_issue, recheck
from oracle.case import CaseOptions, EagerState, judge_subject
from oracle.known.ledger import load_ledger
from oracle.observe import observe
from oracle.observe.outcome import Returned
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.subjects.registry import load, resolve
from oracle.verdict import Status, Verdict

_TODAY = datetime.date(2026, 12, 1)
_ISSUES = {issue.id: issue for issue in load_ledger().issues}
_WITHOUT_COMPILER = ("dynamo", "aot_eager", "aot_eager_decomp_partition", "export")


def _bucket(**changed: Any) -> Bucket:
    fields: dict[str, Any] = {
        "key": "k", "subject": "inductor", "rung": "inductor", "status": "fail_accuracy", "kind": "output: number",
        "operators": ("floor_divide",), "program": {"calls": [{"args": []}]}, "source": "",
    }  # fmt: skip
    return Bucket(**{**fields, **changed})


def test_an_entry_explains_its_bucket() -> None:
    assert known_issue(_bucket(), load_ledger().issues, today=_TODAY) == _ISSUES["pytorch-197895"]
    shifted = _bucket(operators=("clone", "getitem", "setitem"))
    assert known_issue(shifted, load_ledger().issues, today=_TODAY) == _ISSUES["pytorch-197829"]


@pytest.mark.parametrize(
    "changed",
    [
        {"rung": "aot_eager"},
        {"status": "crash"},
        {"operators": ("add",)},
        {"operators": ("cumsum", "floor_divide", "sort")},
    ],
)
def test_an_entry_does_not_explain_another_bucket(changed: dict[str, Any]) -> None:
    assert known_issue(_bucket(**changed), load_ledger().issues, today=_TODAY) is None


def test_what_is_done_between_calls_can_be_asked_for() -> None:
    stale = {"rung": "dynamo", "status": "fail_guard", "operators": ()}
    other = _bucket(**stale, program={"calls": [{"args": []}, {"args": [], "before": "SCALE = 3"}]})
    assert known_issue(other, load_ledger().issues, today=_TODAY) is None
    this = _bucket(
        **stale, program={"calls": [{"args": []}, {"args": [], "before": "object.__setattr__(target, 'm', 1)"}]}
    )
    assert known_issue(this, load_ledger().issues, today=_TODAY) == _ISSUES["pytorch-197859"]


def test_shared_memory_can_be_asked_for() -> None:
    plain = _bucket(rung="aot_eager", status="fail_guard", operators=("add", "sum"))
    assert known_issue(plain, load_ledger().issues, today=_TODAY) is None
    shared = replace(plain, program={"calls": [{"args": [{"$": "tensor", "storage": "m"}]}]})
    assert known_issue(shared, load_ledger().issues, today=_TODAY) == _ISSUES["pytorch-178680"]


def test_lines_of_the_program_can_be_asked_for() -> None:
    wrong_strides = _bucket(rung="aot_eager", status="fail_stride", kind="output.stride()", operators=("add", "neg"))
    assert known_issue(wrong_strides, load_ledger().issues, today=_TODAY) is None
    out = replace(wrong_strides, source="def program(a, b):\n    v0 = torch.neg(a)\n    torch.add(b, 2, out=v0)\n")
    assert known_issue(out, load_ledger().issues, today=_TODAY) == _ISSUES["pytorch-133512-out"]


def test_a_scatter_is_reinplaced_only_where_something_is_written() -> None:
    """A scatter into a tensor that overlaps itself differs for another reason."""
    scatter = _bucket(
        operators=("slice_scatter",), source="def program(a, b):\n    v0 = a.slice_scatter(b, 1, 4, 5, 2)\n"
    )
    assert known_issue(scatter, load_ledger().issues, today=_TODAY) is None
    overlapping = {"$": "tensor", "shape": [2, 5], "dtype": "float32", "stride": [1, 1]}
    found = known_issue(
        replace(scatter, program={"calls": [{"args": [overlapping]}]}), load_ledger().issues, today=_TODAY
    )
    assert found == _ISSUES["slice-scatter-of-overlapping"]
    written = replace(scatter, source=scatter.source + "    a.zero_()\n", operators=("slice_scatter", "zero"))
    assert known_issue(written, load_ledger().issues, today=_TODAY) == _ISSUES["pytorch-198094"]


def test_one_of_several_operators_can_be_asked_for() -> None:
    strides = {"status": "fail_stride", "kind": "output.stride()"}
    for operators, expected in {
        ("neg", "select"): "strides-of-view-of-result",
        ("diagonal", "square"): "strides-of-view-of-result",
        ("neg", "square"): None,
    }.items():
        found = known_issue(_bucket(operators=operators, **strides), load_ledger().issues, today=_TODAY)
        assert found == (expected and _ISSUES[expected])


@pytest.mark.parametrize(
    ("culprit", "kind", "expected"),
    [
        ("lowering: aten.expm1, vector code", "output: number", "pytorch-189803-expm1-near-zero"),
        ("lowering: aten.expm1, vector code", "output: sign of zero", "pytorch-189803-expm1-near-zero"),
        ("lowering: aten.expm1, vector code", "output: nan for number", None),
        ("lowering: aten.exp", "output: number", None),
        ("codegen: vector code", "output: number", None),
        ("", "output: number", None),
    ],
)
def test_the_lowering_at_fault_is_known_from_whatever_reaches_it(culprit: str, kind: str, expected: str | None) -> None:
    found = _bucket(kind=kind, culprit=culprit, operators=("add", "celu", "chunk", "sigmoid"))
    assert known_issue(found, load_ledger().issues, today=_TODAY) == (expected and _ISSUES[expected])


@pytest.mark.parametrize(
    ("lists", "expected"),
    [("[a0, a1], [a1, a0]", "foreach-to-each-other"), ("[a0, a1], [a2, a3]", None), ("[a0, a1], [a0, a1]", None)],
)
def test_a_list_operator_is_known_where_its_lists_are_exchanged(lists: str, expected: str | None) -> None:
    written = _bucket(
        rung="aot_eager",
        status="fail_mutation",
        kind="argument: number",
        operators=("_foreach_mul",),
        source=f"def program(*args):\n    torch._foreach_mul_({lists})\n",
    )
    assert known_issue(written, load_ledger().issues, today=_TODAY) == (expected and _ISSUES[expected])


def test_a_custom_function_is_known_where_its_result_is_a_view() -> None:
    def bucket(returned: str) -> Bucket:
        return _bucket(
            rung="aot_eager",
            status="fail_grad",
            kind="grad: number",
            operators=("apply", "reshape"),
            source=f"    def forward(ctx, x):\n        return {returned}\n",
        )

    view = known_issue(bucket("x.view_as(x)"), load_ledger().issues, today=_TODAY)
    assert view == _ISSUES["custom-view-transposed"]
    assert known_issue(bucket("x * 2"), load_ledger().issues, today=_TODAY) is None


def test_a_value_written_without_gradients_is_known_where_it_is_the_result() -> None:
    def bucket(returned: str) -> Bucket:
        return _bucket(
            rung="aot_eager_decomp_partition",
            status="fail_grad",
            kind="grad: number",
            operators=("neg", "set_grad_enabled"),
            source=f"    with torch.set_grad_enabled(False):\n        v0.neg_()\n    return {returned}\n",
        )

    assert known_issue(bucket("v0"), load_ledger().issues, today=_TODAY) == _ISSUES["no-grad-write-decomposed"]
    assert known_issue(bucket("(v0, v1)"), load_ledger().issues, today=_TODAY) is None


def test_an_argument_can_be_asked_for() -> None:
    def read(**spec: Any) -> Bucket:
        arguments = [{"$": "tuple", "items": [{"$": "tensor", "shape": [3], "dtype": "float32", **spec}]}]
        return _bucket(operators=("scatter",), program={"calls": [{"args": arguments}]})

    assert known_issue(read(), load_ledger().issues, today=_TODAY) is None
    assert known_issue(read(neg=True), load_ledger().issues, today=_TODAY) == _ISSUES["negative-bit-of-argument"]


def test_an_entry_with_a_configuration_explains_programs_that_have_one() -> None:
    mask = _bucket(rung="aot_eager", status="fail_grad", kind="grad: number", operators=("dropout",))
    assert known_issue(mask, load_ledger().issues, today=_TODAY) is None
    budget = {"torch._functorch.config.activation_memory_budget": 0.3}
    under_budget = replace(mask, program={"calls": [{"args": []}], "config": budget})
    assert known_issue(under_budget, load_ledger().issues, today=_TODAY) == _ISSUES["pytorch-190758"]


def test_an_expired_entry_explains_nothing() -> None:
    late = _ISSUES["pytorch-197895"].expires + datetime.timedelta(days=1)
    assert known_issue(_bucket(), load_ledger().issues, today=late) is None


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (Status.FAIL_ACCURACY, "live"),
        (Status.PASS, "fixed"),
        (Status.CRASH, "changed"),
        (Status.EAGER_FAIL_TO_RUN, "unjudged"),
    ],
)
def test_a_run_says_what_became_of_an_issue(status: Status, outcome: str) -> None:
    issue = _ISSUES["pytorch-197895"]
    asked: list[tuple[str, str]] = []

    def judge_on(program: Program, subject: str) -> Verdict:
        asked.append((program.name, subject))
        return Verdict(status=status)

    (found,) = recheck([issue], judge_on, today=_TODAY)
    assert asked == [("pytorch-197895", "inductor")]
    assert found.outcome == outcome
    assert found.needs_attention == (outcome != "live")
    assert found.text().startswith(f"pytorch-197895: {outcome}")
    (late,) = recheck([issue], judge_on, today=datetime.date(2030, 1, 1))
    assert late.is_expired
    assert late.needs_attention


_SHOWN = [name for name, issue in _ISSUES.items() if issue.subject in _WITHOUT_COMPILER]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if i % 2 else []) for i, name in enumerate(_SHOWN)]
)
def test_the_programs_of_entries_that_need_no_compiler_still_show_them(name: str) -> None:
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"measured on torch 2.13, this is {torch.__version__}")
    torch._dynamo.reset()

    def judge_on(program: Program, subject: str) -> Verdict:
        eager = EagerState(make=lambda: instantiate(program))
        return judge_subject(eager=eager, subject=load(resolve(subject)), options=CaseOptions()).verdict

    (found,) = recheck([_ISSUES[name]], judge_on, today=_TODAY)
    assert found.outcome == "live", found.text()


@pytest.mark.parametrize("name", ["written-view-returned-twice", "results-of-one-computation"])
def test_one_object_for_two_is_the_same_issue_where_it_is_differentiated(name: str) -> None:
    """It is the issue of wrong aliases: the gradients agree, whatever the number of objects."""
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"measured on torch 2.13, this is {torch.__version__}")
    torch._dynamo.reset()
    issue = _ISSUES[name]
    leaf = "torch.arange(3.0).requires_grad_()"
    source = "import torch\ndef derive(x):\n    return (x * 1,), {}\n" + issue.program.source.replace(
        "torch.arange(3.0)", leaf
    )
    program = replace(issue.program, source=source, calls=(Call(backward=True),))
    eager = EagerState(make=lambda: instantiate(program))
    verdict = judge_subject(eager=eager, subject=load(resolve(issue.rung)), options=CaseOptions()).verdict
    assert verdict.status is Status.FAIL_ALIAS, verdict.symptom
    assert not any("grad of" in symptom for symptom in verdict.also)


def test_every_program_of_the_ledger_runs_in_eager() -> None:
    for issue in _ISSUES.values():
        outcome = observe(instantiate(issue.program))
        if issue.program.expects_raise:
            assert not isinstance(outcome, Returned), issue.id
            continue
        assert isinstance(outcome, Returned), issue.id
        seen = [leaf.value for call in outcome.calls for leaf in (*call.outputs, *call.inputs_after)]
        assert any(isinstance(value, torch.Tensor) for value in seen), issue.id


@pytest.mark.parametrize(("stride", "is_known"), [([2], True), ([1], False)])
def test_what_eager_does_wrong_is_known_on_any_rung(stride: list[int], is_known: bool) -> None:
    weight = {
        "$": "tensor",
        "shape": [5],
        "dtype": "float32",
        "stride": stride,
        "offset": 0,
        "fill": {"kind": "arange"},
    }
    bucket = _bucket(
        rung="triton", subject="triton", status="fail_grad", kind="grad: number", operators=("batch_norm",),
        program={"calls": [{"args": [weight]}]},
    )  # fmt: skip
    found = known_issue(bucket, load_ledger().issues, today=_TODAY)
    assert (found is not None and found.of_eager) == is_known
