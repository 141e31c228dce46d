"""One case from program to verdict: the ground truth is there, randomness is found out, leaks are seen, programs stay apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from oracle import case
from oracle.case import (
    LOUD_NOISE_RUNS,
    LOUD_NOISE_SCALE,
    CaseOptions,
    CaseResult,
    EagerState,
    judge_subject,
    observe_widened,
)
from oracle.hygiene import snapshot
from oracle.observe.outcome import Raised, Returned
from oracle.program import Call, Program
from oracle.program.build import instantiate
from oracle.reruns.noise import RoundingNoise
from oracle.subjects.base import Subject
from oracle.subjects.registry import load, of_callable, resolve
from oracle.verdict import Status

Backend = Callable[..., Any]


def state_of(source: str, *calls: Call, **fields: Any) -> EagerState:
    program = Program(name="t", source="import torch\n" + source, calls=calls or (Call(),), **fields)
    return EagerState(make=lambda: instantiate(program))


def judged(state: EagerState, subject: Subject) -> CaseResult:
    return judge_subject(eager=state, subject=subject, options=CaseOptions())


def changing(change: Callable[[Any], Any]) -> Subject:
    """A backend that applies `change` to each output of each graph."""

    def backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        return lambda *args: tuple(change(output) for output in gm.forward(*args))

    return of_callable(backend)


SUM = "def inputs(call): return (torch.linspace(0, 1, 1000).sin(),), {}\ndef program(x): return (x * x).sum() + x\n"


def test_the_ground_truth_is_there_and_wide() -> None:
    program = Program(name="t", source="import torch\n" + SUM)
    truth = observe_widened(instantiate(program))
    assert isinstance(truth, Returned)
    assert truth.calls[0].outputs[0].value.dtype is torch.float64


def test_a_wrong_value_is_judged_against_the_ground_truth() -> None:
    verdict = judged(state_of(SUM), changing(lambda output: output * 1.001)).verdict
    assert verdict.status is Status.FAIL_ACCURACY
    assert verdict.worst is not None
    assert verdict.worst.truth is not None


def test_what_reads_bits_leaves_the_ground_truth_of_the_rest() -> None:
    truth = observe_widened(
        instantiate(
            Program(
                name="t",
                source="import torch\ndef inputs(call): return (torch.ones(3), torch.ones(2)), {}\n"
                "def program(x, y): y.mul_(x.view(torch.int32)[0]); return x.view(torch.int32), x * 2, y\n",
            )
        )
    )
    assert isinstance(truth, Returned)
    (call,) = truth.calls
    assert [leaf.path for leaf in call.outputs] == ["output[1]"]
    assert [leaf.path for leaf in call.inputs_after] == ["args[0]"]


@pytest.mark.parametrize(
    "body",
    [
        "torch.nn.functional.interpolate(x.reshape(1, 1, 10, 100), scale_factor=1.5, mode='bicubic')",
        "torch.hann_window(50, periodic=False) * x[:50].sum()",
    ],
)
def test_what_is_allowed_for_coordinates_and_windows_hides_no_wrong_value(body: str) -> None:
    source = f"def inputs(call): return (torch.linspace(0, 9, 1000).sin(),), {{}}\ndef program(x): return {body}\n"
    for change in (lambda output: output * 1.0005, lambda output: output + 0.001):
        assert judged(state_of(source), changing(change)).verdict.status is Status.FAIL_ACCURACY
    assert judged(state_of(source), changing(lambda output: output * 1)).verdict.status is Status.PASS


def test_rounding_is_not_a_finding() -> None:
    assert judged(state_of(SUM), changing(lambda output: output * (1 + 2**-22))).verdict.status is Status.PASS


def test_the_ground_truth_is_not_computed_for_what_is_equal() -> None:
    state = state_of(SUM)
    assert judged(state, changing(lambda output: output)).verdict.status is Status.PASS
    assert not state.truth_run


@pytest.mark.parametrize(
    ("body", "is_random"),
    [
        ("torch.rand_like(x)", True),
        ("x + 0 * torch.rand(3)", False),
        ("x", False),
        ("(torch.manual_seed(2), torch.rand_like(x))[1]", True),
        ("(torch.random.manual_seed(2), torch.rand_like(x))[1]", True),
        ("(torch.manual_seed(2), x)[1]", False),
    ],
)
def test_whether_a_program_is_random_is_found_out(body: str, is_random: bool) -> None:
    state = state_of(f"def inputs(call): return (torch.ones(3),), {{}}\ndef program(x): return {body}\n")
    before = torch.manual_seed, torch.random.manual_seed
    judged(state, load(resolve("eager")))
    assert state.is_random is is_random
    assert (torch.manual_seed, torch.random.manual_seed) == before


NOISE_IN_BACKWARD = """
class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * 2
    @staticmethod
    def backward(ctx, gradient): return gradient * 2 + torch.randn_like(gradient)

def inputs(call): return (torch.ones(64, requires_grad=True),), {}
def program(x): return Noisy.apply(x).sin()
"""


@pytest.mark.parametrize(("stream", "status"), [("eager", Status.FAIL_GRAD), ("own", Status.PASS)])
def test_a_program_that_draws_in_its_backward_only_is_random(stream: str, status: Status) -> None:
    def with_other_numbers(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Backend:
        def run(*args: Any) -> Any:
            outputs = gm.forward(*args)
            outputs[0].register_hook(lambda gradient: gradient + 0 * torch.rand(()))  # moves the generator
            return outputs

        return run

    state = state_of(NOISE_IN_BACKWARD, Call(backward=True))
    assert judged(state, load(resolve("dynamo"))).verdict.status is Status.PASS
    assert state.is_random
    subject = of_callable(with_other_numbers)
    subject.spec = replace(subject.spec, rng=stream)
    verdict = judged(state, subject).verdict
    assert verdict.status is status, verdict
    assert any("generator state" in text for text in verdict.also) is (stream == "eager")


def test_a_leak_of_the_subject_is_a_finding_and_the_state_is_put_back() -> None:
    def leak(output: Any) -> Any:
        torch.use_deterministic_algorithms(True)
        return output

    result = judged(state_of(SUM), changing(leak))
    assert result.verdict.status is Status.FAIL_STATE
    assert result.leaked
    assert not torch.are_deterministic_algorithms_enabled()


def test_what_the_program_itself_changes_is_not_the_subjects_leak() -> None:
    state = state_of("def program():\n    torch.set_default_dtype(torch.float64)\n    return torch.ones(2) + 1\n")
    assert judged(state, load(resolve("dynamo"))).leaked == ()
    assert torch.get_default_dtype() is torch.float32


def test_programs_that_use_modules_by_name_are_kept_apart_in_one_process() -> None:
    """Dynamo keeps modules by name among the globals of the frame it starts from."""
    for alias in ("F", "G"):
        source = f"import torch.nn.functional as {alias}\ndef inputs(call): return (torch.ones(2),), {{}}\n"
        source += f"def program(x): return {alias}.relu(x) + 1\n"
        assert judged(state_of(source), load(resolve("export"))).verdict.status is Status.PASS


def test_classes_of_a_program_have_one_name_in_all_its_runs() -> None:
    source = "class Mine(torch.Tensor): pass\ndef program(): return torch.ones(2).as_subclass(Mine)\n"
    assert judged(state_of(source), load(resolve("eager"))).verdict.status is Status.PASS


def test_a_program_that_does_not_load_is_said_so_with_its_cause() -> None:
    result = judged(state_of("import no_such_module\n"), load(resolve("eager")))
    assert result.verdict.status is Status.MODEL_FAIL_TO_LOAD
    assert "no_such_module" in result.traceback


def test_a_right_first_call_and_a_stale_second_one_is_a_guard_failure() -> None:
    source = "def inputs(call): return (torch.full((2,), float(call)),), {}\ndef program(x): return x + 1\n"
    kept: list[Any] = []

    def stale(output: Any) -> Any:
        kept.append(output)
        return kept[0]

    verdict = judged(state_of(source, Call(), Call()), changing(stale)).verdict
    assert verdict.status is Status.FAIL_GUARD
    assert verdict.call == 1


REBOUND = "scale = 1.0\ndef inputs(call): return (torch.ones(2),), {}\ndef program(x): return x * scale\n"


@pytest.mark.parametrize(("subject", "calls"), [("make_fx", 1), ("dynamo", 2)])
def test_a_trace_is_not_held_to_what_changes_around_it_and_a_compiler_is(subject: str, calls: int) -> None:
    result = judged(state_of(REBOUND, Call(), Call(before="scale = 3.0")), load(resolve(subject)))
    assert result.verdict.status is Status.PASS
    assert result.verdict.compared.tensors == 2 * calls
    assert bool(result.verdict.explained) == (subject == "make_fx")


@pytest.mark.parametrize("operand", ["x", "torch.neg(-x)", "(x * 1).reshape(4, 5)"])
def test_the_sign_of_a_zero_that_eagers_own_loops_disagree_on_is_not_a_finding(operand: str) -> None:
    """Eager's vector loop gives +0 where its scalar loop, at the end of the tensor, gives -0."""
    source = (
        "def inputs(call): return (torch.linspace(-0.3, -0.1, 20),), {}\n"
        f"def program(x): return torch.nn.functional.softshrink({operand})\n"
    )
    state = state_of(source)
    flipped = changing(lambda output: torch.where(output == 0, -output, output))
    assert judged(state, flipped).verdict.status is Status.PASS


@pytest.mark.parametrize(("low", "status"), [(-0.0, Status.PASS), (0.0, Status.FAIL_ACCURACY)])
def test_the_sign_of_a_zero_may_be_that_of_operands_side_by_side(low: float, status: Status) -> None:
    """The scalar loop, which reads what is broadcast, keeps a 0 above a bound of -0, and the vector loop does not."""
    source = (
        f"def inputs(call): return (torch.zeros(4, 1), torch.full((1, 16), {low}), torch.ones(4, 1)), {{}}\n"
        "def program(x, low, high): return torch.clamp(x, low, high)\n"
    )
    assert judged(state_of(source), changing(lambda output: -output)).verdict.status is status


@pytest.mark.parametrize(("zero", "status"), [(-0.0, Status.PASS), (0.0, Status.FAIL_ACCURACY)])
@pytest.mark.parametrize(
    "write", ["torch._foreach_minimum_([x], [y])", "torch.minimum(x, y, out=x)", "x.clamp_(max=y)"]
)
def test_the_sign_of_a_zero_that_is_written_may_be_that_of_either_loop(write: str, zero: float, status: Status) -> None:
    source = (
        f"def inputs(call): return (torch.zeros(18), torch.full((18,), {zero})), {{}}\n"
        f"def program(x, y):\n    {write}\n    return x + -0.0\n"
    )
    assert judged(state_of(source), changing(lambda output: -output)).verdict.status is status


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("factor", "status"), [(1.0, Status.PASS), (2.0, Status.FAIL_ACCURACY)])
def test_a_value_that_eagers_other_kernels_give_is_eager_s_too(dtype: str, factor: float, status: Status) -> None:
    """The vector loop of a remainder gives NaN where the quotient overflows, the scalar one what is left."""
    source = (
        f"def inputs(call): return (torch.arange(9, dtype=torch.{dtype}), torch.tensor([1e-308], dtype=torch.float64)), {{}}\n"
        "def program(x, y): return x % y\n"
    )
    if not (torch.arange(9.0) % torch.tensor([1e-308], dtype=torch.float64)).isnan().any():
        pytest.skip("the vector loop of this processor gives what is left, as the scalar one does")
    left = torch.tensor([math.fmod(float(at), 1e-308) for at in range(9)], dtype=torch.float64)
    assert judged(state_of(source), changing(lambda output: left * factor)).verdict.status is status


@pytest.mark.parametrize(("slope", "status"), [(1.0507009873554805, Status.PASS), (2.0, Status.FAIL_GRAD)])
def test_a_gradient_that_eagers_other_kernels_give_is_eagers_too(slope: float, status: Status) -> None:
    """The vector loop of selu's slope gives NaN at NaN, the scalar one the slope of positive numbers."""
    source = (
        "def inputs(call): return (torch.full((36,), torch.nan, requires_grad=True),), {}\n"
        "def program(x): return torch.nn.functional.selu(x)\n"
    )
    subject = of_callable(lambda gm, example_inputs: lambda x: (x * slope,))
    assert judged(state_of(source, Call(backward=True)), subject).verdict.status is status


@pytest.mark.parametrize(
    "read", ["(a * 2).as_strided((4,), (1,))", "(a * 2 if a.is_contiguous() else a * 3)", "(a * 2 + (a * 2).stride(0))"]
)
def test_what_is_read_by_its_layout_is_no_matter_of_kernels(read: str) -> None:
    """A subject that takes a transposed tensor for a contiguous one is wrong, whatever eager gives for contiguous ones."""
    source = (
        "def inputs(call): return (torch.arange(1.0, 9).reshape(2, 4).t(),), {}\n"
        f"def program(a): return {read} * torch.ones(1)\n"
    )
    taken = {"a": torch.arange(1.0, 9).reshape(2, 4).t().contiguous(), "torch": torch}
    verdict = judged(state_of(source), changing(lambda output: output.copy_(eval(read, taken)))).verdict
    assert verdict.status is Status.FAIL_ACCURACY


def test_the_sign_of_a_zero_that_eager_defines_is_a_finding() -> None:
    source = "def inputs(call): return (torch.tensor([-0.0, 0.0, 1.0] * 20),), {}\ndef program(x): return x * 2\n"
    verdict = judged(state_of(source), changing(lambda output: output + 0.0)).verdict
    assert verdict.status is Status.FAIL_ACCURACY
    assert "sign of zero" in verdict.symptom


@pytest.mark.parametrize(
    ("read", "at", "status"),
    [
        ("x.pow(0.5).view(torch.int32)", slice(1, 3), Status.PASS),
        ("x.pow(0.5).neg().view(torch.int32)", slice(1, 3), Status.PASS),
        ("x.fmod(x.relu()).view(torch.int32)", slice(1, 3), Status.PASS),
        ("x.fmod(x.relu()).view(torch.int32)", slice(1), Status.FAIL_ACCURACY),  # of a number
        ("x.mul(torch.nan).abs().view(torch.int32)", slice(1, 3), Status.FAIL_ACCURACY),  # the sign is reported
    ],
)
def test_the_sign_of_a_computed_nan_is_no_finding(read: str, at: slice, status: Status) -> None:
    source = (
        f"def inputs(call): return (torch.tensor([4.0, -4.0, -1.0, 9.0, 16.0]),), {{}}\ndef program(x): return {read}\n"
    )

    def with_other_signs(output: torch.Tensor) -> torch.Tensor:
        changed = output.clone()
        changed[at] ^= -(1 << 31)
        return changed

    assert judged(state_of(source), changing(with_other_signs)).verdict.status is status


def test_eager_in_a_second_process_is_eager_and_is_seen_from_there() -> None:
    second = load(resolve("eager[process=second]"))
    state = state_of(
        "def inputs(call): return (torch.ones(3),), {}\ndef program(x): return x.add_(torch.rand(3)), x[1:]\n"
    )
    assert judged(state, second).verdict.status is Status.PASS
    verdict = judged(state_of("import os\ndef program(): return torch.ones(2) * os.getpid()\n"), second).verdict
    assert verdict.status is Status.FAIL_ACCURACY


def test_a_random_mask_of_one_element_is_random() -> None:
    source = "def program(x): return torch.nn.functional.dropout(x)\ndef inputs(call): return (torch.ones(()),), {}\n"
    for seed in range(8):  # under half of the pairs of seeds the mask is the same
        state = state_of(source, seed=seed)
        verdict = judged(state, load(resolve("aot_eager_decomp_partition"))).verdict
        assert state.is_random
        assert verdict.status is Status.PASS, verdict


def test_a_program_that_raises_in_the_end_is_random_before_it_does() -> None:
    source = (
        "def inputs(call): return (torch.ones(3 - 2 * call),), {}\n"
        "def program(x): return (x.split(2)[1], torch.rand(3))[1]\n"
    )
    state = state_of(source, Call(), Call(), expects_raise=True)
    verdict = judged(state, load(resolve("refimpl.triton[random=philox]"))).verdict
    assert state.is_random
    assert verdict.status is Status.PASS, verdict


BOUND = (
    "def inputs(call): return (torch.ones(256),), {}\n"
    "def program(x):\n"
    "    y = x * 1.5 / 1.5\n"
    "    if (y - 1).abs().max() > 14 * torch.finfo(y.dtype).eps: raise ValueError('out of bounds')\n"
    "    return y\n"
)


def test_noise_that_makes_a_program_raise_becomes_quieter() -> None:
    state = state_of(BOUND)
    before = snapshot()
    state.run(lambda stage: None, before)
    runs = state.loud_noise_runs(lambda stage: None, before)
    assert len(runs) == LOUD_NOISE_RUNS
    kinds = [type(run) for run in runs]
    assert kinds[:2] == [Raised, Returned] or kinds[:3] == [Raised, Raised, Returned]
    assert Raised not in kinds[3:]


def test_noise_stays_as_loud_where_eager_itself_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    scales: list[float] = []

    class Recorded(RoundingNoise):
        def __init__(self, seed: int, *, scale: float = 1.0) -> None:
            scales.append(scale)
            super().__init__(seed, scale=scale)

    monkeypatch.setattr(case, "RoundingNoise", Recorded)
    state = state_of(BOUND.replace("14 *", "-1 *"))
    before = snapshot()
    state.run(lambda stage: None, before)
    state.loud_noise_runs(lambda stage: None, before)
    assert scales == [LOUD_NOISE_SCALE] * LOUD_NOISE_RUNS


@pytest.mark.parametrize("calls", [(Call(),), (Call(), Call())], ids=["the first call", "a later call"])
def test_a_program_whose_first_call_raises_has_no_speed(calls: tuple[Call, ...]) -> None:
    at = len(calls) - 1
    source = (
        f"def inputs(call): return (torch.ones(2 + (call == {at})),), {{}}\ndef program(x): return x + torch.ones(2)\n"
    )
    options = CaseOptions(speed=True, speed_budget_s=0.01)
    state = state_of(source, *calls, expects_raise=True)
    result = judge_subject(eager=state, subject=load(resolve("aot_eager")), options=options)
    assert result.verdict.status is Status.PASS
    assert (result.measurements.speedup is None) is (at == 0)
