"""Observed tensors that are equal bit by bit share one copy, and no others do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from oracle.observe.copies import Copies
from oracle.observe.outcome import AliasGraph, CallObservation, Leaf
from oracle.observe.shelf import Shelf, drop_pages
from oracle.program.clone import bytes_of

LARGE = torch.arange(1 << 14, dtype=torch.float32).reshape(128, 128)
EMPTY = CallObservation(
    structure="",
    outputs=(),
    inputs_after=(),
    gradients=(),
    module_state=(),
    aliases=AliasGraph(),
    rng_digest="",
    seconds=0,
)


def with_one(change: str) -> torch.Tensor:
    other = LARGE.clone()
    if change == "the sign of a zero":
        other[0, 0] = -0.0
    elif change == "one element":
        other[127, 127] += 1
    elif change == "strides":
        other = other.t().contiguous().t()
    elif change == "dtype":
        other = other.double()
    return other


def copy_of(tensor: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    seen = replace(EMPTY, gradients=(Leaf(path="grad", value=like, facts=None),))
    return Copies([seen]).of(tensor, 0, "gradients", "grad")


@pytest.mark.parametrize("change", ["the sign of a zero", "one element", "strides", "dtype"])
def test_what_differs_is_copied(change: str) -> None:
    tensor = with_one(change)
    copied = copy_of(tensor, LARGE)
    assert copied is not LARGE
    assert copied is not tensor
    assert copied.equal(tensor)
    assert copied.stride() == tensor.stride()
    assert copied.dtype == tensor.dtype


def test_equal_bits_share_a_copy_nan_included() -> None:
    nan = LARGE.clone()
    nan[3, 4] = torch.nan
    for tensor in (LARGE, nan, LARGE.t(), LARGE.bfloat16(), LARGE.long()):
        assert copy_of(tensor.clone(), tensor) is tensor


def test_a_later_call_shares_the_copy_of_an_earlier_one_until_the_tensor_changes() -> None:
    copies, state = Copies(()), LARGE.clone()
    seen = [copies.of(state, call, "module_state", "weight") for call in range(2)]
    state.add_(1)
    changed = copies.of(state, 2, "module_state", "weight")
    assert seen[0] is seen[1]
    assert seen[0] is not state
    assert seen[0].equal(LARGE)
    assert changed.equal(LARGE + 1)


def test_what_has_no_bits_or_strides_is_copied() -> None:
    sparse = LARGE.to_sparse_csr()
    for tensor, like in ((LARGE.to("meta"), LARGE.to("meta")), (LARGE, sparse), (sparse, LARGE), (sparse, sparse)):
        copied = copy_of(tensor, like)
        assert copied is not like
        assert (copied.layout, copied.device) == (tensor.layout, tensor.device)


class _Guarded(torch.Tensor):
    """Answers no question but the two that a copy asks."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.Tensor.detach, torch.Tensor.clone):
            raise TypeError(f"{func} of a guarded tensor")
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_subclass_is_asked_for_nothing_but_its_copy() -> None:
    guarded = LARGE.as_subclass(_Guarded)
    assert type(copy_of(guarded, guarded)) is _Guarded


def test_a_parameter_is_copied_without_its_history() -> None:
    parameter = torch.nn.Parameter(LARGE.clone())
    copied = copy_of(parameter, LARGE)
    assert copied is LARGE
    assert type(copied) is torch.Tensor
    assert not copied.requires_grad


def file_at(address: int) -> bool:
    """Whether the process has mapped a file at this address."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, inode, *_ = line.split()
        low, high = (int(text, 16) for text in addresses.split("-"))
        if low <= address < high:
            return inode != "0"
    return False


def is_in_file(tensor: torch.Tensor) -> bool:
    return file_at(tensor.data_ptr())


@pytest.mark.parametrize("has_room", [True, False])
def test_a_large_copy_is_in_a_file_if_there_is_room(has_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [
        torch.randn(700, 500).t(),
        torch.randn(1 << 19).to(torch.float8_e4m3fn).repeat(3),
        torch.randn(5_000_000),  # more than a file for several tensors holds
        torch.randn(1 << 18),
    ]
    if not has_room:
        monkeypatch.setattr("oracle.observe.shelf.os.pwrite", _no_room)
    shelf = Shelf()
    copies = [shelf.copy(tensor) for tensor in tensors]
    before = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.zero_()
    drop_pages()
    for copied, held in zip(copies, before, strict=True):
        assert copied.stride() == held.stride()
        assert copied.dtype == held.dtype
        assert torch.equal(bytes_of(copied), bytes_of(held))
        assert is_in_file(copied) is has_room


def _no_room(*_: object) -> int:
    raise OSError(28, "No space left on device")


def test_the_file_of_a_copy_ends_with_its_last_tensor() -> None:
    copied = Shelf().copy(torch.randn(1 << 18))
    view = copied[5:]
    held = view.clone()
    at = copied.data_ptr()
    del copied
    drop_pages()
    assert torch.equal(view, held)
    assert file_at(at)
    del view
    assert not file_at(at)
