"""Symptoms: what moves while a program is reduced does not count, what makes it another bug does."""

from __future__ import annotations

import pytest

from oracle.symptom import Symptom, matches, normalised, symptom_of
from oracle.verdict import Status, Verdict

_ELEMENT = "is 3.5, but should be 3.0 (fp64 3.0): error 0.5, allowed 1e-6; 3 of 4 elements are wrong"


def _symptom(status: str, text: str) -> Symptom:
    return symptom_of(Verdict(status=Status(status), symptom=text))


SAME = {
    "output moved": (
        ("fail_accuracy", f"call 0: output[1]['k'][2, 3] {_ELEMENT}"),
        ("fail_accuracy", "call 0: output is -7.0, but should be 1e+30 (fp64 1e+30): error 1e30, allowed 2; 1 of 1 elements"),
    ),
    "integers and floats": (
        ("fail_accuracy", f"call 0: output[1][2, 3] {_ELEMENT}"),
        ("fail_accuracy", "call 0: output[0] is 3, but should be 4 (1 of 4 elements differ)"),
    ),
    "gradient of another argument": (
        ("fail_grad", "call 0: grad of args[0][1] is 2, but should be 4: error 2, allowed 1; 1 of 3 elements are wrong"),
        ("fail_grad", "call 1: grad of module.w0 is 7, but should be 1: error 6, allowed 1; 1 of 1 elements are wrong"),
    ),
    "state became an argument": (
        ("fail_state", "call 0: module.w0[1] is 3, but should be 4 (1 of 4 elements differ)"),
        ("fail_mutation", "call 0: args[2][0, 0] is 1, but should be 0 (1 of 9 elements differ)"),
    ),
    "another size in a shape": (
        ("fail_metadata", "call 0: output[0].shape is (3, 3), but should be (2,)"),
        ("fail_metadata", "call 0: output.shape is (1,), but should be ()"),
    ),
    "another size in a message": (
        ("fail_to_run", "call 0: outcome is torch.x.InductorError in call (\"LoweringException: AssertionError: a0 12 (3, 4)\"), but should be a return"),  # noqa: E501
        ("fail_to_run", "call 2: outcome is torch.x.InductorError in call (\"LoweringException: AssertionError: buf1 5 (2, 2, 7)\"), but should be a return"),  # noqa: E501
    ),
    "another generator state": (
        ("fail_rng", "call 1: generator state after the call is 'cpu=abc', but should be 'cpu=123'"),
        ("fail_rng", "call 0: generator state after the call is 'cpu=0ff', but should be 'cpu=77'"),
    ),
    "told by the judge or by the process edge": (
        ("crash", "the process died of signal 11"),
        ("crash", "outcome is a dead process (signal 11) in subject, but should be a result"),
    ),
    "aliases of other paths": (
        ("fail_alias", "call 0: output[0] does not share the storage of args[0], but should"),
        ("fail_alias", "call 0: output does not share the storage of args[1], but should"),
    ),
}  # fmt: skip
OTHER = {
    "another status": (
        ("fail_accuracy", f"call 0: output[0] {_ELEMENT}"),
        ("fail_guard", f"call 1: output[0] {_ELEMENT}"),
    ),
    "NaN for a number": (
        ("fail_accuracy", f"call 0: output[0] {_ELEMENT}"),
        ("fail_accuracy", "call 0: output is nan, but should be 4: error not finite, allowed 1e-6; 1 of 1 elements are wrong"),
    ),
    "a number for NaN": (
        ("fail_accuracy", "call 0: output is nan, but should be 4: error not finite, allowed 1e-6; 1 of 1 elements are wrong"),
        ("fail_accuracy", "call 0: output is 4, but should be nan: error not finite, allowed 1e-6; 1 of 1 elements are wrong"),
    ),
    "the sign of zero": (
        ("fail_accuracy", "call 0: output is -0, but should be 0 (the sign of zero, which fp64 and rounding noise keep; 1 of 3 elements)"),  # noqa: E501
        ("fail_accuracy", f"call 0: output[0] {_ELEMENT}"),
    ),
    "shape and dtype": (
        ("fail_metadata", "call 0: output[0].shape is (3, 3), but should be (2,)"),
        ("fail_metadata", "call 0: output[0].dtype is torch.int64, but should be torch.float32"),
    ),
    "flags the other way round": (
        ("fail_metadata", "call 0: output[0].requires_grad is True, but should be False"),
        ("fail_metadata", "call 0: output[0].requires_grad is False, but should be True"),
    ),
    "strides and values of an argument": (
        ("fail_mutation", "call 0: args[0].stride() is (3, 1), but should be (1, 3)"),
        ("fail_mutation", "call 0: args[0][1] is 3, but should be 4 (1 of 4 elements differ)"),
    ),
    "no gradient and a wrong one": (
        ("fail_grad", "call 0: grad of args[0] is None, but should be torch.Tensor of shape (2,) and dtype torch.float32"),
        ("fail_grad", "call 0: grad of args[0][0] is 2, but should be 4: error 2, allowed 1; 1 of 3 elements are wrong"),
    ),
    "sharing and not sharing": (
        ("fail_alias", "call 0: output[0] does not share the storage of args[0], but should"),
        ("fail_alias", "call 0: output[0] shares the storage of args[0], but should not"),
    ),
    "another message": (
        ("fail_to_run", "call 0: outcome is RuntimeError in call ('The size of tensor a (3) must match'), but should be a return"),  # noqa: E501
        ("fail_to_run", "call 0: outcome is RuntimeError in call ('expected scalar type Long'), but should be a return"),
    ),
    "another type of exception": (
        ("fail_exception", "call 0: exception is TypeError in call ('x'), but should be ValueError in call ('x')"),
        ("fail_exception", "call 0: exception is TypeError in call ('x'), but should be KeyError in call ('x')"),
    ),
    "a return and an exception": (
        ("fail_exception", "call 0: outcome is a return, but should be ValueError in call ('x')"),
        ("fail_exception", "call 0: exception is TypeError in call ('x'), but should be ValueError in call ('x')"),
    ),
    "another signal": (
        ("crash", "the process died of signal 11"),
        ("crash", "the process died of signal 6"),
    ),
    "process state and module state": (
        ("fail_state", "process state: default dtype is torch.float64, but should be torch.float32"),
        ("fail_mutation", "call 0: args[2][0, 0] is 1, but should be 0 (1 of 9 elements differ)"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME)
def test_a_moved_place_is_the_same_symptom(name: str) -> None:
    one, other = SAME[name]
    assert matches(_symptom(*one), _symptom(*other)), (_symptom(*one), _symptom(*other))
    assert matches(_symptom(*other), _symptom(*one))


@pytest.mark.parametrize("name", OTHER)
def test_another_difference_is_another_symptom(name: str) -> None:
    one, other = OTHER[name]
    assert not matches(_symptom(*one), _symptom(*other)), _symptom(*one)
    assert not matches(_symptom(*other), _symptom(*one))


def test_agreement_is_no_symptom_of_anything() -> None:
    for status in ("pass", "pass_due_to_skip", "eager_fail_to_run", "eager_two_runs_differ"):
        passed = _symptom(status, "whatever was said")
        assert passed == Symptom(status=status, kind="")
        assert not matches(_symptom("fail_accuracy", f"call 0: output {_ELEMENT}"), passed)


def test_a_symptom_survives_json() -> None:
    symptom = _symptom("fail_accuracy", f"call 0: output {_ELEMENT}")
    assert Symptom.from_json(symptom.to_json()) == symptom


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("at 0x7f00aa in /tmp/x/y/c12.cpp", "at # in c12.cpp"),
        ("expected torch.float32 but got torch.int64", "expected dtype but got dtype"),
        ("view size (3, 4, 5) is not [60]", "view size # is not #"),
        (
            "index 17 is out of bounds for dimension 0 with size 4",
            "index # is out of bounds for dimension # with size #",
        ),
    ],
)
def test_messages_lose_what_varies(text: str, expected: str) -> None:
    assert normalised(text) == expected


def test_messages_keep_their_words() -> None:
    assert normalised("output with shape mismatch") != normalised("output with dtype mismatch")
