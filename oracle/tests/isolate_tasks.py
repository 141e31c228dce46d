"""Task functions for the tests of `oracle.isolate`: each does one thing to its worker process."""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import random
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psutil

from oracle.isolate import START_UP, Completed, Pool, Task, TaskResult

Progress = Callable[[str], None]
_state: dict[str, Any] = {}


def nothing(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return {}


def echo(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return {"payload": payload, "pid": os.getpid()}


def preloaded(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    module = importlib.import_module("oracle.tests.isolate_preload")
    return {"pid": os.getpid(), "called_in": module.CALLED_IN, "collects": [module.COLLECTS, gc.isenabled()]}


def sleep(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    time.sleep(payload["seconds"])
    return {"pid": os.getpid(), "at": time.time()}


def compute_on(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Spend CPU time on one processor, however long that takes on the wall."""
    os.sched_setaffinity(0, {payload["processor"]})
    began, end = time.monotonic(), time.thread_time() + payload["cpu_s"]
    while time.thread_time() < end:
        pass
    return {"wall_s": time.monotonic() - began, "replace_worker": True}


def start_up(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Imports and warms up for some time, and works for some."""
    progress(START_UP)
    time.sleep(payload["start_s"])
    progress("work")
    time.sleep(payload["work_s"])
    return {}


def remember(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """How often this was called in this process."""
    _state["calls"] = _state.get("calls", 0) + 1
    return {"calls": _state["calls"], "pid": os.getpid()}


def segfault(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    progress("about to read address 0")
    print("last words", flush=True)
    ctypes.string_at(0)
    return {}


def exit_with(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    os._exit(payload["code"])


def abort(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    os.abort()


def kill_itself(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)
    return {}


def kill_itself_when_large(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    _state["hoard"] = b"x" * payload["bytes"]
    time.sleep(0.3)  # long enough to be seen
    return kill_itself(payload, progress)


def overflow_stack(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))
    sys.setrecursionlimit(10**9)

    class Deep:
        def __repr__(self) -> str:
            # Recursion through C, which the limit would stop, were it not raised. A sort takes kilobytes of the stack:
            # Python 3.12 has another limit for C, which cannot be raised, and smaller frames would meet it first.
            return str(sorted([self], key=repr))

    return {"text": repr(Deep())}


def hang_in_python(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    progress("looping")
    while True:
        pass


def hang_holding_the_gil(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    progress("pausing")
    ctypes.PyDLL(None).sleep(600)
    return {}


def hang_in_re(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return {"match": re.match(r"(a+)+$", "a" * 40 + "b") is not None}


def hang_over_a_child(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """A compiler that never ends, in a session of its own."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    progress(str(child.pid))
    child.wait()
    return {}


def leave_a_child(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    return {"child": child.pid, "replace_worker": payload["replace_worker"]}


def leave_a_large_child(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    code = "import time; hoard = b'x' * (200 << 20); print('large', flush=True); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return {"pid": os.getpid()}


def eat_memory(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    hoard = []
    while True:
        hoard.append(b"x" * (4 << 20))
        time.sleep(0.002)


def eat_memory_in_a_child(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    code = "import time; hoard = b'x' * (200 << 20); time.sleep(60)"
    subprocess.run([sys.executable, "-c", code], check=True)
    return {}


def eat_shared_memory(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    shared = mmap.mmap(-1, 200 << 20)
    for _ in range(50):
        shared.write(b"x" * (4 << 20))
    time.sleep(60)
    return {}


def allocate(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """One allocation, tried as a subject's own code would."""
    progress("allocating")
    if not payload["is_caught"]:
        return {"size": len(bytearray(payload["bytes"]))}
    try:
        return {"size": len(bytearray(payload["bytes"]))}
    except MemoryError:
        return {"size": None}


def grow(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """A leak."""
    _state.setdefault("leak", []).append(b"x" * payload["bytes"])
    return {"pid": os.getpid()}


def raise_error(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    raise LookupError("no such thing")


def exit_politely(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    sys.exit(3)


def return_object(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return {"value": object()}


def return_nan(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return {"value": float("nan")}


def return_list(payload: dict[str, Any], progress: Progress) -> Any:
    return [1]


def return_much(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return {"text": "x" * payload["bytes"]}


def print_garbage(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    print("\x00\xff" * 1000)
    os.write(1, b"\x00" * 100 + b'{"say":"completed"}')
    os.write(2, b"\xff" * 100)
    print("{}" * 1000, file=sys.stderr)
    return {"pid": os.getpid()}


def flood_output(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    end = time.monotonic() + payload["seconds"]
    while time.monotonic() < end:
        os.write(1, b"flood\n" * 10_000)
        time.sleep(0.001)
    ctypes.string_at(0)
    return {}


def close_standard_streams(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    sys.stdout.close()
    for fd in (0, 1, 2):
        os.close(fd)
    _state["files"] = [open(os.devnull) for _ in range(3)]  # noqa: SIM115 - they take the numbers 0 to 2
    return {"pid": os.getpid(), "stolen": [file.fileno() for file in _state["files"]]}


def close_every_file(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    os.closerange(3, 4096)
    time.sleep(60)
    return {}


def leave_a_thread(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """A thread that goes on reporting progress after its task has ended."""

    def chatter() -> None:
        while True:
            progress("still here")
            time.sleep(0.001)

    threading.Thread(target=chatter).start()
    return {"pid": os.getpid()}


def leave_an_alarm(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    return {"pid": os.getpid()}


def fork_and_return_twice(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    child = os.fork()
    if child == 0:
        progress("from the child")
        return {"role": "child"}
    os.waitpid(child, 0)
    return {"role": "parent"}


def kill_the_starter(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)
    return {}


def read_environment(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return {"pid": os.getpid(), "values": {name: os.environ.get(name) for name in payload["names"]}}


def misbehave(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """One of many ends, by the payload's `way`."""
    way = payload["way"]
    progress(way)
    if way == "exit":
        os._exit(random.Random(payload["seed"]).randrange(256))
    if way == "kill":
        return kill_itself(payload, progress)
    if way == "segfault":
        return segfault(payload, progress)
    if way == "raise":
        raise ValueError(way)
    if way == "hang":
        return hang_in_python(payload, progress)
    if way == "replace":
        return {"way": way, "replace_worker": True}
    return {"way": way}


def replace_me(payload: dict[str, Any], progress: Progress) -> dict[str, Any]:
    return {"pid": os.getpid(), "replace_worker": True}


def task(function: str, *, key: str = "", group: str = "g", timeout_s: float = 20.0, **payload: Any) -> Task:
    """A task that calls a function of this module."""
    environment = payload.pop("environment", ())
    memory_bytes = payload.pop("memory_bytes", 100 << 20)
    return Task(
        key=key or function,
        function=f"{__name__}:{function}",
        payload=payload,
        group=group,
        timeout_s=timeout_s,
        memory_bytes=memory_bytes,
        environment=environment,
    )


def run_one(pool: Pool, planned: Task) -> TaskResult:
    """Its only result."""
    (result,) = list(pool.run([planned]))
    assert result.task is planned
    return result


def value_of(result: TaskResult) -> dict[str, Any]:
    assert isinstance(result.end, Completed), f"{result.task.key} ended as {result.end}, but should be Completed"
    return result.end.value


def is_alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], *, seconds: float = 5.0) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True
