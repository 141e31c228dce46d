"""Saved calls: the arguments and the module's state of one call as files, without pickle.

A folder has three files: `call.json` (the call, the verdict, the layout of every tensor), `tensors.safetensors` (the storages, as
bytes, so that strides and aliases survive) and `report.txt` (the verdict as text). `save_call` writes it, `load_call` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from oracle.errors import UsageError
from oracle.program.clone import has_plain_storage, map_tensors
from oracle.program.encode import encode
from oracle.program.inputs import decode

FORMAT_VERSION = 1
_CALL, _TENSORS, _REPORT = "call.json", "tensors.safetensors", "report.txt"
_MARK = "$tensor"  # key of the object that stands for a tensor in the tree of arguments
_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCall:
    """One call as it was saved."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    state: Mapping[str, torch.Tensor]  # parameters and buffers by name; {} for a function
    training: Mapping[str, bool]  # by name of the submodule; "" is the module itself
    facts: Mapping[str, Any]  # the other fields of call.json: "call", "subject", "verdict", "seed", ...

    def restore(self, module: torch.nn.Module) -> None:
        """Give a module of the same architecture the saved parameters, buffers and modes.

        Raises UsageError if it lacks one of them, or has it with another shape.
        """
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, value in self.state.items():
            if name not in own or own[name].shape != value.shape:
                there = f"of shape {tuple(own[name].shape)}" if name in own else "missing"
                raise UsageError(
                    seen=f"{name} is {there} in {type(module).__name__}, but has shape {tuple(value.shape)} in the saved call",
                    expected="a module of the architecture that was saved", do="build it with the same arguments",
                )  # fmt: skip
            with torch.no_grad():
                own[name].copy_(value)
        for name, child in module.named_modules():
            child.training = self.training.get(name, child.training)


def save_call(
    folder: Path, *, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], report: str,
    facts: Mapping[str, Any],
) -> None:  # fmt: skip
    """Write the folder. `facts` are further JSON fields.

    Raises UsageError if the folder holds a call already, or for a parameter or buffer that has no plain storage. Arguments that
    have no JSON form are left out, and `call.json` says so.
    """
    if (folder / _CALL).exists():
        raise UsageError(
            seen=f"{folder} has a saved call",
            expected="a folder without one",
            do="name another folder, or move that one",
        )
    storages = _StorageWriter()
    is_module = isinstance(target, torch.nn.Module)
    state = {**dict(target.named_parameters()), **dict(target.named_buffers())} if is_module else {}
    data: dict[str, Any] = {
        "format": FORMAT_VERSION,
        **facts,
        "torch": torch.__version__,
        "target": type(target).__name__ if is_module else getattr(target, "__qualname__", type(target).__name__),
        "training": {name: child.training for name, child in target.named_modules()} if is_module else {},
        "state": {name: storages.record(tensor) for name, tensor in state.items()},
    }
    try:
        data["arguments"] = encode(map_tensors([list(args), kwargs], lambda tensor: {_MARK: storages.record(tensor)}))
    except UsageError as error:
        data["arguments"], data["arguments_left_out"] = None, error.seen
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(storages.found, folder / _TENSORS)
    (folder / _REPORT).write_text(report + "\n", encoding="utf-8")
    (folder / _CALL).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def load_call(folder: str | Path, *, device: str | None = None) -> SavedCall:
    """Read a folder that `save_call` wrote. `device` replaces the tensors' devices.

    Raises UsageError if it is none, or if the arguments were left out.
    """
    folder = Path(folder)
    try:
        data = json.loads((folder / _CALL).read_text(encoding="utf-8"))
        stored = safetensors.torch.load_file(folder / _TENSORS)
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise UsageError(
            seen=f"{folder}: {error}",
            expected=f"a folder with {_CALL} and {_TENSORS}",
            do="name what save_to= has made",
        ) from error
    if data.get("format") != FORMAT_VERSION or data.get("arguments") is None:
        raise UsageError(
            seen=f"{folder}: {data.get('arguments_left_out') or 'format ' + repr(data.get('format'))}",
            expected=f"format {FORMAT_VERSION}, with arguments", do="make the arguments anew, or save again",
        )  # fmt: skip
    storages = _StorageReader(stored, device)
    args, kwargs = _with_tensors(decode(data["arguments"], seed=0), storages.tensor)
    state = {name: storages.tensor(record) for name, record in data["state"].items()}
    rest = {key: value for key, value in data.items() if key not in ("arguments", "state", "training", "format")}
    return SavedCall(args=tuple(args), kwargs=kwargs, state=state, training=data["training"], facts=rest)


class _StorageWriter:
    """Storages by name, each once. Mutable; holds copies on the CPU."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}
        self._names: dict[int, str] = {}

    def record(self, tensor: torch.Tensor) -> dict[str, Any]:
        """The tensor as JSON. Raises UsageError for one that is not plain strided memory."""
        if type(tensor) not in _PLAIN or not has_plain_storage(tensor):
            raise UsageError(
                seen=f"a {type(tensor).__qualname__} of layout {tensor.layout}", expected="a plain strided tensor",
                do="make it in the program",
            )  # fmt: skip
        storage = tensor.untyped_storage()
        name = self._names.setdefault(storage._cdata, f"s{len(self._names)}")
        if name not in self.found:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            self.found[name] = flat.cpu().clone()
        return {
            "storage": name,
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": str(tensor.device),
            "shape": list(tensor.shape),
            "stride": list(tensor.stride()),
            "offset": tensor.storage_offset(),
            "requires_grad": tensor.requires_grad,
            "conj": tensor.is_conj(),
            "neg": tensor.is_neg(),
        }


class _StorageReader:
    """Tensors of saved records; those of one storage share it."""

    def __init__(self, stored: Mapping[str, torch.Tensor], device: str | None) -> None:
        self._stored = stored
        self._device = device
        self._storages: dict[str, torch.UntypedStorage] = {}

    def tensor(self, record: Mapping[str, Any]) -> torch.Tensor:
        name, device = record["storage"], self._device or record["device"]
        if name not in self._storages:
            self._storages[name] = self._stored[name].clone().to(device).untyped_storage()
        dtype = getattr(torch, record["dtype"])
        result = torch.empty(0, dtype=dtype, device=device)
        result.set_(self._storages[name], record["offset"], record["shape"], record["stride"])
        result = result.conj() if record["conj"] else result
        result = torch._neg_view(result) if record["neg"] else result
        return result.requires_grad_(record["requires_grad"])


def _with_tensors(tree: Any, make: Callable[[Mapping[str, Any]], torch.Tensor]) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {_MARK}:
            return make(tree[_MARK])
        return {key: _with_tensors(item, make) for key, item in tree.items()}
    if type(tree) in (list, tuple):
        return type(tree)(_with_tensors(item, make) for item in tree)
    return tree
