"""Launches as files: what a worker process is given, and what it gives back. No pickle: JSON and safetensors.

A tensor travels as a place in a storage, so that views, aliases and what lies between elements arrive as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from refimpl.codegen.emulator import KernelError
from refimpl.codegen.kernel import Kernel, Parameter


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: see Level.launch."""

    kernel: Kernel
    grid: tuple[int, ...]
    arguments: Sequence[torch.Tensor | int | float]
    constants: Mapping[str, Any]


def kernel_to_json(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name, "source": kernel.source, "parameters": [[p.name, p.type] for p in kernel.parameters],
        "num_warps": kernel.num_warps, "num_stages": kernel.num_stages,
    }  # fmt: skip


def kernel_from_json(data: Mapping[str, Any]) -> Kernel:
    parameters = tuple(Parameter(name, kind) for name, kind in data["parameters"])
    return Kernel(data["name"], data["source"], parameters, data["num_warps"], data["num_stages"])


@dataclass(frozen=True, slots=True)
class _View:
    storage: int
    dtype: str
    shape: list[int]
    stride: list[int]
    offset: int


def constant_to_json(kernel: str, name: str, value: Any) -> Any:
    """A constant as JSON: numbers, strings, None, tuples of them; dtypes by name. Raises KernelError for others."""
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, float):
        return {"float": value.hex()}
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, (tuple, list)):
        return {"tuple": [constant_to_json(kernel, name, item) for item in value]}
    raise KernelError(
        kernel, seen=f"constant {name!r} of {type(value).__name__}",
        expected="a number, a string, None, a torch.dtype or a tuple of them", do="pass such a value",
    )  # fmt: skip


def constant_from_json(value: Any, make_type: Any) -> Any:
    if isinstance(value, dict):
        if "dtype" in value:
            return make_type(value["dtype"])
        if "float" in value:
            return float.fromhex(value["float"])
        return tuple(constant_from_json(item, make_type) for item in value["tuple"])
    return value


def write_launches(folder: Path, launches: Sequence[Launch]) -> list[torch.UntypedStorage]:
    """Writes the launches to files. Returns the storages in the order in which `read_results` restores them."""
    storages: dict[int, tuple[int, torch.UntypedStorage]] = {}
    items = []
    for launch in launches:
        arguments: list[Any] = []
        for argument in launch.arguments:
            if not isinstance(argument, torch.Tensor):
                arguments.append(constant_to_json(launch.kernel.name, "argument", argument))
                continue
            storage = argument.untyped_storage()
            index, _ = storages.setdefault(storage.data_ptr() or id(storage), (len(storages), storage))
            dtype = str(argument.dtype).removeprefix("torch.")
            view = _View(index, dtype, list(argument.shape), list(argument.stride()), int(argument.storage_offset()))
            arguments.append({"view": asdict(view)})
        constants = {n: constant_to_json(launch.kernel.name, n, v) for n, v in launch.constants.items()}
        items.append(
            {
                "kernel": kernel_to_json(launch.kernel),
                "grid": list(launch.grid),
                "arguments": arguments,
                "constants": constants,
            }
        )
    (folder / "launches.json").write_text(json.dumps(items))
    ordered = [storage for _, storage in storages.values()]
    save_file({str(i): _bytes_of(storage) for i, storage in enumerate(ordered)}, folder / "before.safetensors")
    return ordered


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8).set_(storage)


def read_launches(folder: Path, make_type: Any) -> tuple[list[Launch], dict[str, torch.Tensor]]:
    """The launches, and the bytes of each storage of their tensors."""
    storages = load_file(folder / "before.safetensors")
    launches = []
    for item in json.loads((folder / "launches.json").read_text()):
        arguments = [
            _argument(argument, storages)
            if isinstance(argument, dict) and "view" in argument
            else constant_from_json(argument, make_type)
            for argument in item["arguments"]
        ]
        constants = {name: constant_from_json(value, make_type) for name, value in item["constants"].items()}
        launches.append(Launch(kernel_from_json(item["kernel"]), tuple(item["grid"]), arguments, constants))
    return launches, storages


def _argument(data: Mapping[str, Any], storages: Mapping[str, torch.Tensor]) -> torch.Tensor:
    view = _View(**data["view"])
    storage = storages[str(view.storage)].untyped_storage()
    return torch.empty(0, dtype=getattr(torch, view.dtype)).set_(storage, view.offset, view.shape, view.stride)


def write_results(
    folder: Path, storages: Mapping[str, torch.Tensor], errors: Sequence[Mapping[str, Any] | None]
) -> None:
    save_file(dict(storages), folder / "after.safetensors")
    (folder / "errors.json").write_text(json.dumps(list(errors)))


def read_results(folder: Path, storages: Sequence[torch.UntypedStorage]) -> list[dict[str, Any] | None]:
    """Copies what the launches wrote back into the storages. Returns each launch's error."""
    after = load_file(folder / "after.safetensors")
    for index, storage in enumerate(storages):
        _bytes_of(storage).copy_(after[str(index)])
    return json.loads((folder / "errors.json").read_text())
