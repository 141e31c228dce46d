"""The plan of the operator database: complete, stable, and as selected."""

import pytest
import torch

from oracle.errors import UsageError
from oracle.program import Program
from suites import opinfo
from suites.base import Selection
from suites.opinfo import operators
from suites.opinfo.database import CUDA_ONLY, ENTRIES
from suites.opinfo.plan import spread
from suites.opinfo.suite import OpInfoSuite

SUITE = OpInfoSuite()


def names(group, **selection):
    return [case.program.name for case in SUITE.programs(Selection(**selection), group)]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Samples are tiny: threads only get into each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def float32_plan():
    selection = Selection()
    return {group: list(SUITE.programs(selection, group)) for group in SUITE.groups(selection)}


def test_every_float32_entry_is_a_group_or_has_a_visible_reason():
    supported = {name for name, info in ENTRIES.items() if torch.float32 in info.supported_dtypes("cpu")}
    assert supported - set(SUITE.groups(Selection())) == {name for name in CUDA_ONLY if name in supported}


def test_every_group_has_a_sample(float32_plan):
    without = [group for group, cases in float32_plan.items() if not any("sample" in case.tags for case in cases)]
    assert without == []


def test_names_are_unique_and_say_where_the_program_belongs(float32_plan):
    cases = [case for cases in float32_plan.values() for case in cases]
    assert len({case.program.name for case in cases}) == len(cases) > 15_000
    for case in cases:
        assert case.program.name.startswith(f"{case.group}/{case.dtype}/{case.direction}/{case.tags[0]}-")


def test_listing_twice_gives_the_same_programs():
    selection = Selection(tags=("all",), dtypes=("float32", "int64"), directions=("forward", "backward"))
    both = [list(SUITE.programs(selection, "sort")) for _ in range(2)]
    assert both[0] == both[1]
    assert {case.tags[0] for case in both[0]} == {"sample", "out", "noncontiguous"}


def test_programs_survive_json(float32_plan):
    for cases in list(float32_plan.values())[::25]:
        for case in cases[:3]:
            assert Program.from_json(case.program.to_json()) == case.program


def test_no_program_resets_the_seed():
    """Such a program compiles to no graph at all, so agreement would be vacuous."""
    resetting = {name for name, info in ENTRIES.items() if operators.resets_the_seed(info.op)}
    assert "bernoulli" in resetting  # the check itself sees what it looks for
    functions = [operators.operator_of(info) for info in ENTRIES.values()]
    functions += [operators.inplace_of(info) for info in ENTRIES.values()]
    assert not any(map(operators.resets_the_seed, functions))


def test_a_random_entry_stands_for_the_operator_of_its_name():
    assert operators.operator_of(ENTRIES["nn.functional.dropout"]) is torch.nn.functional.dropout
    assert operators.operator_of(ENTRIES["cauchy"]) is torch.Tensor.cauchy_
    x = torch.ones(100)
    inplace = operators.inplace_of(ENTRIES["nn.functional.dropout"])
    assert inplace is not None
    assert inplace(x, 0.5) is x


def test_default_is_float32_forward_samples_and_errors(float32_plan):
    cases = float32_plan["add"]
    assert {(case.dtype, case.direction) for case in cases} == {("float32", "forward")}
    assert {case.tags for case in cases} == {("sample",), ("error",)} or {case.tags for case in cases} == {("sample",)}


def test_error_inputs_come_once_under_the_first_dtype_and_only_forward():
    listed = names("cat", dtypes=("int64", "float32"), directions=("forward", "backward"), tags=("sample", "error"))
    errors = [name for name in listed if "/error-" in name]
    assert errors
    assert all(name.startswith("cat/float32/forward/") for name in errors)


def test_dtypes_that_the_entry_lacks_give_no_programs():
    assert names("linalg.svd", dtypes=("int64",)) == []
    assert "linalg.svd" not in SUITE.groups(Selection(dtypes=("int64",)))


def test_backward_differentiates_and_is_left_out_where_upstream_has_none():
    cases = list(SUITE.programs(Selection(directions=("backward",)), "sin"))
    assert cases
    assert all(case.program.calls[0].backward for case in cases)
    assert names("argmax", directions=("backward",)) == []


@pytest.mark.parametrize("tag", [tag for tag in opinfo.TAGS if tag != "all"])
def test_a_tag_gives_its_kind_only(tag):
    cases = [case for group in ("add", "cat", "cumsum") for case in SUITE.programs(Selection(tags=(tag,)), group)]
    assert cases
    assert all(case.tags == (tag,) for case in cases)


def test_out_comes_dense_and_strided():
    listed = names("cumsum", tags=("out",))
    assert any("/out-" in name for name in listed)
    assert any("/out_strided-" in name for name in listed)


def test_inplace_is_planned_only_where_eager_takes_it():
    assert names("eq", tags=("inplace",), dtypes=("float32",))  # stores its bools as floats
    assert names("nn.functional.conv2d", tags=("inplace",)) == []
    listed, samples = names("add", tags=("inplace",)), names("add", tags=("sample",))
    assert 0 < len(listed) < len(samples)  # samples that broadcast the input are refused


def test_max_samples_takes_first_last_and_evenly_between():
    everything, some = names("add", tags=("sample",)), names("add", tags=("sample",), max_samples=5)
    assert len(some) == 5
    assert (some[0], some[-1]) == (everything[0], everything[-1])
    assert [name for name in everything if name in some] == some


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 9, 10, 11, None])
def test_spread_never_repeats_and_never_exceeds(limit):
    items = [("sample", index) for index in range(10)]
    chosen = spread(items, limit)
    assert len(set(chosen)) == len(chosen) == (10 if limit is None else min(limit, 10))
    assert chosen == sorted(chosen)


def test_match_selects_groups_and_single_programs():
    assert SUITE.groups(Selection(match=("linalg.svd*",))) == ["linalg.svd", "linalg.svdvals"]
    assert SUITE.groups(Selection(match=("add/float32/*",))) == ["add"]
    assert names("add", match=("add/float32/forward/sample-3",)) == ["add/float32/forward/sample-3"]


@pytest.mark.parametrize(
    "selection",
    [
        Selection(dtypes=("float31",)),
        Selection(tags=("sampel",)),
        Selection(directions=("sideways",)),
        Selection(device="toaster"),
    ],
    ids=["dtype", "tag", "direction", "device"],
)
def test_an_unknown_word_is_a_usage_error(selection):
    with pytest.raises(UsageError, match=r"one of|a torch device"):
        SUITE.groups(selection)
    with pytest.raises(UsageError):
        list(SUITE.programs(selection, "add"))


def test_an_unknown_entry_is_a_usage_error():
    with pytest.raises(UsageError, match="no_such_op"):
        list(SUITE.programs(Selection(), "no_such_op"))


def test_every_dtype_is_one_of_torch():
    assert all(hasattr(torch, dtype) for dtype in opinfo.DTYPES)
