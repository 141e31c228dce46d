"""Cost of a check of a large model: `python -m benchmarks.measurements.large_models [--sizes 1,4,25] [--only NAME] [--csv FILE]`.

Models of about 1, 4 or 25 million parameters, in training (float32) and in eval (bfloat16), each checked in a process of its
own, on one thread, with the three calls of `oracle.check`. Columns: millions of parameters; the verdict; CPU seconds of the
check (`cpu_s`), of eager's plan once (`eager_s`), of it in float64 (`fp64_s`), of the subject with its compile (`subject_s`),
and of the runs under noise (`noise_s`); `ratio`: the first by the sum of the three that follow it; the process's peak memory
beyond what it had with the model made, in MB (`peak_mb`), and by the size of the parameters in float64 (`memory_ratio`).
"""

from __future__ import annotations

import itertools
import resource
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from typing import Any, Final

import torch
from torch import nn

from benchmarks.measurements.frame import options_of, shown
from oracle.case import CaseOptions, EagerState, judge_subject, observe_widened
from oracle.checking import chosen_subjects, live_program

_Made = tuple[nn.Module, torch.Tensor]
_SUBJECTS: Final = ("aot_eager", "inductor")
_NOISE: Final = ("noise", "loud noise")


class _Block(nn.Module):
    """An embedding, one transformer block, and the logarithm of the sum of all words' scores."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.block(self.embedding(ids))).logsumexp(-1)


class _Residual(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        stride = 1 if before == after else 2
        self.first, self.second = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.Conv2d(after, after, 3, 1, 1)
        self.norm, self.norm_2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm_2(self.second(torch.relu(self.norm(self.first(x))))) + self.shortcut(x))


class _Recurrent(nn.Module):
    """Two layers of an LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.LSTM(width, width, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)[0]


def _mlp(width: int) -> _Made:
    layers = [layer for _ in range(3) for layer in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(32, width)


def _block(words: int, width: int) -> _Made:
    return _Block(words, width), torch.randint(0, words, (2, 32))


def _resnet(width: int) -> _Made:
    sizes = [width, width, width, 2 * width, 2 * width, 4 * width, 4 * width, 8 * width, 8 * width]
    blocks = [_Residual(*pair) for pair in itertools.pairwise(sizes)]
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 100)]
    return nn.Sequential(*stem, *blocks, *head), torch.randn(2, 3, 64, 64)


def _lstm(width: int) -> _Made:
    return _Recurrent(width), torch.randn(4, 16, width)


MODELS: Final[dict[str, dict[int, Callable[[], _Made]]]] = {
    "mlp": {1: lambda: _mlp(576), 4: lambda: _mlp(1152), 25: lambda: _mlp(2880)},
    "block": {1: lambda: _block(2000, 128), 4: lambda: _block(8000, 224), 25: lambda: _block(50000, 256)},
    "conv": {1: lambda: _resnet(19), 4: lambda: _resnet(38), 25: lambda: _resnet(96)},
    "lstm": {1: lambda: _lstm(256), 4: lambda: _lstm(512), 25: lambda: _lstm(1280)},
}


def row_of(name: str, size: int, subject: str, trains: bool) -> dict[str, Any]:
    """A line of the table, measured in this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, given = MODELS[name][size]()
    if not trains:
        model, given = model.eval().bfloat16(), given.bfloat16() if given.is_floating_point() else given
    count = sum(parameter.numel() for parameter in model.parameters())
    live = live_program(model, (given,), {}, backward=trains, dynamic=None, calls=3, seed=0)
    (loaded,) = chosen_subjects([subject], device="cpu")
    stages: list[tuple[str, float]] = []
    base, began = _peak(), _cpu()
    result = judge_subject(
        eager=EagerState(make=live.instantiate),
        subject=loaded,
        options=CaseOptions(),
        progress=lambda stage: stages.append((stage, _cpu())),
    )
    ended, peak = _cpu(), _peak() - base
    spent: Counter[str] = Counter()
    for (stage, at), (_, until) in zip(stages, [*stages[1:], ("", ended)], strict=True):
        spent[stage] += until - at  # pyright: ignore  (a float)
    if "truth" not in spent:  # the judge did not need it
        at = _cpu()
        observe_widened(live.instantiate())
        spent["truth"] = _cpu() - at  # pyright: ignore
    least = spent["eager"] + spent["truth"] + spent["subject"]
    return {
        "model": name,
        "millions": round(count / 1e6, 1),
        "dtype": "float32" if trains else "bfloat16",
        "mode": "train" if trains else "eval",
        "subject": subject,
        "status": result.verdict.status.value,
        "cpu_s": round(ended - began, 1),
        "eager_s": round(spent["eager"], 2),
        "fp64_s": round(spent["truth"], 2),
        "subject_s": round(spent["subject"], 2),
        "noise_s": round(sum(spent[stage] for stage in _NOISE), 1),
        "ratio": round((ended - began) / least, 1),
        "peak_mb": round(peak),
        "memory_ratio": round(peak / (count * 8e-6), 1),
    }


def _cpu() -> float:
    """CPU seconds of this process and of the compilers that it has run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + used.ru_utime + used.ru_stime


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def rows_of(sizes: Sequence[int], only: str) -> Iterator[dict[str, Any]]:
    """The rows of all models of these sizes, each from a new process."""
    for size in sizes:
        for name in MODELS:
            for subject in _SUBJECTS:
                for trains in (True, False):
                    if only in f"{name} {'train' if trains else 'eval'} {subject}":
                        with get_context("spawn").Pool(1) as pool:
                            yield pool.apply(row_of, (name, size, subject, trains))


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the table."""
    parser = options_of(__doc__, only=True)
    parser.add_argument("--sizes", default="1,4,25", help="millions of parameters")
    options = parser.parse_args(arguments)
    shown(rows_of([int(size) for size in options.sizes.split(",")], options.only), options.csv)
    return 0


if __name__ == "__main__":
    sys.exit(main())
