"""What AOT autograd costs, refimpl beside torch: `python -m refimpl.benchmarks.aot [--repeats N] [--calls N]`.

Compile time: `aot_module_simplified` with compilers that return the graph as it is, default and min-cut partitions, both in turn.
Call time: microseconds per call of what was compiled, beyond what the graph alone takes is the wrapper: programs without
mutation, with mutation, with outputs that are aliases, forward only and forward + backward. Medians, and torch's over refimpl's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._functorch import aot_autograd as _torch_aot
from torch._functorch.partitioners import default_partition as torch_default
from torch._functorch.partitioners import min_cut_rematerialization_partition as torch_min_cut

from refimpl.aot.aot_function import aot_function, aot_module_simplified
from refimpl.aot.partition import default_partition, min_cut_rematerialization_partition
from refimpl.benchmarks.make_fx import ResidualBlock

# torch's annotations are narrower than what it takes.
torch_aot_function: Callable[..., Any] = getattr(_torch_aot, "aot_function")
torch_aot_module_simplified: Callable[..., Any] = getattr(_torch_aot, "aot_module_simplified")


class _Tuple(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any) -> tuple[Any, ...]:
        return (self.inner(*args),)


def modules() -> dict[str, tuple[torch.nn.Module, torch.Tensor]]:
    """Name -> module and example input."""
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    image, sentence = torch.randn(2, 8, 10, 10), torch.randn(2, 6, 32)
    return {
        "residual block": (_Tuple(ResidualBlock()), image),
        "transformer layer": (_Tuple(layer), sentence),
        "12 transformer layers": (_Tuple(encoder), sentence),
    }


def _as_it_is(graph_module: torch.fx.GraphModule, example_inputs: Any) -> torch.fx.GraphModule:
    return graph_module


def compile_milliseconds(module: torch.nn.Module, x: torch.Tensor, partition: str, repeats: int) -> tuple[float, float]:
    """Medians of refimpl and torch. The first round warms caches and is not counted."""
    peers: dict[str, Callable[[], Any]] = {
        "refimpl": lambda: aot_module_simplified(
            module, (x,), _as_it_is,
            partition_fn=default_partition if partition == "default" else min_cut_rematerialization_partition,
        ),
        "torch": lambda: torch_aot_module_simplified(
            module, (x,), _as_it_is, partition_fn=torch_default if partition == "default" else torch_min_cut
        ),
    }  # fmt: skip
    times: dict[str, list[float]] = {name: [] for name in peers}
    for repeat in range(repeats + 1):
        for name, peer in peers.items():
            started = time.perf_counter()
            peer()
            if repeat:
                times[name].append((time.perf_counter() - started) * 1e3)
    return statistics.median(times["refimpl"]), statistics.median(times["torch"])


def _plain(x: torch.Tensor, y: torch.Tensor) -> Any:
    return x * y


def _mutating(x: torch.Tensor, y: torch.Tensor) -> Any:
    x.mul_(2)
    return x * y


def _aliasing(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = x * y
    return x.view(-1), z.view(-1), z.t()


def call_microseconds(
    program: Callable[..., Any], *, requires_grad: bool, has_backward: bool, calls: int, rounds: int
) -> tuple[float, float, float]:
    """Medians over rounds of the mean of `calls` calls: eager, refimpl, torch."""
    peers = {
        "eager": program,
        "refimpl": aot_function(program, _as_it_is),
        "torch": torch_aot_function(program, _as_it_is),
    }
    times: dict[str, list[float]] = {name: [] for name in peers}
    for round_number in range(rounds + 1):
        for name, peer in peers.items():
            x, y = (torch.randn(4, 4, requires_grad=requires_grad) for _ in range(2))
            started = time.perf_counter()
            for _ in range(calls):
                argument = x.clone() if requires_grad else x  # a leaf could not be written to
                out = peer(argument, y)
                if has_backward:
                    (out if isinstance(out, torch.Tensor) else out[-1]).sum().backward()
            if round_number:
                times[name].append((time.perf_counter() - started) * 1e6 / calls)
    eager, ours, theirs = (statistics.median(times[name]) for name in peers)
    return eager, ours, theirs


def main() -> None:
    """Entry point of `python -m`."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--calls", type=int, default=300)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    print(f"{'compile':24} {'partition':10} {'refimpl ms':>10} {'torch ms':>9} {'ratio':>6}")
    for name, (module, x) in modules().items():
        for partition in ("default", "min_cut"):
            ours, theirs = compile_milliseconds(module, x, partition, arguments.repeats)
            print(f"{name:24} {partition:10} {ours:10.1f} {theirs:9.1f} {theirs / ours:6.2f}", flush=True)
    print(f"\n{'call':24} {'gradients':18} {'eager us':>9} {'refimpl us':>10} {'torch us':>9} {'ratio':>6}")
    for program in (_plain, _mutating, _aliasing):
        for label, requires_grad, has_backward in (
            ("none", False, False), ("forward", True, False), ("forward, backward", True, True),
        ):  # fmt: skip
            eager, ours, theirs = call_microseconds(
                program,
                requires_grad=requires_grad,
                has_backward=has_backward,
                calls=arguments.calls,
                rounds=arguments.repeats,
            )
            print(
                f"{program.__name__[1:]:24} {label:18} {eager:9.1f} {ours:10.1f} {theirs:9.1f} {theirs / ours:6.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
