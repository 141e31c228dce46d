"""Input trees survive JSON and copying: every observable property of every kind of tensor."""

from __future__ import annotations

import json
import warnings
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from oracle.errors import UsageError
from oracle.program import Call
from oracle.program.inputs import clone_tree, decode, decode_call, encode, map_tensors

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Box:
    tensor: torch.Tensor
    label: str


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)), seed=0)


def spec(**fields: Any) -> dict[str, Any]:
    return {"$": "tensor", "shape": [4], **fields}


def assert_same_tensor(actual: torch.Tensor, expected: torch.Tensor) -> None:
    __tracebackhide__ = True
    for name in ("shape", "dtype", "device", "layout", "requires_grad", "is_quantized"):
        assert getattr(actual, name) == getattr(expected, name), name
    assert type(actual) is type(expected)
    assert actual.is_leaf
    assert (actual.is_conj(), actual.is_neg()) == (expected.is_conj(), expected.is_neg())
    if expected.layout is not torch.strided or expected.is_quantized:
        assert str(actual) == str(expected)
        return
    assert (actual.stride(), actual.storage_offset()) == (expected.stride(), expected.storage_offset())
    assert bits(actual) == bits(expected)


def bits(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # sparse CSR is beta and quantised dtypes are deprecated: torch says so every time
    torch.manual_seed(0)
    TENSORS = {
        "0-d": torch.tensor(0.1),
        "contiguous": torch.randn(3, 4),
        "more than fits inline": torch.randn(50),
        "special values": torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 1e-45]),
        "NaN with a payload": torch.tensor([0x7FC12345], dtype=torch.int32).view(torch.float32),
        "transposed": torch.randn(3, 4).t(),
        "slice with offset": torch.randn(6, 6)[1:, 2:5],
        "expanded": torch.randn(1, 3).expand(4, 3),
        "overlapping": torch.arange(6.0).as_strided((3, 3), (1, 1)),
        "channels last": torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        "empty": torch.empty(0, 3),
        "empty with an odd stride": torch.empty_strided((5, 0), (1, 5)),
        "size one with an odd stride": torch.empty_strided((2, 1), (1, 7)).fill_(1.0),
        "leaf": torch.randn(3, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.randn(3, 2)),
        "frozen parameter": torch.nn.Parameter(torch.randn(3), requires_grad=False),
        "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
        "negative": torch.randn(3, dtype=torch.complex64).conj().imag,
        "sparse COO": torch.eye(3).to_sparse(),
        "uncoalesced": torch.sparse_coo_tensor(
            torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=True
        ),
        "sparse CSR": torch.eye(3).to_sparse_csr(),
        "sparse CSC": torch.eye(3).to_sparse_csc(),
        "sparse BSR": torch.eye(4).to_sparse_bsr((2, 2)),
        "sparse BSC": torch.eye(4).to_sparse_bsc((2, 2)),
        "quantised per tensor": torch.quantize_per_tensor(torch.randn(3, 3), 0.1, 3, torch.quint8),
        "quantised per channel": torch.quantize_per_channel(
            torch.randn(2, 3), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8
        ),
        **{
            str(dtype): torch.arange(5).to(dtype)
            for dtype in (
                *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
                *(torch.int8, torch.int16, torch.int32, torch.int64),
                *(torch.float16, torch.bfloat16, torch.float64, torch.complex32, torch.complex128),
                *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
            )
        },
    }


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_survives_json(name: str) -> None:
    assert_same_tensor(through_json(TENSORS[name]), TENSORS[name])


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_survives_copying_and_is_independent(name: str) -> None:
    original = TENSORS[name]
    copied = clone_tree([original])[0]
    assert_same_tensor(copied, original)
    assert copied is not original
    if original.layout is torch.strided and original.numel() and not original.is_quantized:
        assert copied.untyped_storage().data_ptr() != original.untyped_storage().data_ptr()


def test_literals_survive_json() -> None:
    value = {
        "plain": [None, True, 3, 2.5, "text", {"nested": []}],
        "floats": [float("inf"), -float("inf")],
        "$": "not a tag",
        "tuple": (1, (2,), ()),
        "set": {1, 2},
        "frozenset": frozenset({"a"}),
        "slice": slice(1, None, 2),
        "range": range(1, 9, 3),
        "others": [2 - 1j, b"\x00\xff", ..., torch.Size([2, 3])],
        "torch": [torch.float16, torch.strided, torch.channels_last, torch.device("cpu"), torch.per_tensor_affine],
        "keys": {1: "a", None: "b", (1, 2): "c"},
    }
    actual = through_json(value)
    assert actual == value
    assert type(actual["others"][3]) is torch.Size
    assert np.isnan(through_json(float("nan")))


def test_numpy_values_survive_json() -> None:
    actual = through_json([np.float32(0.1), np.int64(3), np.arange(4)])
    assert actual[:2] == [np.float32(0.1), np.int64(3)]
    assert type(actual[0]) is np.float32
    assert actual[2].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("copied", [through_json, clone_tree])
def test_aliases_and_identities_are_kept(copied: Any) -> None:
    base, again = torch.zeros(10), torch.randn(2, requires_grad=True)
    window, head, as_integers, first, second, alone = copied(
        [base[2:], base[:5], base.view(torch.int32), again, again, torch.zeros(10)]
    )
    window[0] = 7.0
    assert (head[2].item(), as_integers[2].item()) == (7.0, 0x40E00000)
    assert first is second
    assert alone.sum() == 0
    assert base.sum() == 0


def test_copies_keep_containers_and_their_identities() -> None:
    shared = [torch.zeros(2)]
    cyclic: list[Any] = [shared, shared]
    cyclic.append(cyclic)
    box = Box(torch.ones(2), "label")
    value = {"pair": Pair(shared[0], 1), "ordered": OrderedDict(a=shared), "box": box, "cyclic": cyclic, "set": {1}}
    actual = clone_tree(value)
    assert actual["cyclic"][0] is actual["cyclic"][1] is actual["ordered"]["a"] is not shared
    assert actual["cyclic"][2] is actual["cyclic"]
    assert type(actual["pair"]) is Pair
    assert actual["pair"].left is actual["ordered"]["a"][0]
    assert type(actual["ordered"]) is OrderedDict
    assert actual["box"].label == "label"
    assert actual["box"].tensor is not box.tensor
    assert actual["box"].tensor.equal(box.tensor)


def test_copies_keep_what_cannot_be_copied_and_copy_the_rest() -> None:
    generator = (i for i in range(3))
    module = torch.nn.Linear(2, 2)
    kept, copied, function = clone_tree([generator, module, torch.add])
    assert kept is generator
    assert function is torch.add
    assert copied is not module
    assert copied.weight.equal(module.weight)


def test_copies_keep_attributes_and_the_results_of_structs() -> None:
    tensor = torch.randn(3, 3)
    tensor._dynamo_dynamic_indices = {0}  # pyright: ignore
    result = tensor.max(0)
    copied, struct = clone_tree([tensor, result])
    assert copied._dynamo_dynamic_indices == {0}
    assert type(struct) is type(result)
    assert struct.indices.equal(result.indices)


def test_a_non_leaf_becomes_a_leaf_and_inference_tensors_become_normal() -> None:
    copied = clone_tree(torch.ones(2, requires_grad=True) * 2)
    assert copied.is_leaf
    assert copied.requires_grad
    with torch.inference_mode():
        inference = torch.ones(3)[1:]
    assert not clone_tree(inference).is_inference()


def test_map_tensors_calls_once_per_tensor() -> None:
    tensor, calls = torch.ones(2), []
    mapped = map_tensors({"a": (tensor, 1), "b": [tensor]}, lambda t: calls.append(t) or "x")
    assert mapped == {"a": ("x", 1), "b": ["x"]}
    assert len(calls) == 1


def test_fills_depend_on_seed_and_path_and_nothing_else() -> None:
    tree = [spec(), spec(fill={"kind": "uniform"}), spec(fill={"kind": "normal", "seed": 5})]
    first, again, other = (decode(tree, seed=seed) for seed in (1, 1, 2))
    assert [a.equal(b) for a, b in zip(first, again, strict=True)] == [True] * 3
    assert [a.equal(b) for a, b in zip(first, other, strict=True)] == [False, False, True]
    assert decode([spec(), spec()], seed=1)[0].equal(first[0])
    assert not decode([spec(), spec()], seed=1)[1].equal(first[0])
    assert not decode(tree, seed=1, root="call 1")[0].equal(first[0])


def test_decoding_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    decode([spec(fill={"kind": kind}) for kind in ("normal", "uniform", "integers", "bool", "special")], seed=0)
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(
    ("fill", "dtype", "expected"),
    [
        ({"kind": "arange", "start": 1, "step": 2}, "int64", [1, 3, 5, 7]),
        ({"kind": "full", "value": "inf"}, "float32", [float("inf")] * 4),
        ({"kind": "values", "values": [1, "0x1.8p+1", "-inf", -0.5]}, "float64", [1.0, 3.0, -float("inf"), -0.5]),
        (
            {"kind": "values", "values": [[1, 2], 3, [0, "inf"], 0]},
            "complex64",
            [1 + 2j, 3, complex(0, float("inf")), 0],
        ),
        ({"kind": "values", "values": [1, 2, 0, 4]}, "float8_e4m3fn", [1.0, 2.0, 0.0, 4.0]),
        ({"kind": "raw", "base64": "AQIDBA=="}, "uint8", [1, 2, 3, 4]),
    ],
)
def test_fill(fill: dict[str, Any], dtype: str, expected: list[Any]) -> None:
    assert decode(spec(dtype=dtype, fill=fill), seed=0).tolist() == expected


def test_random_fills_keep_their_bounds() -> None:
    numbers = decode({"$": "tensor", "shape": [1000], "fill": {"kind": "uniform", "low": 2, "high": 3}}, seed=0)
    assert 2 <= numbers.min() < 2.1 < 2.9 < numbers.max() <= 3
    integers = decode(
        {"$": "tensor", "shape": [1000], "dtype": "int8", "fill": {"kind": "integers", "low": -3, "high": 4}}, seed=0
    )
    assert integers.unique().tolist() == [-3, -2, -1, 0, 1, 2, 3]
    normal = decode({"$": "tensor", "shape": [4000], "fill": {"kind": "normal", "mean": 5, "std": 2}}, seed=0)
    assert abs(normal.mean() - 5) < 0.2
    assert abs(normal.std() - 2) < 0.2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_special_fill_holds_every_kind_of_number(dtype: str) -> None:
    numbers = decode({"$": "tensor", "shape": [500], "dtype": dtype, "fill": {"kind": "special"}}, seed=0)
    real = torch.view_as_real(numbers) if numbers.is_complex() else numbers
    assert real.isnan().any()
    assert real.isposinf().any()
    assert real.isneginf().any()
    assert ((real == 0) & real.signbit()).any()
    assert ((real != 0) & (real.abs() < torch.finfo(real.dtype).smallest_normal)).any()
    finite = decode(
        {"$": "tensor", "shape": [500], "dtype": dtype, "fill": {"kind": "special", "finite": True}}, seed=0
    )
    assert finite.isfinite().all()


def test_values_are_in_logical_order_whatever_the_stride() -> None:
    fill = {"kind": "values", "values": [1, 2, 3, 4]}
    tensor = decode({"$": "tensor", "shape": [2, 2], "stride": [1, 3], "offset": 2, "fill": fill}, seed=0)
    assert tensor.tolist() == [[1, 2], [3, 4]]
    assert (tensor.stride(), tensor.storage_offset()) == ((1, 3), 2)


def test_a_call_shares_names_between_args_and_kwargs() -> None:
    call = Call(args=[spec(id="x", storage="s")], kwargs={"y": {"$": "same", "id": "x"}, "z": spec(storage="s")})
    (x,), kwargs = decode_call(call, seed=0)
    assert kwargs["y"] is x
    assert kwargs["z"].data_ptr() == x.data_ptr()
    assert decode_call(Call(args=[1]), seed=0) == ((1,), {})


BAD = {
    "unknown tag": ({"$": "pickle"}, "pickle"),
    "generator": ({"$": "generator"}, "Generator"),
    "negative size": (spec(shape=[-1]), "shape -1"),
    "size that is no integer": (spec(shape=[1.5]), "shape 1.5"),
    "shape that is no list": (spec(shape=3), "shape 3"),
    "no shape": ({"$": "tensor"}, "'shape'"),
    "stride of another rank": (spec(stride=[1, 1]), r"stride \[1, 1\]"),
    "negative stride": (spec(stride=[-1]), "stride -1"),
    "storage too small": (spec(storage_size=2), "storage_size 2"),
    "astronomic": (spec(shape=[2**40, 2**20]), "at most"),
    "unknown dtype": (spec(dtype="float33"), "float33"),
    "dtype that is a function": (spec(dtype="add"), "'add'"),
    "unknown field": (spec(strides=[1]), "strides"),
    "unknown fill": (spec(fill={"kind": "gaussian"}), "gaussian"),
    "unknown fill field": (spec(fill={"kind": "normal", "sigma": 1}), "sigma"),
    "normal integers": (spec(dtype="int64", fill={"kind": "normal"}), "int64"),
    "too few values": (spec(fill={"kind": "values", "values": [1]}), "1 values"),
    "value that is no number": (spec(fill={"kind": "values", "values": ["x", 1, 1, 1]}), "'x'"),
    "value out of range": (spec(dtype="uint8", fill={"kind": "values", "values": [300, 1, 1, 1]}), "uint8"),
    "raw data of another size": (spec(fill={"kind": "raw", "base64": "AAAA"}), "3 bytes"),
    "raw data that is not base64": (spec(fill={"kind": "raw", "base64": "?"}), "base64"),
    "bool that is neither": (spec(dtype="bool", fill={"kind": "raw", "base64": "AQIDBA=="}), "bool byte"),
    "requires_grad of integers": (spec(dtype="int64", requires_grad=True), "requires_grad"),
    "channels last of rank 1": (spec(memory_format="channels_last"), "memory_format"),
    "unknown id": ({"$": "same", "id": "y"}, "'y'"),
    "unknown device": (spec(device="gpu7"), "gpu7"),
    "id twice": ([spec(id="x"), spec(id="x")], "second time"),
    "sparse that does not fit": (
        {
            "$": "tensor",
            "layout": "sparse_coo",
            "shape": [2],
            "indices": {"$": "tensor", "shape": [1, 1], "dtype": "int64", "fill": {"kind": "full", "value": 9}},
            "values": {"$": "tensor", "shape": [1]},
        },
        "sparse tensor",
    ),
    "quantizer of floats": (spec(dtype="float32", quantizer={"scale": 1.0, "zero_point": 0}), "quantizer"),
    "unhashable key": ({"$": "dict", "items": [[[1], 2]]}, "key"),
    "range step 0": ({"$": "range", "args": [0, 1, 0]}, "step"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_its_path(name: str) -> None:
    tree, message = BAD[name]
    with pytest.raises(UsageError, match=message) as caught:
        decode({"x": tree}, seed=0)
    assert "['x']" in str(caught.value)


@pytest.mark.parametrize("value", [torch.add, object(), torch.Generator(), torch.nn.Linear(1, 1)])
def test_what_has_no_json_form_is_refused(value: Any) -> None:
    with pytest.raises(UsageError, match=r"\[0\]\['x'\]"):
        encode([{"x": value}])


def test_large_data_is_refused() -> None:
    with pytest.raises(UsageError, match="bytes of storage"):
        encode(torch.empty((65 << 20) // 4 + 1))
