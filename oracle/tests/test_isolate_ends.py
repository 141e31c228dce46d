"""Every way in which a task can end its process, or try to, is the end of that task only."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest

from oracle.isolate import Completed, Died, End, Failed, OutOfMemory, Pool, TimedOut
from oracle.tests.isolate_tasks import is_alive, run_one, task, value_of, wait_until

MIB = 1 << 20


@pytest.fixture(scope="module", params=["forkserver", "spawn"])
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    with Pool(
        workers=1,
        preload=["oracle.tests.isolate_tasks"],
        start_method=request.param,
        address_space_margin_bytes=256 * MIB,
    ) as pool:
        yield pool
        assert value_of(run_one(pool, task("echo", x=1)))["payload"] == {"x": 1}


def end_of(pool: Pool, function: str, **options: object) -> End:
    return run_one(pool, task(function, **options)).end  # type: ignore[arg-type]


def test_returned_value_comes_back(pool: Pool) -> None:
    end = end_of(pool, "echo", text="\ud800 ü \x00", number=1.5, items=[None, True])
    assert isinstance(end, Completed)
    assert end.value["payload"] == {"text": "\ud800 ü \x00", "number": 1.5, "items": [None, True]}
    assert 0 <= end.wall_s < 1
    assert not end.replace_worker


def test_segfault(pool: Pool) -> None:
    end = end_of(pool, "segfault")
    assert isinstance(end, Died)
    assert (end.signal, end.exit_code, end.stage) == (signal.SIGSEGV, None, "about to read address 0")
    assert "in segfault" in end.traceback
    assert end.stderr == "last words\n"


@pytest.mark.parametrize("code", [0, 3])
def test_exit(pool: Pool, code: int) -> None:
    assert end_of(pool, "exit_with", code=code) == Died(signal=None, exit_code=code, stage="", traceback="", stderr="")


def test_abort(pool: Pool) -> None:
    end = end_of(pool, "abort")
    assert isinstance(end, Died)
    assert end.signal == signal.SIGABRT
    assert "in abort" in end.traceback


def test_stack_overflow(pool: Pool) -> None:
    end = end_of(pool, "overflow_stack")
    assert isinstance(end, Died)
    assert end.signal == signal.SIGSEGV
    assert "in __repr__" in end.traceback


def test_killed_while_small_died(pool: Pool) -> None:
    assert end_of(pool, "kill_itself") == Died(signal=signal.SIGKILL, exit_code=None, stage="", traceback="", stderr="")


def test_killed_while_large_ran_out_of_memory(pool: Pool) -> None:
    """The system's own kill on a full machine looks like this."""
    end = end_of(pool, "kill_itself_when_large", bytes=80 * MIB)
    assert isinstance(end, OutOfMemory)
    assert 80 * MIB <= end.bytes < 100 * MIB


@pytest.mark.parametrize(
    ("function", "stage"), [("hang_in_python", "looping"), ("hang_holding_the_gil", "pausing"), ("hang_in_re", "")]
)
def test_hang(pool: Pool, function: str, stage: str) -> None:
    end = end_of(pool, function, timeout_s=0.3)
    assert isinstance(end, TimedOut)
    assert end.stage == stage
    assert 0.3 <= end.seconds < 1.5
    assert f"in {function}" in end.traceback


def test_hang_over_a_child_ends_the_child(pool: Pool) -> None:
    end = end_of(pool, "hang_over_a_child", timeout_s=0.4)
    assert isinstance(end, TimedOut)
    assert wait_until(lambda: not is_alive(int(end.stage)))


@pytest.mark.parametrize("function", ["eat_memory", "eat_memory_in_a_child", "eat_shared_memory"])
def test_growth_over_the_limit(pool: Pool, function: str) -> None:
    end = end_of(pool, function)
    assert isinstance(end, OutOfMemory)
    assert 100 * MIB < end.bytes < 400 * MIB


def test_one_giant_allocation_is_refused_inside(pool: Pool) -> None:
    assert end_of(pool, "allocate", bytes=400 * MIB, is_caught=True) == _completed_with(size=None)


def test_an_uncaught_memory_error_ran_out_of_memory(pool: Pool) -> None:
    end = end_of(pool, "allocate", bytes=400 * MIB, is_caught=False)
    assert isinstance(end, OutOfMemory)
    assert end.stage == "allocating"
    assert "MemoryError" in end.traceback


def test_an_allocation_within_the_limit_succeeds(pool: Pool) -> None:
    assert end_of(pool, "allocate", bytes=60 * MIB, is_caught=False) == _completed_with(size=60 * MIB)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("raise_error", "LookupError: no such thing"),
        ("exit_politely", "SystemExit: 3"),
        ("return_object", "Object of type object is not JSON serializable"),
        ("return_nan", "Out of range float values are not JSON compliant"),
        ("return_list", "isolate_tasks:return_list returned list, but should return dict"),
        ("no_such_function", "has no attribute 'no_such_function'"),
    ],
)
def test_errors_of_the_task_function_are_ours(pool: Pool, function: str, message: str) -> None:
    end = end_of(pool, function)
    assert isinstance(end, Failed)
    assert message in end.error


def test_a_worker_goes_on_after_an_error(pool: Pool) -> None:
    ends = list(pool.run([task("raise_error", key=str(number)) for number in range(3)]))
    assert len({result.worker_pid for result in ends}) == 1


def test_huge_result_and_huge_payload(pool: Pool) -> None:
    end = end_of(pool, "return_much", bytes=10_000_000)
    assert isinstance(end, Completed)
    assert end.value == {"text": "x" * 10_000_000}
    results = list(pool.run([task("echo", key=str(number), text="y" * 3_000_000) for number in range(3)]))
    assert [len(value_of(result)["payload"]["text"]) for result in results] == [3_000_000] * 3


def test_printing_and_closing_files_does_not_reach_the_protocol(pool: Pool) -> None:
    functions = ["print_garbage", "close_standard_streams", "print_garbage", "leave_a_thread", "print_garbage"]
    tasks = [task(function, key=f"{number}-{function}") for number, function in enumerate(functions)]
    results = list(pool.run(tasks))
    assert [value_of(result)["pid"] for result in results] == [results[0].worker_pid] * 5
    # What is said after a task closed the standard streams still reaches the log.
    end = end_of(pool, "segfault")
    assert isinstance(end, Died)
    assert end.stderr == "last words\n"


def test_output_is_bounded_and_keeps_its_tail(pool: Pool) -> None:
    end = end_of(pool, "flood_output", seconds=0.3)
    assert isinstance(end, Died)
    assert end.stderr.endswith("flood\nflood\n")
    assert len(end.stderr) <= 16 << 10


def test_a_worker_that_cuts_its_connection_is_killed(pool: Pool) -> None:
    began = time.monotonic()
    result = run_one(pool, task("close_every_file"))
    assert isinstance(result.end, Died)
    assert (result.end.signal, result.end.exit_code) == (None, None)
    assert "closed its connection" in result.end.traceback
    assert wait_until(lambda: not is_alive(result.worker_pid))
    assert time.monotonic() - began < 10


def test_a_forked_copy_of_the_task_does_not_answer(pool: Pool) -> None:
    results = list(pool.run([task("fork_and_return_twice"), task("echo")]))
    assert value_of(results[0]) == {"role": "parent"}
    assert value_of(results[1])["pid"] == results[0].worker_pid


def test_an_alarm_left_behind_does_not_kill_the_next_task(pool: Pool) -> None:
    results = list(pool.run([task("leave_an_alarm"), task("sleep", seconds=0.1)]))
    assert value_of(results[1])["pid"] == results[0].worker_pid


def test_killing_the_starter_ends_in_a_death(pool: Pool) -> None:
    end = end_of(pool, "kill_the_starter")
    assert isinstance(end, Died)
    assert "the process that starts workers ended with exit code -9" in end.traceback


def _completed_with(**value: object) -> object:
    class _Matches:
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Completed) and other.value == value

        def __repr__(self) -> str:
            return f"Completed({value})"

    return _Matches()
