"""What exporting a model costs, refimpl beside torch: `python -m refimpl.benchmarks.export [--rounds N] [--mode strict]`.

Models of `partition_models`, or with `--models module:function` those of a function that gives makers of (module, args, kwargs)
by name; the models suite is `suites.models.examples:examples`. Each round exports the same module with both peers, who takes
the lead changes from round to round. Milliseconds of the processor, medians over rounds without the first, which warms what is
kept for every program; the ratio is refimpl's time over torch's. The module is in eval mode, under no_grad; sizes are fixed, or
with `--dynamic` the first dimension of every tensor is Dim.AUTO.

Counterpart: torch/export/__init__.py export
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import pkgutil
import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from refimpl.benchmarks.partition_models import Model, own_models, transformers_models
from refimpl.export import Dim, export

MODES = {"non-strict": False, "strict": True}
Example = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]


@dataclass
class Peer:
    """One side: how it exports, and how long that took."""

    export: Callable[..., Any]
    auto: Any  # its own Dim.AUTO
    milliseconds: list[float] = field(default_factory=list)

    def measure(self, example: Example, *, strict: bool, dynamic: bool) -> None:
        module, args, kwargs = example
        shapes = first_dimension(self.auto, args, kwargs) if dynamic else None
        torch.compiler.reset()
        gc.collect()
        gc.disable()  # a full collection hits either
        try:
            started = time.process_time()
            self.export(module, args, kwargs, strict=strict, dynamic_shapes=shapes)
            self.milliseconds.append((time.process_time() - started) * 1e3)
        finally:
            gc.enable()

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds[1:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model in one mode. `error` where a peer does not export it; no times then."""

    mode: str
    model: str
    refimpl_ms: float = math.nan
    torch_ms: float = math.nan
    error: str = ""

    @property
    def ratio(self) -> float:
        return self.refimpl_ms / self.torch_ms


def first_dimension(auto: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Shapes for `dynamic_shapes`, in the order of forward's parameters: `auto` for dimension 0 of each tensor."""

    def dims(leaf: Any) -> Any:
        return {0: auto} if isinstance(leaf, torch.Tensor) and leaf.dim() else None

    shapes = [pytree.tree_map(dims, arg) for arg in args]
    return {name: pytree.tree_map(dims, value) for name, value in kwargs.items()} if not shapes else tuple(shapes)


def compared(name: str, make: Callable[[], Example], mode: str, *, rounds: int, dynamic: bool) -> Row:
    """Both peers on one model. An exception of a peer is its row's error: what is not exported has no time."""
    torch.manual_seed(0)
    example = make()
    example[0].eval()
    peers = {"refimpl": Peer(export, Dim.AUTO), "torch": Peer(torch.export.export, torch.export.Dim.AUTO)}
    with torch.no_grad():
        for number in range(rounds + 1):
            for side in sorted(peers, reverse=bool(number % 2)):
                try:
                    peers[side].measure(example, strict=MODES[mode], dynamic=dynamic)
                except Exception as error:
                    lines = str(error).splitlines() or [""]
                    return Row(mode=mode, model=name, error=f"{side}: {type(error).__name__}: {lines[0][:90]}")
    return Row(mode=mode, model=name, refimpl_ms=peers["refimpl"].median, torch_ms=peers["torch"].median)


def summary(rows: Sequence[Row], mode: str) -> str:
    """Totals over the models that both export."""
    measured = [row for row in rows if row.mode == mode and not row.error]
    if not measured:
        return f"{mode}: no model measured"
    total = sum(row.refimpl_ms for row in measured) / sum(row.torch_ms for row in measured)
    mean = math.exp(statistics.fmean(math.log(row.ratio) for row in measured))
    worst = max(measured, key=lambda row: row.ratio)
    return (
        f"{mode}: {len(measured)} models: {total:.2f} in total, {mean:.2f} geometric mean, "
        f"{worst.ratio:.2f} at most ({worst.model})"
    )


def _own(*, with_transformers: bool) -> dict[str, Callable[[], Example]]:
    makers = {**own_models(), **(transformers_models() if with_transformers else {})}

    def example(make: Callable[[], Model]) -> Example:
        model = make()
        return model.module, model.inputs, {}

    return {name: (lambda make=make: example(make)) for name, make in makers.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mode", choices=(*MODES, "both"), default="both")
    parser.add_argument("--models", default="", help="module:function of other models")
    parser.add_argument("--own", action="store_true", help="without transformers' architectures")
    parser.add_argument("--only", default="", help="models whose names contain this")
    parser.add_argument("--dynamic", action="store_true", help="the first dimension of every tensor varies")
    parser.add_argument("--csv", type=Path, help="write the rows there too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    makers = pkgutil.resolve_name(options.models)() if options.models else _own(with_transformers=not options.own)
    rows: list[Row] = []
    print(f"{'mode':10} {'model':32} {'refimpl ms':>10} {'torch ms':>9} {'ratio':>6}")
    for name in filter(lambda name: options.only in name, makers):
        for mode in MODES if options.mode == "both" else (options.mode,):
            row = compared(name, makers[name], mode, rounds=options.rounds, dynamic=options.dynamic)
            rows.append(row)
            shown = row.error or f"{row.refimpl_ms:10.1f} {row.torch_ms:9.1f} {row.ratio:6.2f}"
            print(f"{mode:10} {name:32} {shown}", flush=True)
    for mode in MODES if options.mode == "both" else (options.mode,):
        print(summary(rows, mode))
    if options.csv is not None:
        lines = ["mode,model,refimpl_ms,torch_ms,ratio,error"]
        for row in rows:
            error = row.error.replace('"', "'")
            lines.append(
                f'{row.mode},{row.model},,,,"{error}"'
                if error
                else f"{row.mode},{row.model},{row.refimpl_ms:.2f},{row.torch_ms:.2f},{row.ratio:.3f},"
            )
        options.csv.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
