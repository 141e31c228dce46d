"""What the programs of the operator database do when they run in eager."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

from oracle.errors import UsageError
from oracle.program.clone import clone_tree
from oracle.tests.forked_script import run_forked
from suites.base import Selection
from suites.opinfo import generate
from suites.opinfo.database import ENTRIES
from suites.opinfo.generate import SampleGenerationError, SampleKey, sample, sample_list
from suites.opinfo.samples import bind
from suites.opinfo.suite import OpInfoSuite

SUITE = OpInfoSuite()
SOME_OPS = (
    "add", "cat", "cumsum", "sort", "addmm", "nn.functional.conv2d", "nn.functional.dropout", "clamp", "mul",
    "nn.functional.softplus", "linalg.qr", "index_add", "std_mean", "where", "masked_fill", "nn.functional.relu",
)  # fmt: skip


def load(program):
    namespace = {}
    exec(program.source, namespace)
    return namespace["program"], namespace["inputs"]


def run(program):
    """Arguments after the call, and its result, on copies and under a seed."""
    function, inputs = load(program)
    args, kwargs = clone_tree(inputs(0))
    torch.manual_seed(0)
    return args, kwargs, function(*args, **kwargs)


def programs(groups, **selection):
    wanted = Selection(**{"max_samples": 6, **selection})
    return [case.program for group in groups for case in SUITE.programs(wanted, group)]


def digest(value):
    leaves = [
        (tuple(leaf.shape), leaf.stride(), str(leaf.dtype), leaf.tolist())
        if isinstance(leaf, torch.Tensor)
        else repr(leaf)
        for leaf in pytree.tree_leaves(value)
    ]
    return hashlib.sha256(repr(leaves).encode()).hexdigest()


FINGERPRINT = """
import torch
from suites.tests.test_opinfo_samples import digest
from suites.opinfo.samples import bind
torch.rand(7)
CASES = {"addmm": "sample", "meshgrid.variadic_tensors": "sample", "multinomial": "error", "cumsum": "out_strided"}
for op, kind in CASES.items():
    for index in (1, 0, 2):
        function, inputs = bind(op, dtype="float32", kind=kind, index=index, device="cpu", direction="forward")
        print(op, index, digest(inputs(0)))
"""


def test_two_processes_bind_equal_inputs(tmp_path: Path):
    """Whatever the hash seed (upstream iterates over sets) and the contents of fresh memory (it leaves some unwritten).

    One process is a fork of this one, and has its hash seed, which is drawn.
    """
    other = subprocess.run(
        [sys.executable, "-c", FINGERPRINT],
        env={**os.environ, "PYTHONHASHSEED": "2", "MALLOC_PERTURB_": "201", "PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    here = run_forked(FINGERPRINT, tmp_path)
    assert here.stdout == other.stdout, here.stderr
    assert len(other.stdout.splitlines()) == 12


def test_binding_leaves_the_generators_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    bind("bernoulli", dtype="float32", kind="sample", index=0, device="cpu", direction="forward")
    assert torch.equal(before, torch.get_rng_state())


def test_loading_the_database_leaves_backend_flags_mutable():
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = before  # raises where upstream's test helpers have frozen the flags


def test_forward_and_backward_see_the_same_values():
    pair = [
        bind("mul", dtype="float32", kind="sample", index=0, device="cpu", direction=direction)[1](0)
        for direction in ("forward", "backward")
    ]
    assert digest(pair[0]) == digest(pair[1])


def test_samples_of_one_entry_differ():
    """Upstream reseeds before each sample, which makes all of one shape equal."""
    key = SampleKey(op="cumsum", dtype="float32", source="sample", device="cpu", requires_grad=False)
    first, second = (one.input for one in sample_list(key).samples[:2])
    assert first.shape == second.shape
    assert not torch.equal(first, second)


def test_a_write_into_a_shared_sample_does_not_reach_the_next_case():
    key = SampleKey(op="sin", dtype="float32", source="sample", device="cpu", requires_grad=False)
    original = sample(key, 0).input.clone()
    sample(key, 0).input.add_(1)
    assert torch.equal(sample(key, 0).input, original)


def test_samples_run_in_eager():
    for program in programs(SOME_OPS, tags=("sample",)):
        run(program)


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int64", "bool", "complex64"])
def test_samples_of_other_dtypes_run_in_eager(dtype):
    ran = [run(program) for program in programs(SOME_OPS, tags=("sample",), dtypes=(dtype,))]
    assert len(ran) > 20


def test_error_inputs_raise_in_eager():
    refused = [program for program in programs(SOME_OPS, tags=("error",), max_samples=None) if program.expects_raise]
    assert len(refused) > 20
    for program in refused:
        with pytest.raises(Exception):  # noqa: B017 - the type is upstream's business, that it raises is ours
            run(program)


def test_error_inputs_that_eager_takes_are_not_expected_to_raise():
    taken = [program for program in programs(["clamp_max"], tags=("error",)) if not program.expects_raise]
    assert taken
    for program in taken:
        run(program)


def test_inplace_programs_return_their_argument_changed():
    changed = 0
    for program in programs(SOME_OPS, tags=("inplace",)):
        args, _, result = run(program)
        assert result is args[0] or result.data_ptr() == args[0].data_ptr()
        changed += not torch.equal(args[0], load(program)[1](0)[0][0])
    assert changed > 10


def test_out_programs_write_the_buffer_and_keep_its_strides():
    ran = 0
    for program in programs(("cumsum", "sort", "addmm", "std_mean", "clamp"), tags=("out",), max_samples=None):
        _, before = load(program)[1](0)
        _, kwargs, result = run(program)
        for buffer, original, returned in zip(
            *map(pytree.tree_leaves, (kwargs["out"], before["out"], result)), strict=True
        ):
            assert buffer.stride() == original.stride()
            assert buffer.data_ptr() == returned.data_ptr()
            ran += original.numel() > 1 and not torch.equal(buffer, original)
    assert ran > 20


def test_out_buffers_are_initialised():
    for program in programs(("cumsum", "sort"), tags=("out",)):
        for buffer in pytree.tree_leaves(load(program)[1](0)[1]["out"]):
            assert bool((buffer == 1).all())


def test_noncontiguous_programs_give_the_results_of_their_samples():
    compared = 0
    for program in programs(("addmm", "cumsum", "add", "where"), tags=("noncontiguous",)):
        args, kwargs, result = run(program)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        assert any(not tensor.is_contiguous() for tensor in tensors)
        group, sample_name = program.name.partition("/")[0], program.name.replace("noncontiguous", "sample")
        (sample_program,) = programs([group], tags=("sample",), match=(sample_name,))
        torch.testing.assert_close(result, run(sample_program)[2])
        compared += 1
    assert compared > 10


@pytest.mark.parametrize("kind", ["sample", "inplace", "noncontiguous"])
def test_backward_programs_give_gradients(kind):
    reached = 0
    for program in programs(SOME_OPS, tags=(kind,), directions=("backward",)):
        args, kwargs, result = run(program)
        inputs = [
            leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.requires_grad
        ]
        outputs = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        assert inputs
        assert all(leaf.is_leaf for leaf in inputs)
        gradients = torch.autograd.grad(outputs, inputs, [torch.ones_like(o) for o in outputs], allow_unused=True)
        reached += any(gradient is not None for gradient in gradients)
    assert reached > 10


def test_a_generator_that_raises_is_a_program_that_does_not_load(monkeypatch):
    def broken(info, device, dtype, requires_grad, **kwargs):
        yield from list(original(info, device, dtype, requires_grad, **kwargs))[:2]
        raise ArithmeticError("upstream broke")

    original = ENTRIES["cumsum"].sample_inputs_func
    monkeypatch.setattr(ENTRIES["cumsum"], "sample_inputs_func", broken)
    monkeypatch.setattr(generate, "_kept", type(generate._kept)())
    listed = programs(["cumsum"], tags=("sample",), max_samples=None)
    assert [program.name.rpartition("-")[2] for program in listed] == ["0", "1", "2"]
    run(listed[1])
    with pytest.raises(SampleGenerationError, match="upstream broke"):
        load(listed[2])


def test_an_entry_without_samples_is_a_program_that_does_not_load(monkeypatch):
    monkeypatch.setattr(ENTRIES["cumsum"], "sample_inputs_func", lambda *args, **kwargs: iter(()))
    monkeypatch.setattr(generate, "_kept", type(generate._kept)())
    (only,) = programs(["cumsum"], tags=("sample",))
    with pytest.raises(SampleGenerationError, match="yields 0"):
        load(only)


@pytest.mark.parametrize("change", [{"kind": "smaple"}, {"op": "no_such_op"}], ids=["kind", "op"])
def test_bind_refuses_unknown_words(change):
    arguments = {"op": "add", "dtype": "float32", "kind": "sample", "index": 0, "device": "cpu", "direction": "forward"}
    with pytest.raises(UsageError):
        bind(**{**arguments, **change})


def test_a_callable_argument_is_bound_and_not_an_input():
    for program in programs(["nn.functional.triplet_margin_with_distance_loss"], tags=("sample",), max_samples=None):
        _, inputs = load(program)
        assert not any(callable(leaf) for leaf in pytree.tree_leaves(inputs(0)))
