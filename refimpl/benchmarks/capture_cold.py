"""What the first capture of a model costs, refimpl beside torch: `python -m refimpl.benchmarks.capture_cold [--rounds N]`.

Models of `partition_models`: nets of our own, and transformers' architectures in small. Each round captures a fresh wrapper of
the same model after a reset, both peers in turn, with a backend that gives the graph back; the call of the captured model is
part of both. Milliseconds of the processor, medians over rounds without the first, which warms what is kept for every program
(normalised code, torch's lazy imports); graphs and breaks of each; the ratio is refimpl's time over that of torch.
"""

from __future__ import annotations

import argparse
import gc
import logging
import math
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from refimpl.benchmarks.partition_models import Model, own_models, transformers_models
from refimpl.capture.captured import CaptureOptions
from refimpl.capture.compile import with_options


@dataclass
class Peer:
    """One side: how a module is captured and called, and what was seen of it."""

    call: Callable[[Model], int]
    milliseconds: list[float] = field(default_factory=list)
    graphs: int = 0

    def measure(self, model: Model) -> None:
        gc.collect()
        gc.disable()  # a full collection hits either
        try:
            started = time.process_time()
            self.graphs = self.call(model)
            self.milliseconds.append((time.process_time() - started) * 1e3)
        finally:
            gc.enable()

    @property
    def median(self) -> float:
        return statistics.median(self.milliseconds[1:])


class Counting:
    """A backend that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph_module: torch.fx.GraphModule, example_inputs: Any) -> Any:
        self.count += 1
        return graph_module.forward


def _captured(model: Model) -> int:
    backend = Counting()
    with_options(model.module, CaptureOptions(backend=backend))(*model.inputs)
    return backend.count


def _compiled_by_torch(model: Model) -> int:
    backend = Counting()
    torch.compiler.reset()
    compiled: Any = torch.compile(model.module, backend=backend)
    compiled(*model.inputs)
    return backend.count


def main() -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--own", action="store_true", help="without transformers' architectures")
    parser.add_argument("--only", default="", help="models whose names contain this")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    makers = own_models() if arguments.own else {**own_models(), **transformers_models()}
    print(f"{'model':28} {'refimpl ms':>10} {'torch ms':>9} {'ratio':>6}   graphs: {'refimpl':>7} {'torch':>5}")
    ratios: list[float] = []
    totals = [0.0, 0.0]
    for name in filter(lambda name: arguments.only in name, makers):
        torch.manual_seed(0)
        made = makers[name]()
        model = Model(made.module.eval(), made.inputs)
        ours, theirs = Peer(_captured), Peer(_compiled_by_torch)
        try:
            with torch.no_grad():
                for _ in range(arguments.rounds + 1):
                    ours.measure(model)
                    theirs.measure(model)
        except Exception as error:
            print(f"{name:28} {type(error).__name__}: {str(error).splitlines()[0][:90]}", flush=True)
            continue
        ratios.append(ours.median / theirs.median)
        totals = [totals[0] + ours.median, totals[1] + theirs.median]
        print(
            f"{name:28} {ours.median:10.1f} {theirs.median:9.1f} {ratios[-1]:6.2f}   {'':7} {ours.graphs:7} {theirs.graphs:5}",
            flush=True,
        )
    mean = math.exp(statistics.fmean(math.log(ratio) for ratio in ratios))
    print(
        f"{len(ratios)} models: {totals[0] / totals[1]:.2f} in total, {mean:.2f} geometric mean, {max(ratios):.2f} at most"
    )


if __name__ == "__main__":
    main()
