"""What a call does besides returning values: mutation, gradients, module state, aliases, generators, later calls, endings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from oracle.observe.outcome import Crashed, Outcome, OutOfMemory, Raised, TimedOut
from oracle.program import ComparePolicy
from oracle.tests.outcomes import judged, observation, raised, returned, returned_calls
from oracle.verdict import Status

X = torch.arange(6.0)


# ----------------------------------------------------------------------- one difference each

ONES, BASE, W, SQUARE = torch.ones(3), torch.zeros(6), torch.zeros(3), torch.arange(4.0).reshape(2, 2)
EMPTY, LONGER = torch.zeros(0, 2), torch.zeros(10)


def transposed_in_memory(x: Tensor) -> Tensor:
    """The same values with the strides of a transpose."""
    return x.t().contiguous().t()


# What differs -> eager, the subject, the verdict, its symptom; `*` at the end stands for any text.
DIFFERENCES: dict[str, tuple[Outcome, Outcome, Status, str]] = {
    # mutation
    "an input is not mutated": (
        returned(X, args=(X + 1,)), returned(X, args=(X,)), Status.FAIL_MUTATION,
        "call 0: args[0][0] is 0, but should be 1*",
    ),
    "an input is mutated": (returned(X, args=(X,)), returned(X, args=(X + 1,)), Status.FAIL_MUTATION, "*"),
    "an input changes its shape": (
        returned(X, args=(X,)), returned(X, args=(X.reshape(2, 3),)), Status.FAIL_MUTATION, "*",
    ),
    "an input changes its strides": (
        returned(X, args=(SQUARE,)), returned(X, args=(transposed_in_memory(SQUARE),)), Status.FAIL_MUTATION,
        "call 0: args[0].stride() is (1, 2), but should be (2, 1)",
    ),
    # gradients
    "a wrong gradient": (
        returned(X, gradients={"args[0]": X}), returned(X, gradients={"args[0]": X * 2}), Status.FAIL_GRAD,
        "call 0: grad of args[0][*",
    ),
    "a gradient where there should be none": (
        returned(X, gradients={"args[0]": None}), returned(X, gradients={"args[0]": X}), Status.FAIL_GRAD, "*",
    ),
    "no gradient where there should be one": (
        returned(X, gradients={"args[0]": X}), returned(X, gradients={"args[0]": None}), Status.FAIL_GRAD, "*",
    ),
    "a gradient in another dtype": (
        returned(X, gradients={"args[0]": X}), returned(X, gradients={"args[0]": X.double()}), Status.FAIL_GRAD,
        "call 0: grad of args[0].dtype is torch.float64, but should be torch.float32",
    ),
    "a missing gradient of a parameter": (
        returned(X, gradients={"module.w": X}), returned(X), Status.FAIL_GRAD, "call 0: grad of module.w is missing*",
    ),
    # state of modules
    **{
        f"a buffer becomes {what}": (
            returned(X, state={"running_mean": X}), returned(X, state={"running_mean": wrong}), Status.FAIL_STATE,
            "call 0: module.running_mean*",
        )
        for what, wrong in {"another": X + 1, "float64": X.double(), "a number": 3}.items()
    },
    "a training flag changes": (
        returned(X, state={"training": True}), returned(X, state={"training": False}), Status.FAIL_STATE,
        "call 0: module.training is False, but should be True",
    ),
    # memory
    "two outputs no longer share a storage": (
        returned(BASE[:3], BASE[3:]), returned(BASE[:3], BASE[3:].clone()), Status.FAIL_ALIAS,
        "call 0: output[0] does not share the storage of output[1], but should",
    ),
    "an output no longer shares its input's storage": (
        returned(X[2:], args=(X,)), returned(X[2:].clone(), args=(X,)), Status.FAIL_ALIAS,
        "call 0: output does not share the storage of args[0], but should",
    ),
    "an output shares its input's storage": (
        returned(X.clone(), args=(X,)), returned(X.view(6), args=(X,)), Status.FAIL_ALIAS,
        "call 0: output shares the storage of args[0], but should not",
    ),
    "an alias at another offset": (
        returned(BASE[1:3], args=(BASE,)), returned(BASE[2:4], args=(BASE,)), Status.FAIL_ALIAS,
        "call 0: output.storage_offset in the storage it shares is 2, but should be 1",
    ),
    "a view of the input in place of the input": (
        returned(W, args=(W,)), returned(W.view(3), args=(W,)), Status.FAIL_ALIAS,
        "call 0: output does not share its object with args[0], but should",
    ),
    "another object without elements": (
        returned(EMPTY, args=(EMPTY,)), returned(EMPTY.clone(), args=(EMPTY,)), Status.FAIL_ALIAS,
        "call 0: output does not share its object with args[0], but should",
    ),
    "parameters come untied": (
        returned(X, state={"encoder": W, "decoder": W}), returned(X, state={"encoder": W, "decoder": W.clone()}),
        Status.FAIL_ALIAS, "*",
    ),
    "other strides": (
        returned(X.reshape(2, 3)), returned(transposed_in_memory(X.reshape(2, 3))), Status.FAIL_STRIDE,
        "call 0: output.stride() is (1, 2), but should be (3, 1)",
    ),
    # metadata
    "a shape that broadcasts": (
        returned(torch.ones(2, 3)), returned(ONES), Status.FAIL_METADATA,
        "call 0: output.shape is (3,), but should be (2, 3)",
    ),
    "a scalar in place of a tensor of one element": (
        returned(torch.ones(1)), returned(torch.ones(())), Status.FAIL_METADATA,
        "call 0: output.shape is (), but should be (1,)",
    ),
    **{
        f"requires_grad is {not wanted}": (
            returned(ONES.clone().requires_grad_(wanted)), returned(ONES.clone().requires_grad_(not wanted)),
            Status.FAIL_METADATA, f"call 0: output.requires_grad is {not wanted}, but should be {wanted}",
        )
        for wanted in (True, False)
    },
    "a list in place of a tuple": (
        returned_calls(observation((X,))), returned_calls(observation([X])), Status.FAIL_METADATA,
        "call 0: output.structure is list(Tensor), but should be tuple(Tensor)",
    ),
    "no outputs in place of two": (
        returned(ONES, ONES), returned_calls(observation(())), Status.FAIL_METADATA, "*",
    ),
    # values
    "int64 off by one beyond the precision of float64": (
        returned(torch.tensor([(1 << 62) + 1])), returned(torch.tensor([(1 << 62) + 2])), Status.FAIL_ACCURACY, "*",
    ),
    "a float beside integers": (
        returned(torch.tensor([1, 2]), ONES), returned(torch.tensor([1, 2]), ONES * 1.01), Status.FAIL_ACCURACY,
        "call 0: output[1][0] is 1.00999999, but should be 1*",
    ),
    "a tensor behind an output that is None": (returned(None, X), returned(None, X + 1), Status.FAIL_ACCURACY, "*"),
    # generators, and endings
    "another state of the generators": (
        returned(X, rng="aaaa"), returned(X, rng="bbbb"), Status.FAIL_RNG,
        "call 0: generator state after the call is 'bbbb', but should be 'aaaa'",
    ),
    "a call that was not observed": (
        returned_calls(observation(X), observation(X)), returned_calls(observation(X)), Status.FAIL_TO_RUN,
        "call 1: number of calls observed is 1, but should be 2",
    ),
    "the subject raises": (
        returned(X), raised(RuntimeError("no such kernel"), phase="compile"), Status.FAIL_TO_RUN,
        "call 0: outcome is RuntimeError in compile ('no such kernel'), but should be a return",
    ),
    "nothing is compared": (
        returned_calls(observation(())), returned_calls(observation(())), Status.PASS_DUE_TO_SKIP,
        "nothing was compared: the program returns and changes nothing",
    ),
    # what does not count
    "strides and flags of a gradient": (
        returned(X, gradients={"a": SQUARE}),
        returned(X, gradients={"a": transposed_in_memory(SQUARE).requires_grad_()}), Status.PASS, "",
    ),
    "where a group of outputs begins in its storage": (
        returned(BASE[:3], BASE[3:]), returned(LONGER[4:7], LONGER[7:]), Status.PASS, "",
    ),
    "who shares memory without elements": (
        returned(W[:0], args=(W,)), returned(torch.zeros(0), args=(W,)), Status.PASS, "",
    ),
    **{
        f"strides {stride} of shape {shape}, which address nothing": (
            returned(torch.zeros(shape)), returned(torch.zeros(1000).as_strided(shape, stride)), Status.PASS, "",
        )
        for shape, stride in (((1, 3), (99, 1)), ((3, 1, 2), (2, 7, 1)), ((0, 4), (1, 1)))
    },
}  # fmt: skip


@pytest.mark.parametrize("what", DIFFERENCES)
def test_a_difference_is_told_by_its_status_and_symptom(what: str) -> None:
    eager, subject, status, symptom = DIFFERENCES[what]
    verdict = judged(eager, subject)
    assert verdict.status is status
    assert fits(verdict.symptom, symptom)


def fits(text: str, expected: str) -> bool:
    return text.startswith(expected[:-1]) if expected.endswith("*") else text == expected


# ----------------------------------------------------------------------- several differences, and policies


def test_a_wrong_value_outweighs_a_wrong_mutation_and_a_wrong_gradient():
    right = returned(X, args=(X + 0,), gradients={"args[0]": X})
    wrong = returned(X + 1, args=(X + 1,), gradients={"args[0]": X + 1})
    verdict = judged(right, wrong)
    assert verdict.status is Status.FAIL_ACCURACY
    assert len(verdict.also) == 2


def test_an_alias_with_other_strides_is_found_once():
    base = torch.zeros(4)
    verdict = judged(returned(base.view(2, 2), args=(base,)), returned(base.view(2, 2).t(), args=(base,)))
    assert verdict.status is Status.FAIL_ALIAS
    assert verdict.also == ()


def test_aliases_are_not_compared_where_the_policy_says_so():
    x = torch.zeros(3)
    policy = ComparePolicy(aliases=False, reason="test")
    assert judged(returned(x[1:], args=(x,)), returned(x[1:].clone(), args=(x,)), policy=policy).status is Status.PASS


@pytest.mark.parametrize(
    ("strides", "status"), [("exact", Status.FAIL_STRIDE), ("views", Status.PASS), ("ignore", Status.PASS)]
)
def test_the_policy_on_strides_of_a_fresh_output(strides, status):
    x = torch.zeros(2, 3)
    policy = ComparePolicy(strides=strides, reason="test")
    assert judged(returned(x), returned(x.t().contiguous().t()), policy=policy).status is status


@pytest.mark.parametrize(
    ("strides", "status"), [("exact", Status.FAIL_ALIAS), ("views", Status.FAIL_ALIAS), ("ignore", Status.PASS)]
)
def test_the_policy_on_strides_of_a_view_of_an_input(strides, status):
    base = torch.zeros(4)
    policy = ComparePolicy(strides=strides, reason="test")
    verdict = judged(
        returned(base.view(2, 2), args=(base,)), returned(base.view(2, 2).t(), args=(base,)), policy=policy
    )
    assert verdict.status is status


# ----------------------------------------------------------------------- generators


def test_wrong_values_outweigh_the_generators_unless_the_program_is_random():
    eager, subject = returned(X, rng="a"), returned(X + 1, rng="b")
    assert judged(eager, subject).status is Status.FAIL_ACCURACY
    assert judged(eager, subject, is_random=True).status is Status.FAIL_RNG


# ----------------------------------------------------------------------- later calls


def test_a_stale_second_call_is_a_guard_failure():
    eager = returned_calls(observation(X), observation(X + 1))
    verdict = judged(eager, returned_calls(observation(X), observation(X)))
    assert verdict.status is Status.FAIL_GUARD
    assert verdict.call == 1
    assert verdict.symptom.startswith("call 1: output[")


def test_a_second_call_that_is_wrong_after_a_wrong_first_one_is_no_guard_failure():
    eager = returned_calls(observation(X), observation(X + 1))
    verdict = judged(eager, returned_calls(observation(X + 5), observation(X)))
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.call == 0


# ----------------------------------------------------------------------- endings


def test_a_subject_out_of_memory_is_oom():
    outcome = raised(RuntimeError("CUDA out of memory"))
    outcome = Raised(exception=replace(outcome.exception, is_out_of_memory=True))
    assert judged(returned(X), outcome).status is Status.OOM


@pytest.mark.parametrize(
    ("outcome", "status", "words"),
    [
        (Crashed(signal=11, exit_code=None, stage="subject", traceback=""), Status.CRASH, "signal 11"),
        (Crashed(signal=None, exit_code=3, stage="subject", traceback=""), Status.CRASH, "exit code 3"),
        (TimedOut(seconds=30.0, stage="subject", traceback=""), Status.TIMEOUT, "30 s"),
        (OutOfMemory(bytes=1 << 30, stage="subject"), Status.OOM, "1073741824 bytes"),
    ],
)
def test_a_subject_that_never_came_back_is_named(outcome, status, words):
    verdict = judged(returned(X), outcome)
    assert verdict.status is status
    assert words in verdict.symptom
    assert judged(outcome, returned(X), eager_again=outcome).status is Status.EAGER_FAIL_TO_RUN


def test_eager_that_raises_unexpectedly_is_not_the_subjects_fault():
    outcome = raised(RuntimeError("no"))
    assert judged(outcome, returned(X), eager_again=outcome).status is Status.EAGER_FAIL_TO_RUN


def test_a_subject_that_returns_where_eager_raises_is_found():
    verdict = judged(raised(IndexError("out of range")), returned(X), expects_raise=True)
    assert verdict.status is Status.FAIL_EXCEPTION
    assert verdict.symptom == "call 0: outcome is a return, but should be IndexError in call ('out of range')"


class BackendError(RuntimeError):
    """An error that a compiler may raise in place of a RuntimeError."""


class UserError(Exception):
    """An error that a program may define."""


class NarrowUserError(UserError):
    """Derived from it."""


LinAlgError = torch.linalg.LinAlgError


@pytest.mark.parametrize(
    ("eager", "subject", "agrees"),
    [
        (RuntimeError("a"), RuntimeError("b"), True),
        (RuntimeError("a"), BackendError("b"), True),
        (LinAlgError("a"), LinAlgError("b"), True),
        (LinAlgError("a"), RuntimeError("b"), True),
        (IndexError("a"), IndexError("b"), True),
        (UserError("a"), NarrowUserError("b"), True),
        (IndexError("a"), RuntimeError("b"), False),
        (ValueError("a"), RuntimeError("b"), False),
        (TypeError("a"), BackendError("b"), False),
        (RuntimeError("a"), ValueError("b"), False),
        (RuntimeError("a"), IndexError("b"), False),
        (UserError("a"), RuntimeError("b"), False),
        (NarrowUserError("a"), UserError("b"), False),
        (IndexError("a"), KeyError("b"), False),
        (KeyError("a"), Exception("b"), False),
        (NotImplementedError("a"), RuntimeError("b"), False),
        (RuntimeError("a"), NotImplementedError("b"), True),
    ],
)
@pytest.mark.parametrize("phase", ["call", "compile"])
def test_an_exception_agrees_if_a_handler_for_eagers_catches_it(eager, subject, agrees, phase):
    verdict = judged(raised(eager), raised(subject, phase=phase), expects_raise=True)
    assert verdict.status is (Status.PASS if agrees else Status.FAIL_EXCEPTION)


def test_the_calls_before_an_expected_exception_are_compared():
    eager = raised(ValueError("a"), call=1, calls=(observation(X),))
    verdict = judged(eager, raised(ValueError("a"), call=1, calls=(observation(X + 1),)), expects_raise=True)
    assert verdict.status is Status.FAIL_ACCURACY


def test_raising_in_an_earlier_call_than_eager_is_a_failure_to_run():
    eager = raised(ValueError("a"), call=1, calls=(observation(X),))
    assert judged(eager, raised(ValueError("a"), call=0), expects_raise=True).status is Status.FAIL_TO_RUN


def test_raising_in_a_later_call_than_eager_is_found():
    verdict = judged(
        raised(ValueError("a"), call=0), raised(ValueError("a"), call=1, calls=(observation(X),)), expects_raise=True
    )
    assert verdict.status is Status.FAIL_EXCEPTION


def test_eager_that_raises_only_sometimes_is_no_measure():
    verdict = judged(raised(ValueError("a")), returned(X), eager_again=returned(X), expects_raise=True)
    assert verdict.status is Status.EAGER_TWO_RUNS_DIFFER


def test_when_the_subject_raises_what_was_wrong_before_stands_beside_it():
    eager = returned_calls(observation(X), observation(X))
    verdict = judged(eager, raised(RuntimeError("b"), call=1, calls=(observation(X + 1),)))
    assert verdict.status is Status.FAIL_TO_RUN
    assert verdict.also[0].startswith("call 0: output[")


def test_a_verdict_survives_json():
    verdict = judged(returned(X), returned(X + 1), truth=returned(X.double()))
    assert type(verdict).from_json(verdict.to_json()) == verdict
