"""How findings become a verdict: what eager must do first, what a verdict says, which calls are compared with which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from oracle.observe.outcome import Crashed, Outcome, OutOfMemory, Returned, TimedOut
from oracle.program import ComparePolicy
from oracle.tests.outcomes import judged, observation, raised, returned, returned_calls
from oracle.verdict import Status, Verdict

DEAD: dict[str, tuple[Outcome, Status, str]] = {
    "crash": (
        Crashed(signal=11, exit_code=None, stage="call", traceback=""),
        Status.CRASH,
        "outcome is a dead process (signal 11) in call, but should be a result",
    ),
    "timeout": (
        TimedOut(seconds=2.5, stage="compile", traceback=""),
        Status.TIMEOUT,
        "outcome is no end within 2.5 s in compile, but should be ",
    ),
    "memory": (
        OutOfMemory(bytes=1000, stage="call"),
        Status.OOM,
        "outcome is out of memory at 1000 bytes in call, but should be ",
    ),
}


# ------------------------------------------------------------------------------------------------------------- eager itself


@pytest.mark.parametrize("name", DEAD)
def test_an_eager_that_never_came_back_is_no_measure(name: str) -> None:
    verdict = judged(DEAD[name][0], returned(torch.ones(2)))
    assert verdict.status is Status.EAGER_FAIL_TO_RUN
    assert verdict.symptom.startswith("eager: ")


@pytest.mark.parametrize("name", DEAD)
@pytest.mark.parametrize("values", [1.0, 2.0])
def test_a_subject_that_never_came_back_is_one_whatever_eager_repeats(name: str, values: float) -> None:
    subject, status, words = DEAD[name]
    verdict = judged(returned(torch.ones(2)), subject, eager_again=returned(torch.full((2,), values)))
    assert verdict.status is status
    assert verdict.symptom == (words if name == "crash" else f"{words}a return")


def test_an_eager_that_raises_is_told_with_its_call() -> None:
    eager = raised(ValueError("x"), call=1, calls=(observation(torch.ones(2)),))
    verdict = judged(eager, eager)
    assert (verdict.status, verdict.call) == (Status.EAGER_FAIL_TO_RUN, 1)
    assert verdict.symptom == "call 1: eager is ValueError in call ('x'), but should return"


@pytest.mark.parametrize(
    ("again", "symptom", "call"),
    [
        (returned(torch.ones(2)), "eager's second run is a return, but should be ValueError in call ('x')", None),
        (
            raised(TypeError("y")),
            "eager's second run is TypeError in call ('y'), but should be ValueError in call ('x')",
            0,
        ),
        (
            raised(ValueError("x"), call=1),
            "eager's second run is ValueError in call ('x'), but should be ValueError in call ('x')",
            1,
        ),
    ],
)
def test_an_eager_that_ends_otherwise_each_time_is_no_measure(again: Outcome, symptom: str, call: int | None) -> None:
    eager = raised(ValueError("x"))
    verdict = judged(eager, eager, eager_again=again, expects_raise=True)
    assert (verdict.status, verdict.symptom, verdict.call) == (Status.EAGER_TWO_RUNS_DIFFER, symptom, call)


def test_what_eager_does_not_repeat_is_told() -> None:
    calls = [[observation(torch.ones(3)), observation(torch.tensor([1.0, number, 1.0]))] for number in (2.0, 3.0)]
    eager, again = (returned_calls(*run) for run in calls)
    verdict = judged(eager, eager, eager_again=again)
    assert (verdict.status, verdict.call) == (Status.EAGER_TWO_RUNS_DIFFER, 1)
    assert verdict.symptom.startswith("call 1: output[1] is 3, but should be 2")
    assert verdict.worst is not None
    assert verdict.worst.index == (1,)
    assert (verdict.compared.tensors, verdict.compared.elements) == (2, 6)


def test_of_two_eager_runs_a_value_is_told_before_the_generators() -> None:
    eager, again = (returned(torch.full((2,), number), rng=rng) for number, rng in ((1.0, "a"), (2.0, "b")))
    assert judged(eager, eager, eager_again=again).symptom.startswith("call 0: output[0] is 2, but should be 1")


def test_a_rounding_between_eagers_two_runs_is_told_and_is_no_difference() -> None:
    eager, again = returned(torch.ones(2)), returned(torch.tensor([1.0, 1 + 2**-22]))
    verdict = judged(eager, eager, eager_again=again)
    assert verdict.status is Status.PASS
    assert verdict.explained == ("eager's own two runs differ by up to 2 ULP, within the tolerance row",)
    assert judged(eager, eager).explained == ()


def test_what_eager_repeats_beside_what_it_does_not_is_judged_with_all_runs() -> None:
    eager, again = (returned(torch.full((2,), number), torch.ones(2)) for number in (1.0, 2.0))
    subject = returned(torch.full((2,), 7.0), torch.tensor([1.0, 1.001]))
    noise = [returned(torch.full((2,), 3.0), torch.tensor([1.0, 1.001]))]
    assert judged(eager, subject, eager_again=again).status is Status.FAIL_ACCURACY
    assert judged(eager, subject, eager_again=again, noise=noise).status is Status.EAGER_TWO_RUNS_DIFFER


def test_a_subject_owes_a_return_where_eager_has_other_values_each_time() -> None:
    eager, again = (returned(torch.full((2,), number)) for number in (1.0, 2.0))
    verdict = judged(eager, raised(ValueError("x")), eager_again=again)
    assert verdict.status is Status.FAIL_TO_RUN
    assert verdict.explained[-1].startswith("values that eager has otherwise in its second run were not compared: ")


# ---------------------------------------------------------------------------------------------------- programs without chance


def test_runs_of_a_program_without_random_numbers_count_whatever_state_they_leave() -> None:
    eager, subject = returned(torch.ones(2)), returned(torch.tensor([1.0, 1.001]))
    truth = returned(torch.tensor([1.0, 1.001]).double(), rng="other")
    assert judged(eager, subject, truth=truth).status is Status.PASS
    assert judged(eager, subject, truth=truth, is_random=True).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize(("options", "status"), [
    ({}, Status.FAIL_RNG),
    ({"rng": "own"}, Status.FAIL_RNG),
    ({"is_random": True}, Status.FAIL_RNG),
    ({"rng": "own", "is_random": True}, Status.PASS),
    ({"rng": "own", "eager_draws": True}, Status.PASS),
])  # fmt: skip
def test_who_owes_the_state_of_the_generators(options: dict[str, Any], status: Status) -> None:
    eager, subject = (returned(torch.ones(40), rng=rng) for rng in "ab")
    assert judged(eager, subject, **options).status is status


# --------------------------------------------------------------------------------------------------------- many findings


@pytest.mark.parametrize(("wrong", "also", "last"), [(1, 0, None), (21, 20, None), (22, 21, "... and 1 more")])
def test_of_many_symptoms_twenty_are_kept(wrong: int, also: int, last: str | None) -> None:
    eager = returned(*[torch.ones(2)] * 25)
    subject = returned(*[torch.full((2,), 3.0)] * wrong, *[torch.ones(2)] * (25 - wrong))
    verdict = judged(eager, subject, policy=ComparePolicy(aliases=False, reason="one tensor many times"))
    assert verdict.symptom.startswith("call 0: output[0][0] is 3")
    assert len(verdict.also) == also
    if last is not None:
        assert verdict.also[-1] == last


def test_a_finding_says_which_run_of_eager_was_not_finished() -> None:
    eager, subject = returned(torch.ones(2)), returned(torch.tensor([1.0, 1.001]))
    verdict = judged(eager, subject, noise=[raised(ValueError("not like this"))])
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.explained[-1].startswith(
        "call 0: eager under rounding noise raised ValueError in call ('not like this')"
    )
    for noise in ([], [raised(ValueError("not like this")), eager]):  # nothing was tried; one run got through
        assert judged(eager, subject, noise=noise).explained == ()


def test_the_worst_element_is_that_of_the_first_finding_that_has_one() -> None:
    x = torch.ones(2, 3)
    one, two = (torch.tensor([1.0, number]) for number in (3.0, 4.0))
    eager = returned(x, torch.ones(2), torch.ones(2))
    metadata_first = judged(eager, returned(x.double(), one, two))
    assert metadata_first.status is Status.FAIL_METADATA
    assert metadata_first.worst is not None
    assert metadata_first.worst.where == "call 0: output[1]"
    values_first = judged(eager, returned(x, torch.ones(2), two))
    assert values_first.worst is not None
    assert values_first.worst.where == "call 0: output[2]"


def test_half_of_the_numbers_must_say_something() -> None:
    eager, noise = torch.zeros(4), torch.tensor([1.0, 1.0, 1.0, 1.0])
    for wrong, status in ((2, Status.PASS), (3, Status.PASS_DUE_TO_SKIP)):
        subject = torch.where(torch.arange(4) < wrong, 0.5, 0.0)
        verdict = judged(returned(eager), returned(subject), noise=[returned(noise), returned(-noise)])
        assert verdict.status is status, verdict
    assert verdict.symptom == "too little was compared: eager does not determine a digit of 3 of 4 numbers"


@pytest.mark.parametrize(("first", "second", "status", "call"), [
    (1.0, 3.0, Status.FAIL_GUARD, 1),
    (3.0, 3.0, Status.FAIL_ACCURACY, 0),
    (3.0, 1.0, Status.FAIL_ACCURACY, 0),
    (1.0, 1.0, Status.PASS, None),
])  # fmt: skip
def test_the_earliest_wrong_call_counts(first: float, second: float, status: Status, call: int | None) -> None:
    eager = returned_calls(observation(torch.ones(2)), observation(torch.ones(2)))
    subject = returned_calls(observation(torch.full((2,), first)), observation(torch.full((2,), second)))
    verdict = judged(eager, subject)
    assert (verdict.status, verdict.call) == (status, call)


def test_a_compiled_nothing_is_told_for_passing_subjects_that_return() -> None:
    x = returned(torch.ones(2))
    assert judged(x, x, graphs=0).status is Status.PASS_DUE_TO_SKIP
    assert judged(x, x, graphs=1).status is Status.PASS
    assert judged(x, x, graphs=None).status is Status.PASS


# ------------------------------------------------------------------------------------------------ numbers of the subject's own


def drawn(seed: int) -> Tensor:
    return torch.rand(600, generator=torch.Generator().manual_seed(seed))


def calls_of(seeds: Sequence[int]) -> Returned:
    return returned_calls(*(observation(drawn(seed)) for seed in seeds))


def judged_calls(subject: Sequence[int]) -> Verdict:
    runs = [calls_of([100 * run + call for call in range(len(subject))]) for run in range(2, 20)]
    return judged(
        calls_of(range(len(subject))),
        calls_of(subject),
        is_random=True,
        rng="own",
        few_seeds=lambda: runs,
        many_seeds=lambda: runs,
    )


def test_a_call_that_draws_what_the_call_before_drew_is_found() -> None:
    assert judged_calls([5000, 5001, 5002]).status is Status.PASS
    verdict = judged_calls([5000, 5001, 5001])
    assert verdict.status is Status.FAIL_GUARD
    assert verdict.symptom.startswith("call 2: output is not drawn as eager draws: ")
    assert "too much like those of the call before" in verdict.symptom
    assert judged_calls([5000, 5000]).call == 1
    assert judged_calls([5000, 5001, 5000]).status is Status.PASS, "two calls apart is not looked at"


def test_two_results_of_one_call_that_share_their_draws_are_found() -> None:
    def both(seed: int, other: int) -> Returned:
        return returned(drawn(seed), drawn(other))

    runs = [both(run, 100 + run) for run in range(2, 20)]
    options: dict[str, Any] = {"is_random": True, "rng": "own", "few_seeds": lambda: runs, "many_seeds": lambda: runs}
    assert judged(both(0, 100), both(500, 600), **options).status is Status.PASS
    verdict = judged(both(0, 100), both(500, 500), **options)
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.symptom.startswith("call 0: output[1] is not drawn as eager draws: ")
    assert "like those of output[0]" in verdict.symptom
    few = judged(both(0, 100), both(500, 500), **{**options, "many_seeds": lambda: ()})
    assert few.status is Status.PASS, "many runs must confirm what few say"


@pytest.mark.parametrize("order", [[50, 100], [100, 50]])
def test_a_shape_that_one_seed_has_otherwise_is_not_owed(order: list[int]) -> None:
    runs = [returned(torch.rand(length)) for length in order]
    eager, subject = returned(torch.rand(100)), returned(torch.rand(50))
    verdict = judged(eager, subject, is_random=True, rng="own", many_seeds=lambda: runs)
    assert verdict.status is Status.PASS_DUE_TO_SKIP
    assert any("differs between seeds in eager too" in text for text in verdict.explained)


# ------------------------------------------------------------------------------------------- choices that are explained


def indices_into_argument(*paths: str, **spec: Any) -> ComparePolicy:
    outputs = {path: {"of": "args[0]", "dim": None, **spec} for path in paths}
    return ComparePolicy(index_outputs=outputs, reason="ties")


def test_an_index_of_a_tie_and_its_gradients_are_explained_and_counted() -> None:
    x, y = torch.tensor([2.0, 1.0, 2.0]), torch.zeros(3)
    gradient = {"args[0]": torch.tensor([3.0, 0, 0]), "args[1]": torch.tensor([1.0, 0, 0])}
    moved = {"args[0]": torch.tensor([0.0, 0, 3]), "args[1]": torch.tensor([0.0, 0, 1])}
    eager = returned(torch.tensor([0]), args=(x, y), gradients=gradient)
    subject = returned(torch.tensor([2]), args=(x, y), gradients=moved)
    verdict = judged(eager, subject, policy=indices_into_argument("output", dim=0))
    assert verdict.status is Status.PASS
    assert "grad of args[0] was compared up to the choice among equal elements" in verdict.explained[-2]
    assert verdict.explained[-1] == ("call 0: grad of args[1] depends on the choice among equal elements: not compared")
    assert len(verdict.explained) == 3
    assert verdict.explained[0].startswith("call 0: output")
    assert (verdict.compared.tensors, verdict.compared.elements) == (5, 10)
    none = returned(torch.tensor([2]), args=(x, y), gradients={**moved, "args[1]": None})
    without = returned(torch.tensor([0]), args=(x, y), gradients={**gradient, "args[1]": None})
    assert judged(without, none, policy=indices_into_argument("output", dim=0)).compared.tensors == 4


def test_beside_an_index_of_a_tie_another_one_is_compared() -> None:
    x = torch.tensor([2.0, 1.0, 2.0])
    policy = indices_into_argument("output[0]", "output[1]")
    eager = returned(torch.tensor(0), torch.tensor(0), torch.ones(2), args=(x,))
    right = returned(torch.tensor(2), torch.tensor(2), torch.ones(2), args=(x,))
    assert judged(eager, right, policy=policy).status is Status.PASS
    for wrong in (
        returned(torch.tensor(2), torch.tensor(1), torch.ones(2), args=(x,)),
        returned(torch.tensor(2), torch.tensor(2), torch.full((2,), 3.0), args=(x,)),
    ):
        assert judged(eager, wrong, policy=policy).status is Status.FAIL_ACCURACY


def test_a_gradient_beside_those_of_equal_elements_is_owed() -> None:
    x, policy = torch.tensor([2.0, 1.0, 2.0]), indices_into_argument("output", dim=0)
    eager = returned(torch.tensor([0, 1]), args=(x,), gradients={"args[0]": torch.tensor([3.0, 5, 0])})
    for number, status in ((5.0, Status.PASS), (9.0, Status.FAIL_GRAD)):
        gradient = {"args[0]": torch.tensor([0.0, number, 3])}
        other = returned(torch.tensor([2, 1]), args=(x,), gradients=gradient)
        assert judged(eager, other, policy=policy).status is status


def test_an_index_that_noise_flips_is_explained() -> None:
    x = torch.tensor([2.0, 1.0, 3.0])
    eager, subject = (returned(torch.tensor([at, 2, 2]), args=(x,)) for at in (0, 1))
    policy = indices_into_argument("output")
    assert judged(eager, subject, policy=policy).status is Status.FAIL_ACCURACY
    verdict = judged(eager, subject, policy=policy, noise=[subject])
    assert verdict.status is Status.PASS
    assert verdict.explained == (
        "call 0: output differs in 1 of 3 elements that eager itself flips under rounding noise or in fp64",
    )


def up_to_signs() -> ComparePolicy:
    return ComparePolicy(invariant="qr", strides="ignore", reason="signs of rows")


def test_where_a_symmetry_leaves_a_choice_gradients_are_counted_and_not_compared() -> None:
    q, r = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    eager, subject = (
        returned(sign * q, sign * r, gradients={"args[0]": sign * q, "args[1]": None, "args[2]": sign * r})
        for sign in (1, -1)
    )
    verdict = judged(eager, subject, policy=up_to_signs())
    assert verdict.status is Status.PASS
    assert (verdict.compared.tensors, verdict.compared.elements) == (4, 18)


def test_where_outputs_differ_beyond_a_symmetry_gradients_are_compared() -> None:
    q, r = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(0)))
    eager = returned(q, r, gradients={"args[0]": q})
    verdict = judged(eager, returned(q, 2 * r, gradients={"args[0]": 2 * q}), policy=up_to_signs())
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.explained[0].startswith("call 0: outputs differ beyond 'qr': ")
    assert any("grad of args[0]" in text for text in verdict.also)


def test_outputs_that_agree_without_the_symmetry_are_explained_as_ever() -> None:
    zeros = torch.zeros(2, 2)
    verdict = judged(returned(zeros.clone(), zeros), returned(zeros, -zeros), policy=up_to_signs())
    assert verdict.status is Status.PASS
    assert verdict.explained == ("call 0: output[1] has 4 of 4 zeros of the other sign, which eager does not define",)


def test_an_exception_is_told_with_its_call_and_what_was_wrong_before() -> None:
    eager = returned_calls(observation(torch.ones(2)), observation(torch.ones(2)))
    subject = raised(ValueError("x"), call=1, calls=(observation(torch.full((2,), 3.0)),))
    verdict = judged(eager, subject)
    assert (verdict.status, verdict.call) == (Status.FAIL_TO_RUN, 1)
    assert verdict.also[0].startswith("call 0: output[0] is 3")
