"""What a call does besides returning values: mutation, gradients, module state, aliases, generators, later calls, endings."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from oracle.observe.outcome import Crashed, OutOfMemory, Raised, TimedOut
from oracle.program import ComparePolicy
from oracle.tests.outcomes import judged, observation, raised, returned, returned_calls
from oracle.verdict import Status

X = torch.arange(6.0)


# ----------------------------------------------------------------------- mutation, gradients, state


def test_an_input_that_is_not_mutated_as_in_eager_is_found():
    verdict = judged(returned(X, args=(X + 1,)), returned(X, args=(X,)))
    assert verdict.status is Status.FAIL_MUTATION
    assert verdict.symptom.startswith("call 0: args[0][0] is 0, but should be 1")


def test_an_input_that_is_mutated_though_eager_leaves_it_is_found():
    assert judged(returned(X, args=(X,)), returned(X, args=(X + 1,))).status is Status.FAIL_MUTATION


def test_an_input_whose_shape_changes_as_it_should_not_is_a_mutation():
    verdict = judged(returned(X, args=(X,)), returned(X, args=(X.reshape(2, 3),)))
    assert verdict.status is Status.FAIL_MUTATION


def test_an_input_whose_strides_change_as_they_should_not_is_a_mutation():
    square = torch.arange(4.0).reshape(2, 2)
    verdict = judged(returned(X, args=(square,)), returned(X, args=(square.t().contiguous().t(),)))
    assert verdict.status is Status.FAIL_MUTATION
    assert verdict.symptom == "call 0: args[0].stride() is (1, 2), but should be (2, 1)"


def test_a_wrong_value_outweighs_a_wrong_mutation_and_a_wrong_gradient():
    right = returned(X, args=(X + 0,), gradients={"args[0]": X})
    wrong = returned(X + 1, args=(X + 1,), gradients={"args[0]": X + 1})
    verdict = judged(right, wrong)
    assert verdict.status is Status.FAIL_ACCURACY
    assert len(verdict.also) == 2


def test_a_wrong_gradient_is_found():
    verdict = judged(returned(X, gradients={"args[0]": X}), returned(X, gradients={"args[0]": X * 2}))
    assert verdict.status is Status.FAIL_GRAD
    assert verdict.symptom.startswith("call 0: grad of args[0][")


@pytest.mark.parametrize(("eager", "subject"), [(None, X), (X, None)])
def test_a_gradient_where_there_should_be_none_and_none_where_there_should_be_one_are_found(eager, subject):
    verdict = judged(returned(X, gradients={"args[0]": eager}), returned(X, gradients={"args[0]": subject}))
    assert verdict.status is Status.FAIL_GRAD


def test_a_gradient_in_another_dtype_is_found():
    verdict = judged(returned(X, gradients={"args[0]": X}), returned(X, gradients={"args[0]": X.double()}))
    assert verdict.status is Status.FAIL_GRAD
    assert verdict.symptom == "call 0: grad of args[0].dtype is torch.float64, but should be torch.float32"


def test_the_strides_and_flags_of_a_gradient_are_autograds_own_business():
    square = torch.arange(4.0).reshape(2, 2)
    other = square.t().contiguous().t().requires_grad_()
    assert judged(returned(X, gradients={"a": square}), returned(X, gradients={"a": other})).status is Status.PASS


def test_a_missing_gradient_of_a_parameter_is_found():
    verdict = judged(returned(X, gradients={"module.w": X}), returned(X))
    assert verdict.status is Status.FAIL_GRAD
    assert "grad of module.w is missing" in verdict.symptom


@pytest.mark.parametrize("wrong", [X + 1, X.double(), 3])
def test_a_buffer_that_is_not_updated_as_in_eager_is_found(wrong):
    verdict = judged(returned(X, state={"running_mean": X}), returned(X, state={"running_mean": wrong}))
    assert verdict.status is Status.FAIL_STATE
    assert verdict.symptom.startswith("call 0: module.running_mean")


def test_a_training_flag_that_changes_is_found():
    verdict = judged(returned(X, state={"training": True}), returned(X, state={"training": False}))
    assert verdict.symptom == "call 0: module.training is False, but should be True"


# ----------------------------------------------------------------------- aliases and strides


def test_two_outputs_that_share_a_storage_in_eager_must_share_it():
    base = torch.arange(6.0)
    verdict = judged(returned(base[:3], base[3:]), returned(base[:3], base[3:].clone()))
    assert verdict.status is Status.FAIL_ALIAS
    assert verdict.symptom == "call 0: output[0] does not share the storage of output[1], but should"


def test_an_alias_at_another_offset_is_found():
    base = torch.zeros(6)
    verdict = judged(returned(base[1:3], args=(base,)), returned(base[2:4], args=(base,)))
    assert verdict.status is Status.FAIL_ALIAS
    assert verdict.symptom == "call 0: output.storage_offset in the storage it shares is 2, but should be 1"


def test_an_alias_with_other_strides_is_found_once():
    base = torch.zeros(4)
    verdict = judged(returned(base.view(2, 2), args=(base,)), returned(base.view(2, 2).t(), args=(base,)))
    assert verdict.status is Status.FAIL_ALIAS
    assert verdict.also == ()


def test_where_a_group_of_outputs_begins_in_its_storage_does_not_count():
    eager, subject = torch.zeros(6), torch.zeros(10)
    assert judged(returned(eager[:3], eager[3:]), returned(subject[4:7], subject[7:])).status is Status.PASS


def test_returning_the_input_itself_is_not_returning_a_view_of_it():
    x = torch.zeros(3)
    verdict = judged(returned(x, args=(x,)), returned(x.view(3), args=(x,)))
    assert verdict.status is Status.FAIL_ALIAS
    assert verdict.symptom == "call 0: output does not share its object with args[0], but should"


def test_who_shares_memory_without_elements_does_not_count_and_who_is_the_same_object_does():
    x = torch.zeros(3)
    assert judged(returned(x[:0], args=(x,)), returned(torch.zeros(0), args=(x,))).status is Status.PASS
    empty = torch.zeros(0, 2)
    verdict = judged(returned(empty, args=(empty,)), returned(empty.clone(), args=(empty,)))
    assert verdict.symptom == "call 0: output does not share its object with args[0], but should"


def test_parameters_that_come_untied_are_found():
    w, x = torch.zeros(3), torch.zeros(3)
    verdict = judged(
        returned(x, state={"encoder": w, "decoder": w}), returned(x, state={"encoder": w, "decoder": w.clone()})
    )
    assert verdict.status is Status.FAIL_ALIAS


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


def test_another_state_of_the_generators_is_found():
    verdict = judged(returned(X, rng="aaaa"), returned(X, rng="bbbb"))
    assert verdict.status is Status.FAIL_RNG
    assert verdict.symptom == "call 0: generator state after the call is 'bbbb', but should be 'aaaa'"


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


def test_a_call_that_was_not_observed_is_found():
    eager = returned_calls(observation(X), observation(X))
    verdict = judged(eager, returned_calls(observation(X)))
    assert verdict.status is Status.FAIL_TO_RUN
    assert verdict.symptom == "call 1: number of calls observed is 1, but should be 2"


# ----------------------------------------------------------------------- endings


def test_a_subject_that_raises_where_eager_returns_failed_to_run():
    verdict = judged(returned(X), raised(RuntimeError("no such kernel"), phase="compile"))
    assert verdict.status is Status.FAIL_TO_RUN
    assert verdict.symptom == "call 0: outcome is RuntimeError in compile ('no such kernel'), but should be a return"


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
    """As a compiler may raise in place of a RuntimeError."""


class UserError(Exception):
    """As a program may define."""


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
