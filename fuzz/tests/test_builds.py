"""Tests of shared builds: libraries of one call, turns, and Inductor's kernels made that way."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._inductor.cpp_builder
from torch._inductor import codecache
from torch._inductor import config as inductor_config

from fuzz.builds import inductor, linking
from fuzz.builds.bindings import with_common_bindings
from fuzz.builds.server import BUILDS, BuildServer, by_command
from fuzz.builds.unity import BuildJob, build, unity_source

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")

_KERNEL = """
#include <Python.h>
#include <cmath>
static const long own = VALUE;
template <typename T> static inline T twice(T x) { return 2 * x; }
extern "C" long kernel() { return twice(own); }
static PyObject* kernel_py(PyObject* self, PyObject* args) { return PyLong_FromLong(kernel()); }
static PyMethodDef methods[] = {{"kernel", kernel_py, METH_VARARGS, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "kernel", NULL, -1, methods};
PyMODINIT_FUNC PyInit_kernel(void) { return PyModule_Create(&definition); }
"""


def job(folder: Path, number: int, *, text: str = _KERNEL, flags: str = "-O0") -> BuildJob:
    source, target = folder / f"k{number}.main.cpp", folder / f"k{number}.main.so"
    source.write_text(text.replace("VALUE", str(number)))
    include = sysconfig.get_paths()["include"]
    return BuildJob(
        source=str(source), target=str(target), command=f"g++ {source} -I{include} {flags} -shared -fPIC -o {target}"
    )


def loaded(job: BuildJob) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{Path(job.target).stem}.kernel", job.target)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_compiler
def test_every_library_of_one_call_is_its_own(tmp_path: Path) -> None:
    jobs = [job(tmp_path, number) for number in (3, 1, 20)]
    assert build(jobs) == jobs
    assert [loaded(job).kernel() for job in jobs] == [6, 2, 40]
    left = {path.name for path in tmp_path.iterdir()} - {Path(j.source).name for j in jobs}
    assert left == {Path(j.target).name for j in jobs}


@needs_compiler
def test_a_source_that_does_not_compile_is_left_out_of_the_call(tmp_path: Path) -> None:
    broken = _KERNEL.replace("twice(own)", "twice(owned)")
    jobs = [job(tmp_path, 1), job(tmp_path, 2, text=broken), job(tmp_path, 3), job(tmp_path, 4, text="this is no C++")]
    assert build(jobs) == [jobs[0], jobs[2]]
    assert [loaded(jobs[0]).kernel(), loaded(jobs[2]).kernel()] == [2, 6]
    assert not Path(jobs[1].target).exists()
    assert not Path(jobs[3].target).exists()


@needs_compiler
def test_where_the_error_is_no_sources_own_none_is_made(tmp_path: Path) -> None:
    jobs = [job(tmp_path, 1, flags="-no-such-flag"), job(tmp_path, 2, flags="-no-such-flag")]
    assert build(jobs) == []
    assert not any(Path(j.target).exists() for j in jobs)


def test_a_cache_that_was_cleared_is_no_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    jobs = [job(gone, 1), job(gone, 2)]
    shutil.rmtree(gone)
    assert build(jobs) == []


def inductors_source(types: tuple[str, ...], body: str) -> str:
    """A kernel with the bindings that the installed Inductor writes."""
    cache = codecache.CppPythonBindingsCodeCache
    call = cache.call_entry_function.format(", ".join(f"parse_arg<{name}>(args, {n})" for n, name in enumerate(types)))
    bindings = cache.suffix_template.format(
        arg_len=len(types), call_entry_func=call, entry_func="kernel", extra_parse_arg=""
    )
    parameters = ", ".join(f"{name} p{n}" for n, name in enumerate(types))
    includes = "#include <stdexcept>\n#include <type_traits>\n#include <cstdint>\n"
    return f'{includes}extern "C"  void  kernel({parameters})\n{{\n{body}\n}}\n{bindings}'


@needs_compiler
def test_bindings_that_kernels_have_in_common_are_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [
        inductors_source(("int64_t",), 'if (p0 == 3) throw std::runtime_error("three");'),
        inductors_source(("int64_t", "float"), 'if (p1 == 3) throw std::runtime_error("three of two");'),
        _KERNEL,  # with others of its own
    ]
    jobs = [job(tmp_path, number, text=text, flags="-std=c++20 -O1") for number, text in enumerate(texts)]
    source = unity_source([(Path(j.source).read_text(), Path(j.target).name) for j in jobs])
    assert source.count("static inline T parse_arg") == source.count("PyModule_Create(&py_module)") == 1
    assert build(jobs) == jobs
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "1")
    one, two, own = (loaded(j).kernel for j in jobs)
    assert one(1) is two(1, 2.0) is None
    assert own() == 4
    for call, message in (
        (lambda: one(3), "^three$"),
        (lambda: two(1, 3.0), "^three of two$"),
        (lambda: one(1, 2), "args"),
    ):
        with pytest.raises(RuntimeError, match=message):
            call()


def test_bindings_that_differ_are_not_taken_for_each_other() -> None:
    one = inductors_source(("int64_t",), "")
    other = one.replace("expected int arg", "expected something else")
    unknown = one.replace("!= 1)", "< 1)")
    common, bodies = with_common_bindings([one, other, unknown, one])
    assert len(common) == 2
    assert bodies[0] == bodies[3] != bodies[1]
    assert bodies[2] == unknown


@needs_compiler
def test_the_linker_reads_an_empty_library_of_the_same_name(tmp_path: Path) -> None:
    large = tmp_path / "libLarge.so"
    text = f'static const char filling[] = "{"x" * linking._LARGE_BYTES}";\nconst char* large() {{ return filling; }}\n'
    (tmp_path / "large.cpp").write_text(text)
    words = ["g++", "-shared", "-fPIC", str(tmp_path / "large.cpp"), "-Wl,-soname,libLarge.so.3", "-o", str(large)]
    subprocess.run(words, check=True)
    installed = tmp_path / "libLarge.so.3"
    installed.symlink_to(large)
    flags = f"-g1 -L{tmp_path} -lLarge -Wl,-rpath,{tmp_path}"
    plain, quick = job(tmp_path, 1, flags=flags), job(tmp_path, 2, flags=flags)
    subprocess.run(plain.command, shell=True, check=True)
    assert build([quick], stubs=tmp_path / "stubs") == [quick]
    assert needed(plain.target) | {"libLarge.so.3"} <= needed(quick.target)
    assert loaded(plain).kernel() * 2 == loaded(quick).kernel()
    assert [path.name for path in (tmp_path / "stubs").iterdir()] == ["libLarge.so"]
    assert (tmp_path / "stubs" / "libLarge.so").stat().st_size < large.stat().st_size / 2


def needed(library: str) -> set[str]:
    """Names of the libraries that one asks for."""
    said = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r"\(NEEDED\)[^\[]*\[([^\]]+)\]", said))


def test_jobs_of_one_command_are_one_group_and_a_target_is_made_once(tmp_path: Path) -> None:
    one, two, other = job(tmp_path, 1), job(tmp_path, 2), job(tmp_path, 3, flags="-O2")
    assert by_command([one, two, other, one]) == [[one, two], [other]]


class Worker:
    """A worker's end of the connection."""

    def __init__(self, server: BuildServer) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(server.path)
        self.file = self.socket.makefile("rb")

    def say(self, op: str, jobs: tuple[BuildJob, ...] = ()) -> None:
        message = {"op": op, "jobs": [job.to_json() for job in jobs]}
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def waits(self) -> bool:
        """Nothing comes for a while."""
        self.socket.settimeout(0.2)
        try:
            self.socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return True
        finally:
            self.socket.settimeout(30.0)
        return False

    def goes(self) -> bool:
        self.socket.settimeout(30.0)
        return json.loads(self.file.readline()) == {"go": True}

    def dies(self) -> None:
        self.file.close()
        self.socket.close()


@pytest.fixture
def server() -> Iterator[BuildServer]:
    with BuildServer(turns=1) as running:
        yield running


def test_there_is_one_turn_and_it_is_passed_on(server: BuildServer) -> None:
    first, second = Worker(server), Worker(server)
    first.say("start")
    assert first.goes()
    second.say("start")
    assert second.waits()
    first.say("end")
    assert second.goes()


def test_a_worker_that_dies_gives_its_turn_back(server: BuildServer) -> None:
    first, second, third = (Worker(server) for _ in range(3))
    first.say("start")
    assert first.goes()
    second.say("start")
    third.say("start")
    second.dies()
    first.dies()
    assert third.goes()


@needs_compiler
def test_kernels_of_waiting_workers_are_one_call(server: BuildServer, tmp_path: Path) -> None:
    workers = [Worker(server) for _ in range(3)]
    jobs = [job(tmp_path, number) for number in range(3)]
    workers[2].say("start")
    assert workers[2].goes()  # nothing is compiled while it has the turn
    for worker, own in zip(workers[:2], jobs, strict=False):
        worker.say("build", (own,))
    assert workers[0].waits()
    workers[2].say("build", (jobs[2],))
    went: list[bool] = []

    def go(worker: Worker) -> None:
        went.append(worker.goes())
        worker.say("end")

    threads = [threading.Thread(target=go, args=(worker,)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:  # there is one turn: each goes when another has ended
        thread.join()
    assert went == [True] * 3
    assert [loaded(own).kernel() for own in jobs] == [0, 2, 4]
    assert (server.libraries, server.calls) == (3, 1)


def test_where_two_turns_are_free_waiting_requests_are_divided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes: list[int] = []
    monkeypatch.setattr("fuzz.builds.server.build", lambda jobs, stubs: sizes.append(len(jobs)) or jobs)
    with BuildServer(turns=2) as server:
        workers = [Worker(server) for _ in range(10)]
        jobs = [job(tmp_path, number) for number in range(10)]
        for worker in workers[:2]:
            worker.say("start")
            assert worker.goes()
        for worker, own in zip(workers[2:], jobs[2:], strict=True):
            worker.say("build", (own,))
        assert eventually(lambda: len(server._state.requests) == 8)
        workers[0].say("build", (jobs[0],))  # nine wait, one turn is free and one still taken
        assert eventually(lambda: len(sizes) == 1)
        workers[1].say("build", (jobs[1],))
        for worker in workers:
            threading.Thread(target=lambda own: own.goes() and own.say("end"), args=(worker,), daemon=True).start()
        assert eventually(lambda: len(sizes) == 2 and not server._state.requests)
    assert sizes == [5, 5]


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it does within half a minute."""
    end = time.monotonic() + 30
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def test_whoever_waits_when_the_campaign_ends_is_told() -> None:
    with BuildServer(turns=1) as server:
        first, second = Worker(server), Worker(server)
        first.say("start")
        assert first.goes()
        second.say("start")
        assert second.waits()
    assert second.file.readline() == b""


def test_without_a_server_nothing_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BUILDS, raising=False)
    ran = []
    with inductor.turn(shares_builds=True):
        ran.append(threading.active_count())
    assert ran


@needs_compiler
def test_inductors_kernels_are_made_together_and_are_right(
    server: BuildServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(BUILDS, server.path)
    monkeypatch.setenv("TORCHINDUCTOR_COMPILE_THREADS", "1")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(inductor, "_turns", None)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x * 3).sort().values, (x + 1).cumsum(1) * 2  # kernels before and behind calls

    x = torch.arange(21.0).reshape(3, 7)
    torch._dynamo.reset()
    with inductor.turn(shares_builds=True), inductor_config.patch(cpp_cache_precompile_headers=False):
        assert server.calls == 0
        results = torch.compile(program)(x)
    torch._dynamo.reset()
    for result, expected in zip(results, program(x), strict=True):
        torch.testing.assert_close(result, expected)
    assert server.libraries > server.calls >= 1


def test_inductors_own_calls_have_the_linker_read_less(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ran: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "torch._inductor.cpp_builder.run_compile_cmd", lambda cmd_line, cwd: ran.append((cmd_line, cwd))
    )
    inductor.link_quickly(tmp_path / "stubs")
    builder: Any = torch._inductor.cpp_builder
    builder.run_compile_cmd("g++ 'a file.cpp' -g1 -O3", cwd="/here")
    assert ran == [("g++ 'a file.cpp' -g0 -O3", "/here")]


def test_a_torch_that_compiles_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch._inductor.async_compile.AsyncCompile.wait")
    assert not inductor.share_builds()
