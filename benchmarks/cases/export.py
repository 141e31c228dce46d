"""Time to export a model, refimpl and torch."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from benchmarks.harness import Case, Side, benchmark
from benchmarks.models import Model, all_models
from refimpl.export import Dim
from refimpl.export import export as our_export

Example = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]
PEERS: dict[str, tuple[Callable[..., Any], Any]] = {
    "refimpl": (our_export, Dim.AUTO), "torch": (torch.export.export, torch.export.Dim.AUTO)
}  # fmt: skip


@benchmark(repeat=5)
def export(models: str = "", own: bool = False, dynamic: bool = False) -> Iterator[Case]:
    """Export of a module in eval mode; `dynamic`: the first dimension of every tensor is Dim.AUTO; `models`: module:function.

    The function gives makers of (module, args, kwargs) by name: `suites.models.examples:examples` is the models suite.
    """
    makers = pkgutil.resolve_name(models)() if models else _examples(own=own)
    for name, make in makers.items():
        for mode in ("non-strict", "strict"):
            sides = partial(_exports, make, strict=mode == "strict", dynamic=dynamic)
            yield Case(f"{mode}, {name}", sides, clock="processor", before=torch.compiler.reset)


def _exports(make: Callable[[], Example], *, strict: bool, dynamic: bool) -> dict[str, Side]:
    module, args, kwargs = make()
    module.eval()

    def run(peer: Callable[..., Any], shapes: Any) -> None:
        with torch.no_grad():
            peer(module, args, kwargs, strict=strict, dynamic_shapes=shapes)

    return {
        side: partial(run, peer, first_dimension(auto, args, kwargs) if dynamic else None)
        for side, (peer, auto) in PEERS.items()
    }


def first_dimension(auto: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Shapes for `dynamic_shapes`, in the order of forward's parameters: `auto` for dimension 0 of each tensor."""

    def dims(leaf: Any) -> Any:
        return {0: auto} if isinstance(leaf, torch.Tensor) and leaf.dim() else None

    shapes = [pytree.tree_map(dims, arg) for arg in args]
    return {name: pytree.tree_map(dims, value) for name, value in kwargs.items()} if not shapes else tuple(shapes)


def _examples(*, own: bool) -> dict[str, Callable[[], Example]]:
    def example(make: Callable[[], Model]) -> Example:
        model = make()
        return model.module, model.inputs, {}

    return {name: partial(example, make) for name, make in all_models(own=own).items()}
