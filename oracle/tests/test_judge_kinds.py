"""Every dtype, layout and kind of value: the right answer passes, a wrong one does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.two_tensor import TwoTensor

from oracle.judge.tolerance import TABLE
from oracle.observe.outcome import Returned
from oracle.tests.outcomes import facts_of, judged, leaf, observation, returned, returned_calls
from oracle.verdict import Status

INTEGERS = [
    getattr(torch, name)
    for name in ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
    if hasattr(torch, name)
]
FLOATS = [dtype for dtype in TABLE if not dtype.is_complex]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_of_every_width_are_exact(dtype):
    x = torch.tensor([0, 1, 100], dtype=dtype)
    largest = torch.tensor([torch.iinfo(dtype).max], dtype=dtype)
    assert judged(returned(x, largest), returned(x.clone(), largest.clone())).status is Status.PASS
    verdict = judged(returned(x), returned(torch.tensor([0, 1, 101], dtype=dtype)))
    assert verdict.symptom == "call 0: output[2] is 101, but should be 100 (1 of 3 elements differ)"


def test_a_bool_is_exact():
    x = torch.tensor([True, False])
    assert judged(returned(x), returned(x.clone())).status is Status.PASS
    verdict = judged(returned(x), returned(torch.tensor([True, True])))
    assert verdict.symptom == "call 0: output[1] is True, but should be False (1 of 2 elements differ)"


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats_of_every_format_are_compared(dtype):
    x = torch.tensor([1.0, 2.0, 4.0]).to(dtype)
    assert judged(returned(x), returned(x.clone())).status is Status.PASS
    verdict = judged(returned(x), returned(torch.tensor([1.0, 2.0, 8.0]).to(dtype)))
    assert verdict.symptom.startswith("call 0: output[2] is 8, but should be 4") or dtype is torch.float64
    assert verdict.status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("dtype", [d for d in FLOATS if d is not torch.float8_e8m0fnu], ids=str)
def test_the_neighbouring_float_is_close_and_counted_in_ulp(dtype):
    x = torch.tensor([1.0, 2.0]).to(dtype)
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()]
    verdict = judged(returned(x), returned((x.view(bits) + 1).view(dtype)))
    assert verdict.status is Status.PASS
    assert verdict.max_ulp == 1.0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_nan_in_every_format_equals_nan_and_nothing_else(dtype):
    x = torch.tensor([1.0, float("nan")]).to(dtype)
    assert judged(returned(x), returned(x.clone())).status is Status.PASS
    assert judged(returned(x), returned(torch.tensor([1.0, 1.0]).to(dtype))).status is Status.FAIL_ACCURACY


def test_a_scale_of_e8m0_is_exact():
    x = torch.tensor([1.0, 2.0]).to(torch.float8_e8m0fnu)
    assert (
        judged(returned(x), returned(torch.tensor([1.0, 4.0]).to(torch.float8_e8m0fnu))).status is Status.FAIL_ACCURACY
    )


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_numbers_are_compared_by_modulus(dtype):
    x = torch.tensor([1 + 1j, 3 - 4j]).to(dtype)
    assert judged(returned(x), returned(x.clone())).status is Status.PASS
    for wrong in (
        torch.tensor([1 + 1j, 3 + 4j]),
        torch.tensor([1 + 1.5j, 3 - 4j]),
        torch.tensor([1 + 1j, complex("nan")]),
    ):
        assert judged(returned(x), returned(wrong.to(dtype))).status is Status.FAIL_ACCURACY


def test_a_small_part_of_a_large_complex_number_is_as_precise_as_the_number():
    x = torch.tensor([1e6 + 1e-3j])
    assert judged(returned(x), returned(torch.tensor([1e6 + 2e-3j]))).status is Status.PASS
    assert judged(returned(x), returned(torch.tensor([1e6 + 1e2j]))).status is Status.FAIL_ACCURACY


def test_a_conjugate_view_and_a_resolved_conjugate_have_equal_values_but_another_flag():
    x = torch.tensor([1 + 2j, 3 - 1j])
    verdict = judged(returned(x.conj()), returned(x.conj().resolve_conj()))
    assert verdict.status is Status.FAIL_METADATA
    assert verdict.symptom == "call 0: output.is_conj is False, but should be True"
    assert verdict.also == ()


@pytest.mark.parametrize("name", ["float4_e2m1fn_x2", "bits8", "uint4", "int4"])
def test_packed_formats_are_compared_by_their_bits(name):
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip(f"torch {torch.__version__} has no {name}")
    x, other = (torch.tensor(values, dtype=torch.uint8).view(dtype) for values in ([1, 2], [1, 3]))
    assert judged(returned(x), returned(x)).status is Status.PASS
    assert judged(returned(x), returned(other)).status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64, torch.float8_e5m2], ids=str)
def test_empty_tensors_agree_and_their_shapes_count(dtype):
    x = torch.empty(0, 3).to(dtype)
    assert judged(returned(x), returned(torch.empty(0, 3).to(dtype))).status is Status.PASS
    assert judged(returned(x), returned(torch.empty(3, 0).to(dtype))).status is Status.FAIL_METADATA


def test_scalars_of_no_dimension_are_compared():
    verdict = judged(returned(torch.tensor(1.0)), returned(torch.tensor(2.0)))
    assert verdict.symptom.startswith("call 0: output is 2, but should be 1: error 1")
    assert verdict.worst is not None
    assert verdict.worst.index == ()


@pytest.mark.parametrize(("wrong", "expected"), [(torch.float64, torch.float32), (torch.int32, torch.int64)])
def test_another_dtype_is_found(wrong, expected):
    verdict = judged(returned(torch.ones(2, dtype=expected)), returned(torch.ones(2, dtype=wrong)))
    assert verdict.status is Status.FAIL_METADATA
    assert verdict.symptom == f"call 0: output.dtype is {wrong}, but should be {expected}"


@pytest.mark.parametrize(
    ("name", "value"),
    [("device", "cuda:0"), ("layout", "sparse_coo"), ("type_name", "torch.nn.parameter.Parameter"), ("is_leaf", False),
     ("is_neg", True), ("is_inference", True), ("requires_grad", True)],
)  # fmt: skip
def test_each_other_piece_of_metadata_is_found(name, value):
    right = returned(torch.ones(2))
    call = right.calls[0]
    output = call.outputs[0]
    assert output.facts is not None
    wrong = replace(call, outputs=(replace(output, facts=replace(output.facts, **{name: value})),))
    verdict = judged(right, Returned(calls=(wrong,)))
    assert verdict.status is Status.FAIL_METADATA
    assert verdict.symptom == f"call 0: output.{name} is {value}, but should be {getattr(output.facts, name)}"


def test_a_parameter_is_not_a_tensor():
    x = torch.ones(2)
    assert judged(returned(torch.nn.Parameter(x)), returned(x.clone().requires_grad_())).status is Status.FAIL_METADATA


def test_a_wrong_value_outweighs_a_wrong_flag_and_a_wrong_stride():
    x = torch.arange(6.0).reshape(2, 3)
    wrong = (x + 1).t().contiguous().t().requires_grad_()
    verdict = judged(returned(x), returned(wrong))
    assert verdict.status is Status.FAIL_ACCURACY
    assert any("requires_grad" in symptom for symptom in verdict.also)
    assert any("stride" in symptom for symptom in verdict.also)


# ----------------------------------------------------------------------- layouts

DENSE = torch.tensor([[0.0, 2.0, 0.0, 1.0], [3.0, 0.0, 0.0, 0.0], [0.0, 0.0, 5.0, 0.0], [0.0, 4.0, 0.0, 0.0]])
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda t: t.to_sparse(),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "bsc": lambda t: t.to_sparse_bsc((2, 2)),
    "mkldnn": lambda t: t.to_mkldnn(),
    "quantised": lambda t: torch.quantize_per_tensor(t, 0.1, 3, torch.qint8),
    "nested": lambda t: torch.nested.nested_tensor([t, t[:2] + 1]),
    "jagged": lambda t: torch.nested.nested_tensor([t, t[:2] + 1], layout=torch.jagged),
    "subclass": lambda t: TwoTensor(t, t * 2),
    "parameter": lambda t: torch.nn.Parameter(t),
    "transposed": lambda t: t.t(),
    "expanded": lambda t: t[0].expand(5, 4),
}
pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse .* tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
    pytest.mark.filterwarnings("ignore:.*quantize.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*quantiz.*:UserWarning"),
]


@pytest.mark.parametrize("build", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_agrees_with_itself_and_a_wrong_value_in_it_is_found(build):
    wrong = DENSE.clone()
    wrong[0, 1] = 2.5
    right = judged(returned(build(DENSE)), returned(build(DENSE.clone())))
    assert right.status is Status.PASS, right.symptom
    assert right.compared.elements > 0
    verdict = judged(returned(build(DENSE)), returned(build(wrong)))
    assert verdict.status is Status.FAIL_ACCURACY


@pytest.mark.parametrize("name", ["coo", "csr", "csc"])
def test_a_value_at_another_place_of_a_sparse_tensor_is_found(name):
    wrong = DENSE.clone()
    wrong[0, 0], wrong[0, 1] = 2.0, 0.0
    verdict = judged(returned(LAYOUTS[name](DENSE)), returned(LAYOUTS[name](wrong)))
    assert verdict.status is Status.FAIL_ACCURACY
    assert "indices()" in verdict.symptom


def test_the_order_of_uncoalesced_entries_is_not_compared_but_their_sums_are():
    def entries(columns, values):
        return torch.sparse_coo_tensor(torch.tensor([columns]), torch.tensor(values), (3,), check_invariants=True)

    eager = entries([0, 2, 0], [1.0, 2.0, 3.0])
    assert judged(returned(eager), returned(entries([2, 0, 0], [2.0, 3.0, 1.0]))).status is Status.PASS
    verdict = judged(returned(eager), returned(entries([2, 0, 0], [2.0, 3.0, 2.0])))
    assert verdict.symptom.startswith("call 0: output.values()[0] is 5, but should be 4")


def test_another_number_of_entries_is_found():
    wrong = DENSE.clone()
    wrong[1, 1] = 1e-30
    verdict = judged(returned(DENSE.to_sparse()), returned(wrong.to_sparse()))
    assert verdict.symptom == ("call 0: output.indices() is (2, 6) of torch.int64, but should be (2, 5) of torch.int64")


def test_other_parameters_of_a_quantiser_are_found():
    one, other = (torch.quantize_per_tensor(DENSE, 0.1, zero, torch.quint8) for zero in (3, 4))
    verdict = judged(returned(one), returned(other))
    assert any("output.quantizer is " in text for text in (verdict.symptom, *verdict.also))


def test_a_wrong_inner_tensor_of_a_subclass_is_named():
    verdict = judged(returned(TwoTensor(DENSE, DENSE)), returned(TwoTensor(DENSE, DENSE + 1)))
    assert verdict.symptom.startswith("call 0: output.b[")


def test_a_fake_tensor_in_place_of_a_real_one_is_found():
    x = torch.ones(2)
    fake = FakeTensorMode().from_tensor(x)
    verdict = judged(returned(x), returned(fake))
    assert verdict.status is not Status.PASS
    assert "call 0: output is made of [], but should be of ['']" in (verdict.symptom, *verdict.also)
    assert judged(returned(fake), returned(fake)).status is Status.PASS


def test_a_tensor_on_the_meta_device_has_metadata_only():
    x = torch.empty(2, device="meta")
    assert judged(returned(x), returned(torch.empty(2, device="meta"))).status is Status.PASS
    assert judged(returned(x), returned(torch.empty(3, device="meta"))).status is Status.FAIL_METADATA


# ----------------------------------------------------------------------- Python values


@pytest.mark.parametrize(
    ("expected", "wrong"),
    [(1, 2), (True, False), ("a", "b"), (None, 1), (torch.float32, torch.float64), (1.0, 1.001), (1.0, float("nan")),
     (float("inf"), -float("inf")), (1 + 1j, 1 - 1j), (torch.device("cpu"), torch.device("meta")), (b"x", b"y"), (1, 1.0),
     (1, True), (1 << 80, (1 << 80) + 1)],
)  # fmt: skip
def test_python_values_are_compared(expected, wrong):
    x = torch.ones(1)
    assert judged(returned(x, expected), returned(x, expected)).status is Status.PASS
    assert judged(returned(x, expected), returned(x, wrong)).status is not Status.PASS


def test_a_python_float_has_the_precision_of_the_float32_tensor_it_came_from():
    assert judged(returned(1.0), returned(1.0 + 1e-6)).status is Status.PASS
    verdict = judged(returned(1.0), returned(1.0 + 1e-5))
    assert verdict.symptom.startswith("call 0: output is 1.00001, but should be 1.0: error 1e-05")
    assert verdict.max_ulp is None


def test_a_python_nan_equals_a_python_nan():
    assert judged(returned(float("nan")), returned(float("nan"))).status is Status.PASS


def test_of_an_opaque_object_only_the_type_is_compared():
    x = torch.ones(1)
    right = judged(returned(x, "<Thing at 0x7f01>"), returned(x, "<Thing at 0x7f02>"))
    assert right.status is Status.PASS
    assert "only its type was compared" in right.explained[-1]
    assert judged(returned(x, "<Thing>"), returned(x, "<Other>")).status is Status.FAIL_ACCURACY


def test_a_tensor_is_not_a_python_number():
    verdict = judged(returned(torch.tensor(1.0)), returned(1.0))
    assert "output is float 1.0, but should be torch.Tensor of shape () and dtype torch.float32" in verdict.also[0]


def test_leaves_of_nested_structures_are_named():
    x = torch.ones(2)
    eager = returned_calls(observation({"loss": x, "aux": [x, None]}))
    verdict = judged(eager, returned_calls(observation({"loss": x, "aux": [x + 1, None]})))
    assert verdict.symptom.startswith("call 0: output['aux'][0][0] is 2, but should be 1")


def test_the_builders_of_these_tests_say_what_an_observer_says():
    assert facts_of(torch.ones(2, 3).t()).stride == (1, 3)
    assert leaf("output", 3).facts is None


@pytest.mark.parametrize(
    ("subject", "is_right"),
    [
        ([1.0, 2.1, 7.0], True),  # as the run in fp64, which kept more digits on the way
        ([1.0, 2.0, 7.0], True),  # as eager
        ([1.0, 2.1, math.inf], True),
        ([1.0, 2.9, 7.0], False),
        ([1.1, 2.1, 7.0], False),  # both agree here
        ([1.0, math.nan, 7.0], False),
        ([1.0, 2.1, 8.0], False),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_run_in_fp64_that_gives_eagers_dtype_speaks_where_it_disagrees(dtype, subject, is_right):
    eager = torch.tensor([1.0, 2.0, math.inf]).to(dtype)
    twin = torch.tensor([1.0, 2.1, 7.0]).to(dtype)
    verdict = judged(returned(eager), returned(torch.tensor(subject).to(dtype)), truth=returned(twin))
    assert verdict.status is (Status.PASS if is_right else Status.FAIL_ACCURACY)
