"""The regressions suite: programs, their headers and the ledger agree with one another, and the programs run in eager."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oracle.errors import UsageError
from oracle.known.ledger import load_ledger
from oracle.program import Program
from oracle.program.snippets import Snippet
from oracle.verdict import Status
from suites.base import Selection
from suites.regressions import TAGS
from suites.regressions.suite import LADDER, RegressionsSuite, expected, first_rung, snippets
from suites.tests.plain_runner import run, same

SUITE = RegressionsSuite()
ON_CPU = [name for name, snippet in snippets().items() if "gpu" not in snippet.tags]
SLOW_ON_CPU = ("193061/modulated_layer_norms",)


def _program(name: str) -> Program:
    (found,) = SUITE.programs(Selection(match=(name,)), name.split("/")[0])
    return found.program


@pytest.mark.parametrize("name", ON_CPU)
def test_a_program_runs_in_eager_and_repeats_itself(name: str) -> None:
    program = _program(name)
    first = run(program)
    assert not any(isinstance(call, str) for call in first[:-1]), f"{name}: {first}"
    assert isinstance(first[-1], str) == program.expects_raise, f"{name}: {first[-1]}"
    assert same(first, run(_program(name)))


@pytest.mark.parametrize("name", [name for name in snippets() if name not in ON_CPU and name not in SLOW_ON_CPU])
def test_a_program_for_gpus_runs_in_eager_on_the_cpu_too(name: str) -> None:
    program = snippets()[name].to_program(name=name, device="cpu")
    assert not any(isinstance(call, str) for call in run(program))


def test_every_issue_of_the_ledger_has_a_program_and_every_program_that_differs_an_issue() -> None:
    differing = sorted(name for name, snippet in snippets().items() if "differs" in snippet.tags)
    assert sorted(issue.program_name for issue in load_ledger().issues) == differing


@pytest.mark.parametrize(("name", "snippet"), snippets().items())
def test_the_header_says_how_a_program_ends_and_what_it_was_reported_for(name: str, snippet: Snippet) -> None:
    (kind,) = {"differs", "agrees", "untried", "control"} & set(snippet.tags)
    assert set(snippet.tags) <= set(TAGS)
    is_reported = kind in ("agrees", "untried")  # what differs is in the ledger, a control was not reported
    assert bool(snippet.rung) == bool(snippet.where) == is_reported
    assert ("gpu" in snippet.tags) == (kind == "untried")
    group = name.split("/")[0]
    assert (
        group.isdigit() or group == kind == "control" or (kind == "differs" and group in ("found", "fuzzed", "known"))
    )


def test_every_tag_is_used() -> None:
    assert {tag for snippet in snippets().values() for tag in snippet.tags} == set(TAGS)


def test_expectations_are_status_words_and_cover_the_ladder() -> None:
    said = expected()
    assert set(said) == {name for name, snippet in snippets().items() if "untried" not in snippet.tags}
    assert all(Status(status) for words in said.values() for status in words.values())
    for issue in load_ledger().issues:
        assert said[issue.program_name][first_rung(issue.program_name)] == issue.statuses[0]
    for name, snippet in snippets().items():
        if {"agrees", "control"} & set(snippet.tags):
            assert said[name] == dict.fromkeys(LADDER, "pass")


def test_programs_for_gpus_are_planned_only_on_a_gpu_and_the_reason_is_given() -> None:
    assert "193061" not in SUITE.groups(Selection())
    assert "193061" in SUITE.groups(Selection(device="cuda"))
    reasons = SUITE.not_planned(Selection())
    assert sorted(reasons) == sorted(name for name in snippets() if name not in ON_CPU)
    assert all("GPU" in reason for reason in reasons.values())
    on_a_gpu = SUITE.not_planned(Selection(device="cuda:0"))
    assert sorted(on_a_gpu) == sorted(name for name, snippet in snippets().items() if "variant" in snippet.tags)
    assert all("made on the CPU" in reason for reason in on_a_gpu.values())


def test_a_group_holds_all_programs_of_its_issue() -> None:
    assert [found.program.name for found in SUITE.programs(Selection(), "control")] == [
        name for name in snippets() if name.startswith("control/")
    ]


def test_an_unknown_issue_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="1234567"):
        list(SUITE.programs(Selection(), "1234567"))


def test_programs_of_own_ledgers_are_regressions_too(tmp_path: Path) -> None:
    entry = """
[[issue]]
id = "{id}"
title = "t"
severity = "wrong value"
rung = "{rung}"
statuses = ["fail_accuracy"]
expires = 2099-01-01
source = "def program(): pass"
{more}
"""
    path = tmp_path / "known.toml"  # a group of the built-in ledger is "known"
    texts = [
        entry.format(id="live", rung="inductor", more=""),
        entry.format(id="fixed", rung="mine:compile", more="fixed = '2.13'"),
    ]
    path.write_text("".join(texts))
    own = Selection(ledgers=(str(path),))
    assert SUITE.groups(own) == [*SUITE.groups(Selection()), "known.toml"]
    live, fixed = SUITE.programs(own, "known.toml")
    assert (live.program.name, live.tags, live.group) == ("known.toml/live", ("differs",), "known.toml")
    assert (fixed.program.name, fixed.tags) == ("known.toml/fixed", ("agrees",))
    assert "inductor" in live.subjects
    quick = Selection(ledgers=(str(path),), quick=True)
    assert [program.subjects for program in SUITE.programs(quick, "known.toml")] == [("inductor",), ()]
    (only,) = SUITE.programs(Selection(ledgers=(str(path),), tags=("agrees",), match=("known.toml/*",)), "known.toml")
    assert only.program.name == "known.toml/fixed"
    with pytest.raises(UsageError):
        list(SUITE.programs(Selection(), "known.toml"))


@pytest.mark.parametrize(
    ("name", "backend"),
    [
        ("197859/dict_shadows_submodule", "eager"),
        ("197860/method_code_replaced", "eager"),
        ("198102/gapped_unfold_mutation", "aot_eager"),
        ("178680/shared_base_offset_changes", "aot_eager"),
        ("175154/interpolate_nearest_unchanged", "aot_eager"),
        ("115249/dropout_without_training_written", "aot_eager"),
        ("132929/gradient_of_intermediate", "aot_eager"),
    ],
)
def test_a_program_that_differs_does_so_without_a_cpp_compiler_too(name: str, backend: str) -> None:
    """The installed torch is the one that expectations were measured with. A bug that is fixed shows here first."""
    if not torch.__version__.startswith("2.13."):
        pytest.skip(f"measured on torch 2.13, this is {torch.__version__}")
    torch._dynamo.reset()
    program = _program(name)
    compiled = run(program, lambda target: torch.compile(target, backend=backend))
    assert not same(run(program), compiled, rtol=1e-4, atol=1e-5)
