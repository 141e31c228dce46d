"""Policies of single operators: each names what the program really has, and none is given away for nothing."""

import pytest
import torch

from oracle.judge.symmetry import rule_of
from oracle.observe.flatten import flatten
from oracle.program import ComparePolicy
from oracle.program.clone import clone_tree
from suites.base import Selection
from suites.opinfo import operators, policies
from suites.opinfo.database import ENTRIES
from suites.opinfo.suite import OpInfoSuite

SUITE = OpInfoSuite()
RANDOM = sorted(name for name, info in ENTRIES.items() if operators.resets_the_seed(info.op))
SYMMETRIC = sorted(name for name in ENTRIES if name.split(".")[-1] in policies.INVARIANTS)
NAMED = sorted({*SYMMETRIC, *policies.INDICES})


def programs(group, **selection):
    return [case.program for case in SUITE.programs(Selection(tags=("sample",), **selection), group)]


def result_and_args(program, seed=0):
    namespace = {}
    exec(program.source, namespace)
    args, kwargs = clone_tree(namespace["inputs"](0))
    torch.manual_seed(seed)
    return namespace["program"](*args, **kwargs), args


def test_every_named_entry_exists():
    assert [name for name in NAMED if name not in ENTRIES] == []


def test_most_entries_are_strict():
    for group in ("add", "argmax", "max.reduction_with_dim", "cummax", "empty_like", "linalg.solve"):
        strict = {program.policy == ComparePolicy() for program in programs(group)}
        assert strict == {group != "empty_like"}


@pytest.mark.parametrize("group", NAMED)
def test_a_departure_gives_its_reason(group):
    departing = [program.policy for program in programs(group, max_samples=40) if program.policy != ComparePolicy()]
    if group != "nn.functional.feature_alpha_dropout.without_train":  # never drops anything: strict throughout
        assert departing
    assert all(policy.reason for policy in departing)


@pytest.mark.parametrize("group", sorted(policies.INDICES))
def test_index_paths_and_dimensions_are_the_programs_own(group):
    for program in programs(group):
        result, args = result_and_args(program)
        outputs = {leaf.path: leaf.value for leaf in flatten(result, "output")[0]}
        if not program.policy.index_outputs:
            assert len(outputs) == 1  # median without dim: a value, no index
        for path, spec in program.policy.index_outputs.items():
            assert outputs[path].dtype == torch.int64
            source, dim = args[0], spec["dim"]
            if source.ndim > 1 and outputs[path].ndim == source.ndim:
                assert int(outputs[path].max()) < source.shape[dim]
                others = {leaf for leaf in outputs if leaf != path}
                for other in others:
                    assert torch.equal(torch.gather(source, dim, outputs[path]), outputs[other])


def test_stable_sorts_promise_their_indices():
    stable = {bool(spec["stable"]) for program in programs("sort") for spec in program.policy.index_outputs.values()}
    assert stable == {True, False}


@pytest.mark.parametrize("group", SYMMETRIC)
def test_invariants_take_the_outputs_and_agree_with_themselves(group):
    for program in programs(group, max_samples=8):
        result, _ = result_and_args(program)
        tensors = [leaf.value for leaf in flatten(result, "output")[0]]
        assert rule_of(program.policy.invariant)(tensors, tensors) == ""


def test_backward_has_no_invariant_since_its_outputs_are_processed():
    assert {program.policy.invariant for program in programs("linalg.svd", directions=("backward",))} == {""}


@pytest.mark.parametrize("group", RANDOM)
def test_what_is_called_random_moves_the_generator_and_nothing_else_does(group):
    for program in programs(group):
        torch.manual_seed(0)
        seeded = torch.get_rng_state()
        result, _ = result_and_args(program)
        has_moved = not torch.equal(seeded, torch.get_rng_state())
        is_empty = all(
            leaf.value.numel() == 0 for leaf in flatten(result, "output")[0] if isinstance(leaf.value, torch.Tensor)
        )
        assert has_moved == bool(program.policy.is_random) or is_empty, program.name
