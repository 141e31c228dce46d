"""Makes the list of inputs of one entry, dtype and kind, the same in every process.

Upstream's generators draw from the global RNG, and sample 3 exists only after 0, 1 and 2 were drawn. So the whole list is made at
once with its own seed, and kept while neighbouring cases need it. The process's RNG is restored.
"""

from __future__ import annotations

import hashlib
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from oracle.errors import InternalError
from suites.opinfo.database import OpInfo, SampleInput, entry

# Two lists: forward and backward, or samples and error inputs, of the current entry. The largest list of torch 2.13 in float32
# (reference inputs of grid_sampler_3d) has 165 MB, nearly all others less than 1 MB.
KEPT_LISTS = 2


class SampleGenerationError(Exception):
    """Upstream's generator raised, or yielded nothing, so the program cannot be built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleKey:
    """Identifies a list. `source` is "sample", "reference" or "error"."""

    op: str
    dtype: str
    source: str
    device: str
    requires_grad: bool

    @property
    def seed(self) -> int:
        """Independent of device and direction, so that both see the same values."""
        text = f"{self.op}/{self.dtype}/{self.source}"
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SampleList:
    """The samples that the generator yielded before it ended or raised."""

    samples: tuple[SampleInput, ...]
    failure: Exception | None
    versions: tuple[tuple[int, ...], ...]  # version counters of each sample's tensors, to notice writes

    def is_intact(self, index: int) -> bool:
        return _versions(self.samples[index]) == self.versions[index]


_kept: OrderedDict[SampleKey, SampleList] = OrderedDict()


def sample_list(key: SampleKey) -> SampleList:
    """The list for the key, made now or earlier. All callers share its tensors: clone before use."""
    found = _kept.get(key)
    if found is None:
        found = _generate(key)
        _kept[key] = found
        while len(_kept) > KEPT_LISTS:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return found


def sample(key: SampleKey, index: int) -> SampleInput:
    """One sample. Raises SampleGenerationError if the generator did not get that far, IndexError never."""
    found = sample_list(key)
    if index < len(found.samples) and not found.is_intact(index):
        # A caller's in-place write must not change the input of the next case.
        del _kept[key]
        found = sample_list(key)
    if index < len(found.samples):
        return found.samples[index]
    where = f"{key.source} {index} of {key.op} in {key.dtype} on {key.device}"
    if found.failure is not None:
        raise SampleGenerationError(f"{where}: upstream's generator raised {found.failure!r}") from found.failure
    raise SampleGenerationError(
        f"{where}: upstream's generator yields {len(found.samples)} under torch {torch.__version__}"
    )


def _generate(key: SampleKey) -> SampleList:
    info = entry(key.op)
    device = torch.device(key.device)
    samples: list[SampleInput] = []
    failure: Exception | None = None
    with isolated_rng(key.seed, device), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how upstream makes its inputs, which no user can change
        try:
            with _FilledEmpty() if key.source == "error" else nullcontext():
                samples.extend(_yielded(info, key))
        except Exception as error:  # the program that needs the sample reports the error
            failure = error
    if key.op in REPAIRS and key.source != "error":
        REPAIRS[key.op](samples)
    return SampleList(samples=tuple(samples), failure=failure, versions=tuple(map(_versions, samples)))


def _yielded(info: OpInfo, key: SampleKey) -> Iterable[SampleInput]:
    dtype = getattr(torch, key.dtype)
    device = key.device  # as text: some of upstream's generators call its string methods
    # Not through info.sample_inputs: it reseeds before every sample, which gives all of them the same numbers, searches
    # the whole stack for a test function, and hides samples when an environment variable says so.
    if key.source == "error":
        errors = info.error_inputs_func(info, device) if info.error_inputs_func is not None else ()
        return (error.sample_input for error in errors)
    if key.source not in ("sample", "reference"):
        raise InternalError(f"source={key.source!r}")
    has_references = key.source == "reference" and info.reference_inputs_func is not None
    generator = info.reference_inputs_func if has_references else info.sample_inputs_func
    return generator(info, device, dtype, key.requires_grad)


class _FilledEmpty(TorchDispatchMode):
    """Fills tensors that upstream leaves uninitialised (in error inputs only), so that all processes get the same inputs."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name.startswith("aten::empty") and result.layout is torch.strided and not result.is_meta:
            result.fill_(1)
        return result


def _alternate_indexing(samples: list[SampleInput]) -> None:
    """Upstream iterates over the set {"xy", "ij"}: which comes first changes from process to process."""
    for index, one in enumerate(samples):
        one.kwargs["indexing"] = ("ij", "xy")[index % 2]


# The changes that make upstream's lists the same in every process; a test generates them with two hash seeds.
REPAIRS: Mapping[str, Callable[[list[SampleInput]], None]] = MappingProxyType(
    {"meshgrid.variadic_tensors": _alternate_indexing, "meshgrid.list_of_tensors": _alternate_indexing}
)


def tensors_of(one: SampleInput) -> list[torch.Tensor]:
    """All tensors of the sample, in the order of its arguments."""
    leaves = pytree.tree_leaves((one.input, one.args, one.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _versions(one: SampleInput) -> tuple[int, ...]:
    return tuple(tensor._version for tensor in tensors_of(one))


@contextmanager
def isolated_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Seed Python's, NumPy's and torch's generators, and put their old states back at the end."""
    python_state: Any = random.getstate()
    numpy_state = np.random.get_state()
    accelerators = [device.index or 0] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=accelerators):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
