"""Tests of exceptions inside of a segment: what is raised and handled is one graph, and what gets out is CPython's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from refimpl.capture.breaks import GraphBreak
from refimpl.capture.compile import compile
from refimpl.capture.public.errors import BackendCompilerFailed
from refimpl.tests.capture.capturing import IN_EVERY_MODE, MODES, assert_same_as_eager, captured_with, each_of, same


class Refused(ValueError):
    def __init__(self, size: int, why: str = "no") -> None:
        super().__init__(f"{why} {size}")
        self.size = size


class Asks:
    def __init__(self) -> None:
        self.known = 3

    def __getattr__(self, name: str) -> int:
        if name.startswith("a"):
            return len(name)
        raise AttributeError(name)


class Plain:
    @property
    def fails(self) -> int:
        raise AttributeError("not here")

    @property
    def works(self) -> int:
        return 2


class Closing:
    def __init__(self, log: list[str], swallows: bool) -> None:
        self.log = log
        self.swallows = swallows

    def __enter__(self) -> Closing:
        self.log.append("in")
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.log.append("out" if kind is None else kind.__name__)
        return self.swallows


ASKS, PLAIN = Asks(), Plain()


def handled(x: Any) -> Any:
    try:
        x = x + 1
        raise ValueError("a", 2)
    except (KeyError, ValueError) as error:
        return x * len(error.args), str(error)


def own_class(x: Any) -> Any:
    try:
        raise Refused(3, why="not")
    except Refused as error:
        return x * error.size, f"{error}", isinstance(error, ValueError), type(error).__name__


def made_and_given(x: Any) -> Any:
    error = Refused(4)
    return x + 1, str(error), error.args


def finally_and_else(x: Any) -> Any:
    log = []
    for index in range(3):
        try:
            if index == 1:
                raise KeyError(index)
            x = x * 2
        except KeyError as error:
            log.append(error.args[0])
        else:
            log.append("else")
        finally:
            log.append("finally")
            x = x + index
    return x, log


def raised_again(x: Any) -> Any:
    try:
        try:
            {}["missing"]
        except KeyError:
            x = x + 1
            raise
    except LookupError as error:
        return x * 2, error.args


def another_one(x: Any) -> Any:
    try:
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise TypeError("outer") from error
    except TypeError as error:
        return x + len(str(error))


def below(x: Any, size: int) -> Any:
    if size > 2:
        raise Refused(size)
    return x.sin()


def from_a_call(x: Any) -> Any:
    total = x
    for size in (1, 3, 2, 4):
        try:
            total = total + below(x, size)
        except Refused as error:
            total = total - error.size
    return total


def operations(x: Any) -> Any:
    found = []
    table, items = {"a": 1}, [1, 2]
    for step in range(7):
        try:
            if step == 0:
                found.append(table["b"])
            elif step == 1:
                found.append(items[5])
            elif step == 2:
                _first, _second = (1, 2, 3)  # type: ignore[misc]
            elif step == 3:
                found.append(int("no number"))
            elif step == 4:
                found.append(1 // 0)
            elif step == 5:
                found.append(table.pop("c"))
            else:
                found.append(PLAIN.nothing)  # type: ignore[attr-defined]
        except (LookupError, ValueError, ArithmeticError, AttributeError) as error:
            found.append(type(error).__name__)
    return x + len(found), found


def asking(x: Any) -> Any:
    seen = [hasattr(ASKS, name) for name in ("known", "abc", "zzz")]
    seen += [hasattr(PLAIN, name) for name in ("fails", "works", "nothing")]
    return x + sum(seen), seen, getattr(ASKS, "axe", 0), getattr(ASKS, "zzz", 7), getattr(PLAIN, "fails", "default")


def leaving_with(x: Any) -> Any:
    log: list[str] = []
    with Closing(log, True):
        x = x * 2
        raise ValueError
    with contextlib.suppress(KeyError), Closing(log, False) as manager:
        x = x * 3
        raise KeyError(len(manager.log))
    return x, log


@contextlib.contextmanager
def scaled(log: list[Any], by: int) -> Iterator[int]:
    log.append(("begin", by))
    try:
        yield by
    except ValueError as error:
        log.append(str(error))
    finally:
        log.append(("end", by))


def managers(x: Any) -> Any:
    log: list[Any] = []
    with scaled(log, 2) as two, scaled(log, 3) as three:
        x = x * two * three
    with scaled(log, 4):
        raise ValueError("inside")
    return x + 1, log


def numbers(count: int) -> Iterator[int]:
    received = None
    for index in range(count):
        try:
            received = yield index + (received or 0)
        except ValueError:
            received = 100
    return received


def driven(x: Any) -> Any:
    generator = numbers(4)
    seen = [next(generator), generator.send(5), generator.throw(ValueError("x")), next(generator)]  # type: ignore[attr-defined]
    try:
        generator.send(9)  # type: ignore[attr-defined]
    except StopIteration as stop:
        seen.append(stop.value)
    waiting = numbers(2)
    next(waiting)
    waiting.close()  # type: ignore[attr-defined]
    return x + sum(seen), seen, next(waiting, "over")


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    handled, own_class, made_and_given, finally_and_else, raised_again, another_one, from_a_call, operations, asking,
    leaving_with, managers, driven,
)  # fmt: skip
def test_the_program_does_what_it_does(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, [(torch.arange(3.0),)] * 2, is_whole=True, graphs=1)


def kept_by_the_program(x: Any) -> Any:
    try:
        raise ValueError("kept")
    except ValueError as error:
        found = error
    return x + 1, found


def looked_at(x: Any) -> Any:
    try:
        x = x + 1
        raise ValueError("seen")
    except ValueError as error:
        traceback: Any = error.__traceback__
        return x + traceback.tb_lineno, traceback.tb_next is None


def breaks_in_the_handler(x: Any) -> Any:
    try:
        x = x + 1
        raise ValueError("handled")
    except ValueError:
        torch._dynamo.graph_break()
        x = x * 2
    return x + 1


def unhandled(x: Any) -> Any:
    x = x + 1
    raise Refused(int(x.shape[0]))


def left_waiting(x: Any, log: list[Any]) -> Any:
    generator = closing_late(log)
    x = x + next(generator)
    del generator
    log.append("after")
    return x


def closing_late(log: list[Any]) -> Iterator[int]:
    try:
        yield 1
        yield 2
    finally:
        log.append("closed")


@IN_EVERY_MODE
def test_what_gets_out_of_the_segment_has_a_traceback(mode: str) -> None:
    x = torch.arange(3.0)
    captured, _, _ = captured_with(kept_by_the_program, breaks_at=MODES[mode])
    for _ in range(2):
        result, error = captured(x)
        assert torch.equal(result, x + 1)
        assert str(error) == "kept"
        assert error.__traceback__.tb_frame.f_code.co_name == "kept_by_the_program"
        assert error.__traceback__.tb_lineno == kept_by_the_program.__code__.co_firstlineno + 2
    assert_same_as_eager(looked_at, mode, [(x,)] * 2)
    captured, _, _ = captured_with(unhandled, breaks_at=MODES[mode])
    for _ in range(2):
        with pytest.raises(Refused, match="no 3") as found:
            captured(x)
        assert found.value.size == 3
        assert [entry.name for entry in found.traceback][-1] == "unhandled"


@IN_EVERY_MODE
def test_a_break_under_an_exception_runs_it_by_cpython(mode: str) -> None:
    recorder = assert_same_as_eager(breaks_in_the_handler, mode, [(torch.arange(3.0),)] * 2)
    if MODES[mode] is None:
        assert recorder.targets == ["add", "add"]


@IN_EVERY_MODE
def test_a_generator_that_is_dropped_is_closed_when_it_is(mode: str) -> None:
    x = torch.arange(3.0)
    captured, _, _ = captured_with(left_waiting, breaks_at=MODES[mode])
    for _ in range(2):
        log: list[Any] = []
        assert same(captured(x, log), x + 1)
        assert log == ["closed", "after"]


def test_an_error_that_nothing_handles_is_a_break_under_fullgraph() -> None:
    with pytest.raises(GraphBreak, match=r"Refused\('no 2'\) is raised") as found:
        compile(unhandled, fullgraph=True)(torch.ones(2))
    assert found.value.kind.name == "exception_leaves"


def test_a_check_that_fails_under_fullgraph_tells_its_message() -> None:
    """Also if the size that it asks about is a symbol."""

    def program(x: Any) -> Any:
        torch._check(x.shape[0] > 3, lambda: "too few rows")
        return x + 1

    compiled = compile(program, backend="eager", fullgraph=True, dynamic=True)
    assert same(compiled(torch.ones(4)), torch.full((4,), 2.0))
    with pytest.raises(GraphBreak, match=r"RuntimeError\('too few rows'\) is raised"):
        compiled(torch.ones(3))


def has_it(value: Any, x: Any) -> Any:
    return x + 1 if hasattr(value, "scale") else x - 1


def test_an_attribute_that_was_not_there_is_guarded() -> None:
    captured, recorder, _ = captured_with(has_it)
    value, x = Plain(), torch.zeros(2)
    assert captured(value, x)[0] == -1
    value.scale = 2  # type: ignore[attr-defined]
    assert captured(value, x)[0] == 1
    asks = Asks()
    assert captured(asks, x)[0] == -1
    asks.scale = 2  # type: ignore[attr-defined]
    assert captured(asks, x)[0] == 1
    assert len(recorder.graphs) == 4


class FailsToCompile(Exception):
    pass


class Watched:
    """Notes what it is left with."""

    def __init__(self, log: list[Any], swallows: bool = False) -> None:
        self.log, self.swallows = log, swallows

    def __enter__(self) -> None:
        self.log.append("in")

    def __exit__(self, kind: Any, *_: Any) -> bool:
        self.log.append(kind)
        return self.swallows


@contextlib.contextmanager
def watched(log: list[Any]) -> Iterator[None]:
    log.append("in")
    try:
        yield
    except BaseException as error:
        log.append(type(error))
        raise
    else:
        log.append(None)


def stops(x: Any) -> None:
    print(end="")


def left_by_a_return(x: Any, log: list[Any]) -> Any:
    with watched(log):
        stops(x)
        y = x.sin()
        stops(x)
        return y.cos()


def stops_last(x: Any, log: list[Any]) -> Any:
    y = x.sin()
    with Watched(log), Watched(log):
        torch._dynamo.graph_break()
    return y.cos()


def one_in_another(x: Any, log: list[Any]) -> Any:
    with Watched(log):
        with watched(log):
            stops(x)
        return x.sin()


def in_a_loop(x: Any, log: list[Any]) -> Any:
    for _ in range(2):
        with Watched(log):
            if x.sum() > 100:
                x = x + 1
        x = x * 2
    return x


def after_a_handler(x: Any, log: list[Any]) -> Any:
    with Watched(log):
        try:
            stops(x)
            raise KeyError
        except KeyError:
            stops(x)
        return x.sin()


def under_another_mode(x: Any, log: list[Any]) -> Any:
    y = x.sin()
    with torch.no_grad(), Watched(log):
        stops(x)
        y = y * 2
        stops(x)
    return y


def left_after_a_write(x: Any, log: list[Any]) -> Any:
    with watched(log):
        stops(x)
        x.mul_(2)
        return torch.linalg.inv(x)


def failing_at(number: int) -> Callable[..., Any]:
    counted = iter(range(1, number + 1))

    def backend(graph: Any, _: Any) -> Any:
        if next(counted) == number:
            raise FailsToCompile
        return graph

    return backend


@pytest.mark.parametrize(
    "program", [left_by_a_return, stops_last, one_in_another, in_a_loop, after_a_handler, under_another_mode]
)
def test_what_is_open_is_left_where_a_segment_does_not_compile(program: Callable[..., Any]) -> None:
    seen: set[Any] = set()
    for number in range(1, 20):
        log: list[Any] = []
        try:
            compile(program, backend=failing_at(number))(torch.ones(2), log)
            failed = None
        except BackendCompilerFailed as error:
            failed = type(error)
        assert log.count("in") * 2 == len(log)
        assert torch.is_grad_enabled()
        seen.update(log)
        if failed is None:
            break
    assert seen == {"in", None, BackendCompilerFailed}


def test_a_with_may_swallow_that_a_segment_does_not_compile() -> None:
    def program(x: torch.Tensor, log: list[Any]) -> Any:
        with Watched(log, swallows=True):
            stops(x)
            return x.sin()
        return x.cos()

    log: list[Any] = []
    torch.testing.assert_close(compile(program, backend=failing_at(1))(torch.ones(2), log), torch.ones(2).cos())
    assert log == ["in", BackendCompilerFailed]


def test_what_is_open_is_left_where_a_graph_that_writes_raises() -> None:
    for function in (left_after_a_write, compile(left_after_a_write, backend="eager")):
        log: list[Any] = []
        with pytest.raises(torch.linalg.LinAlgError):
            function(torch.zeros(2, 2), log)
        assert log == ["in", torch.linalg.LinAlgError]


def chain(error: BaseException | None) -> list[str]:
    found = []
    while error is not None:
        found.append(str(error))
        error = error.__context__
    return found


@contextlib.contextmanager
def failing_behind(error: Exception) -> Iterator[None]:
    try:
        yield
    finally:
        raise error


def one_after_the_other(x: Any) -> Any:
    errors = [ValueError(str(number)) for number in range(4)]
    try:
        with contextlib.ExitStack() as stack:
            for error in reversed(errors[1:]):
                stack.enter_context(failing_behind(error))
            raise errors[0]
    except ValueError as error:
        return chain(error), x + 1


def handles_a_thrown_one() -> Iterator[None]:
    try:
        raise KeyError("first")
    except KeyError:
        yield


def thrown_while_it_handles(x: Any) -> Any:
    generator: Any = handles_a_thrown_one()
    next(generator)
    try:
        raise IndexError("around")
    except IndexError:
        try:
            generator.throw(ValueError("second"))
        except ValueError as error:
            return chain(error), x + 1


def divides(x: Any) -> Any:
    return x / (1 // 0)


def where_it_was_raised(x: Any) -> Any:
    try:
        divides(x)
    except ZeroDivisionError as error:
        entries, entry = [], error.__traceback__
        while entry is not None:
            entries.append((entry.tb_frame.f_code.co_name, entry.tb_lineno))
            entry = entry.tb_next
        return entries, x + 1


def nothing_to_raise_again(x: Any) -> Any:
    try:
        raise  # noqa: PLE0704 - that is what is tried
    except RuntimeError as error:
        return str(error), x + 1


def assigned_arguments(x: Any) -> Any:
    stop, missing = StopIteration("a"), KeyError(1)
    stop.value = "b"
    missing.args = (2, 3)
    return stop.value, stop.args, missing.args, repr(missing), x + 1


def ends_without_a_value(x: Any) -> Any:
    generator = numbers(0)
    try:
        next(generator)
    except StopIteration as stop:
        return repr(stop), stop.args, stop.value, x + 1


@pytest.mark.fractional
@IN_EVERY_MODE
@each_of(
    thrown_while_it_handles,
    assigned_arguments,
    ends_without_a_value,
    one_after_the_other,
    where_it_was_raised,
    nothing_to_raise_again,
)
def test_an_exception_has_the_context_and_the_traceback_of_eager(program: Callable[..., Any], mode: str) -> None:
    assert_same_as_eager(program, mode, [(torch.ones(2),)] * 2)
