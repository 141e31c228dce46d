"""Time to judge, to run tasks in workers and to store results, and total time of sweeps and campaigns."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import Case, Figures, Side, benchmark, stopwatch
from fuzz.campaign.worker import judge_range, warm_up
from oracle.errors import UsageError
from oracle.isolate import Completed, Pool, Task
from oracle.judge import Evidence, Runs, judge
from oracle.judge.values import compare_values
from oracle.observe.outcome import Outcome
from oracle.subjects.registry import resolve
from oracle.tests.outcomes import observation, returned, returned_calls
from oracle.verdict import Status
from results.store import Store
from results.tests import fabricate


@benchmark(repeat=5)
def judge_cost() -> Iterator[Case]:
    """A verdict. The bounds keep a sweep of 20 000 cases cheap compared with compiles of about 40 ms."""

    def case(name: str, calls: int, bound_s: float, function: Callable[..., Any], *arguments: Any) -> Case:
        return Case(name, lambda: {"judge": lambda: function(*arguments)}, calls=calls, bound_s=bound_s)

    small = torch.randn(10)
    near = torch.nextafter(small, torch.tensor(9.0))
    one = returned(small, args=(small + 1,))
    yield case("two equal tensors of 10 elements", 500, 100e-6, compare_values, small, small.clone())
    yield case("two close tensors of 10 elements", 100, 1e-3, compare_values, small, near)
    equal, close = returned(small.clone(), args=(small + 1,)), returned(near, args=(small + 1,))
    yield case("one output and one argument", 200, 1e-3, _verdict, one, equal)
    yield case("the same with an output that is close", 100, 2e-3, _verdict, one, close)
    state = {f"weight{number}": torch.randn(64) for number in range(200)}
    whole = returned_calls(observation(small, state=state, gradients=state))
    yield case("a model of 200 parameters with gradients", 4, 50e-3, _verdict, whole, whole)
    large = torch.randn(10_000_000)
    rounded = large * (1 + 2**-23)
    broken = rounded.clone()
    broken[1_234_567] += 3
    yield case("10 million equal floats", 1, 1.0, _verdict, returned(large), returned(large.clone()))
    yield case("10 million close floats", 1, 5.0, _verdict, returned(large), returned(rounded))
    wide = returned(large.double())
    yield case("10 million floats, one wrong", 1, 10.0, _verdict, returned(large), returned(broken), wide)


def _verdict(eager: Outcome, subject: Outcome, truth: Outcome | None = None) -> None:
    judge(Evidence(eager=eager, again=eager, subject=subject, runs=Runs(truth=lambda: truth)))


# ------------------------------------------------------------------------------------------------------------ worker pool


@benchmark(repeat=5, warm_up="never")
def isolate_overhead(tasks: int = 2000, workers: int = 2, preload: str = "") -> Iterator[Case]:
    """An empty task, in reused workers and in a new worker each; `first_s`: time until the first result."""
    for count in sorted({1, workers}):
        modules = preload.split(",") if preload else []
        kept = partial(_pool, count, modules, tasks, max_tasks=10**9)
        fresh = partial(_pool, count, modules, min(tasks, 20), max_tasks=1)
        yield Case(f"{count} workers", lambda kept=kept, fresh=fresh: {"kept": kept, "fresh": fresh})


def _pool(workers: int, preload: list[str], tasks: int, *, max_tasks: int) -> Figures:
    began = time.perf_counter()
    with Pool(workers=workers, preload=preload, max_tasks_per_worker=max_tasks) as pool:
        _run_tasks(pool, 1)
        first_s = time.perf_counter() - began
        _run_tasks(pool, tasks // 10)
        with stopwatch() as figures:
            _run_tasks(pool, tasks)
    each = {name: seconds / tasks for name, seconds in figures.items()}
    return Figures(each, **({"first_s": first_s} if max_tasks > 1 else {}))


def _run_tasks(pool: Pool, count: int) -> None:
    made = [
        Task(
            key=str(number), function="oracle.tests.isolate_tasks:nothing", payload={"sample": number}, group=str(number // 50),
            timeout_s=60.0, memory_bytes=1 << 30,
        )
        for number in range(count)
    ]  # fmt: skip
    for result in pool.run(made):
        assert isinstance(result.end, Completed), result


# ------------------------------------------------------------------------------------------------------------------ store


@benchmark(repeat=1, warm_up="never")
def store(cases: int = 20_000, batch: int = 1000) -> Iterator[Case]:
    """Planning and recording a large run in batches, and reading it: seconds of each step, megabytes of the file."""
    yield Case(f"{cases} cases, batches of {batch}", lambda: {"store": partial(_store, cases, batch)})


def _store(cases: int, batch: int) -> Figures:
    # Four subjects per program and one failure in fifty, as in a typical sweep.
    planned = [
        fabricate.case(
            f"op{i // 40}/float32/forward/{i // 4}", subject=f"subject{i % 4}", source=f"# {i // 4}\n" + "x = 1\n" * 80
        )
        for i in range(cases)
    ]
    records = [
        fabricate.record(case, Status.FAIL_ACCURACY if i % 50 == 0 else Status.PASS, speedup=1.5)
        for i, case in enumerate(planned)
    ]
    steps: dict[str, Figures] = {}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "results.db"
        with Store.open(path, create=True) as store:
            store.begin_run(run_id="run-1", environment={}, arguments={})
            with stopwatch() as steps["plan"]:
                for i in range(0, cases, batch):
                    store.plan("run-1", planned[i : i + batch])
                store.finish_planning("run-1")
            with stopwatch() as steps["append"]:
                for i in range(0, cases, batch):
                    store.append(records[i : i + batch])
                store.end_run("run-1", state="complete")
            with stopwatch() as steps["planned"]:
                assert len(store.planned()) == cases
            with stopwatch() as steps["records"]:
                assert sum(1 for _ in store.records()) == cases
            store.begin_run(run_id="run-2", environment={}, arguments={})
            store.plan("run-2", planned[:200])
            store.finish_planning("run-2")
            few = [replace(record, run_id="run-2") for record in records[:200]]
            with stopwatch() as steps["one append"]:
                for record in few:
                    store.append([record])
        size = path.stat().st_size
    seconds = {f"{name}_s": figures["wall_s"] for name, figures in steps.items()}
    seconds["one append_s"] /= len(few)
    return Figures(**seconds, megabytes=size / 1e6)


# ---------------------------------------------------------------------------------------------------- sweeps and campaigns


@benchmark(repeat=3, warm_up="never")
def sweep_overhead(
    subject: str = "aot_eager", workers: int = 2, match: str = "a*,nn.functional.l*,linalg.s*,s*", samples: int = 3
) -> Iterator[Case]:
    """A sweep of some 200 groups, over the bare calls (eager twice, fp64 and noise if needed, subject): below 1.25.

    `cases`: with observing, judging and state checks; `run`: also with messages, database and idle workers, but not planning.
    """

    def sweep() -> Figures:
        words = ["sweep", "--suite", "opinfo", "--subject", subject, "--max-samples", str(samples)]
        words += ["--workers", str(workers), *(word for glob in match.split(",") for word in ("--match", glob))]
        summary = _summary(words, "--db", "x.db")
        bare = summary["bare_s"]
        ratios = {"cases/bare": summary["case_wall_s"] / bare, "run/bare": summary["wall_s"] * workers / bare}
        return Figures(wall_s=summary["wall_s"], count=summary["done"], **ratios)

    yield Case(subject, lambda: {"sweep": sweep})


def _summary(words: list[str], option: str, file: str) -> dict[str, Any]:
    """The JSON summary of one of our commands, run in a new folder with `file` as the value of `option`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / file
        if path.suffix == ".toml":
            path.write_text("")  # an empty ledger, since a campaign runs the program of every known issue
        command = [sys.executable, "-m", "oracle.cli", *words, "--json", option, str(path)]
        done = subprocess.run(command, cwd=folder, env=_environment(), capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"{words[0]} ended with {done.returncode}: {' '.join(done.stderr.split())[-140:]}")
    return json.loads(done.stdout.splitlines()[-1])["summary"]


def _environment() -> dict[str, str]:
    """Environment variables with which the checkout is found from any folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path[1:]])}


_LADDER = "eager,dynamo,aot_eager,aot_eager_decomp_partition,inductor"
_SUCCESSFUL = re.compile(r"Successful: (\d+)/(\d+)")


@benchmark(repeat=1, warm_up="never")
def fuzz_throughput(
    programs: int = 2000,
    subjects: str = _LADDER,
    seed: int = 0,
    focus: str = "all",
    workers: int = os.cpu_count() or 1,
    batch: int = 0,
    torchfuzz: str = "",
    torchfuzz_programs: int = 20,
) -> Iterator[Case]:
    """CPU time per program of a campaign with judging and without reduction; `torchfuzz`: a PyTorch tree to compare with.

    CPU time is that of all processes, including the start of the workers; `per minute` uses wall time from the first drawn
    program to the last judged one. The peer is the generator in PyTorch's tools/experimental/torchfuzz, which runs one program
    per process.
    """

    def campaign(subject: str) -> Figures:
        words = ["fuzz", "--subject", subject, "--count", str(programs), "--seed", str(seed), "--focus", focus]
        words += ["--workers", str(workers), "--no-reduce", *(["--batch", str(batch)] if batch else [])]
        started = _children_cpu()
        summary = _summary(words, "--known", "none.toml")
        count, wall_s = summary["programs"], summary["wall_s"]
        found = {"per minute": 60 * count / wall_s, "findings": sum(summary["symptoms"].values())}
        return Figures(processor_s=(_children_cpu() - started) / count, wall_s=wall_s / count, **found)

    for subject in subjects.split(","):
        sides: dict[str, Side] = {"campaign": partial(campaign, subject)}
        if torchfuzz and subject == "inductor":
            sides["torchfuzz"] = partial(_torchfuzz, Path(torchfuzz), torchfuzz_programs, workers)
        yield Case(subject, lambda sides=sides: sides, clock="processor")


def _torchfuzz(path: Path, programs: int, workers: int) -> Figures:
    """Run torchfuzz. Raises RuntimeError if not every program ran, since its exit code is always 0."""
    places = (path, path / "fuzzer.py", path / "tools" / "experimental" / "torchfuzz" / "fuzzer.py")
    script = next((place for place in places if place.is_file()), None)
    if script is None:
        raise UsageError(seen=f"no fuzzer.py in {path}", expected="a tree of PyTorch", do="set torchfuzz to one")
    with tempfile.TemporaryDirectory() as cache, stopwatch() as figures:
        done = subprocess.run(
            [sys.executable, script.name, "--start", "0", "--count", str(programs), "-p", str(workers)],
            cwd=script.parent, capture_output=True, text=True, check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_CACHE_DIR": cache},
        )  # fmt: skip
    said = _SUCCESSFUL.search(done.stdout + done.stderr)
    if said is None or said[1] != said[2]:
        raise RuntimeError(f"torchfuzz did not run its programs ({said and said[0]}): {done.stderr[-100:]}")
    return Figures({name: seconds / int(said[2]) for name, seconds in figures.items()})


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


_STAGES = {
    "draw": "draw", "eager": "eager", "eager again": "eager", "subject": "subject", "judge": "judge", "truth": "truth and noise",
    "noise": "truth and noise", "loud noise": "truth and noise", "other kernels": "truth and noise",
}  # fmt: skip


class StageClock:
    """CPU time by stage of the judge, from its progress reports."""

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(_STAGES.values(), 0.0)
        self._stage = ""
        self._since = sum(os.times()[:4])

    def __call__(self, stage: str) -> None:
        now = sum(os.times()[:4])
        if self._stage in _STAGES:
            self.seconds[_STAGES[self._stage]] += now - self._since
        self._stage, self._since = stage.rpartition(": ")[2], now


@benchmark(repeat=1, warm_up="never")
def fuzz_stages(programs: int = 100, subjects: str = _LADDER, seed: int = 0, focus: str = "all") -> Iterator[Case]:
    """Milliseconds by stage for a program that is judged alone in this process."""

    def stages(payload: Mapping[str, Any]) -> Figures:
        clock, chunk = StageClock(), 20
        with stopwatch() as figures:
            for at in range(0, programs, chunk):
                judge_range({**payload, "numbers": list(range(at, min(at + chunk, programs)))}, clock)
        clock("")
        each = {name: seconds / programs for name, seconds in figures.items()}
        return Figures(**each, **{f"{stage} ms": 1e3 * s / programs for stage, s in clock.seconds.items()})

    def sides(subject: str) -> dict[str, Side]:
        spec = resolve(subject).to_json()
        warm_up({"subject": spec}, lambda stage: None)
        payload = {
            "subject": spec, "settings": {"focus": focus}, "steering": {}, "seed": seed, "limit_s": 300.0, "configs": {},
            "batch_size": 1,
        }  # fmt: skip
        return {"alone": partial(stages, payload)}

    for subject in subjects.split(","):
        yield Case(subject, partial(sides, subject), clock="processor")
