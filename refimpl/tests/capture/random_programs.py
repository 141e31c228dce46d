"""Random programs of loops, exceptions, `with`, generators and closures, that write down where they have been."""

from __future__ import annotations

import random
from collections.abc import Callable

_PRELUDE = """
class Stop(Exception): pass
class Manager:
    def __init__(self, log, name, swallows, fails): self.log, self.name, self.swallows, self.fails = log, name, swallows, fails
    def __enter__(self):
        self.log.append(("enter", self.name))
        if self.fails: raise KeyError(self.name)
        return self.name
    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", self.name, kind and kind.__name__))
        return self.swallows
"""
_ERRORS = ("ValueError", "KeyError", "Stop", "IndexError")


def random_program(rng: random.Random) -> str:
    """Source that defines `program()`, which returns what it has written down, or raises."""
    return _Writer(rng).program()


class _Writer:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.lines: list[str] = []
        self.places = 0
        self.budget = 45

    def program(self) -> str:
        """A few functions that call each other, and one that calls them all."""
        names = [f"f{index}" for index in range(self.rng.randint(1, 3))]
        generators = {name: self.rng.random() < 0.4 for name in names}
        for index, name in enumerate(names):
            self.budget = 25
            self.line(0, f"def {name}(log, n):")
            self.line(1, "x = n")
            self.callees = [(other, generators[other]) for other in names[:index]]
            self.block(1, loop=False, generator=generators[name])
            if generators[name]:
                self.line(1, "yield x")
            self.line(1, f"return {self.expression()}")
        self.line(0, "def program():")
        self.line(1, "log = []")
        for name in names:
            for n in (0, 1, 3):
                self.line(1, "try:")
                call = f"{name}(log, {n})"
                self.line(2, f"log.append({'list(' + call + ')' if generators[name] else call})")
                self.line(1, "except Exception as e:")
                self.line(2, "log.append((repr(e), repr(e.__cause__), repr(e.__context__)))")
        if self.rng.random() < 0.5:
            call = f"{names[-1]}(log, 2)"
            self.line(1, f"log.append({'next(' + call + ')' if generators[names[-1]] else call})")
        self.line(1, "return log")
        return _PRELUDE + "\n".join(self.lines) + "\n"

    def line(self, depth: int, text: str) -> None:
        self.lines.append("    " * depth + text)

    def place(self) -> int:
        self.places += 1
        return self.places

    def expression(self) -> str:
        p = self.place()
        return self.rng.choice(
            [
                "x", "n", f"x + {p}", f"(x, {p})", f"[q * 2 for q in range(n) if q != {p % 3}]", f"x if n > {p % 4} else {p}",
                f"(lambda y={p}: (x, y, n))()", "{k: v for k, v in zip('ab', range(n))}", f"f'{{n}}-{{x!r:>3}}-{p}'",
                f"n and {p} or x", f"[*range(n), {p}]", f"sum(q + n for q in range({p % 4}))", f"n < {p % 3} < 5",
            ]
        )  # fmt: skip

    def condition(self) -> str:
        p = self.place()
        return self.rng.choice(
            [
                f"n > {p % 4}",
                f"n == {p % 4}",
                f"not n % {p % 3 + 2}",
                f"n and {p % 2}",
                f"log and len(log) % {p % 4 + 2} == 0",
            ]
        )

    def block(self, depth: int, *, loop: bool, generator: bool) -> None:
        for _ in range(self.rng.randint(1, 3)):
            self.statement(depth, loop=loop, generator=generator)

    def statement(self, depth: int, *, loop: bool, generator: bool) -> None:
        self.budget -= 1
        simple: list[Callable[[int], None]] = [self.log, self.assign, self.maybe_raise, self.call]
        kinds = simple * 2
        if generator:
            kinds += [self.yields, self.yields]
        if self.budget > 0 and depth < 7:
            kinds += [self.branch, self.tries, self.tries, self.finals, self.withs, self.loops, self.closure]
            self.context = (loop, generator)
        if loop:
            kinds += [self.leave_loop]
        kinds += [self.returns]
        self.context = (loop, generator)
        self.rng.choice(kinds)(depth)

    def inner(self, depth: int, *, loop: bool | None = None) -> None:
        outer_loop, generator = self.context
        kept = self.context
        self.block(depth + 1, loop=outer_loop if loop is None else loop, generator=generator)
        self.context = kept

    def log(self, depth: int) -> None:
        self.line(depth, f"log.append(({self.place()}, {self.expression()}))")

    def assign(self, depth: int) -> None:
        self.line(depth, f"x = {self.expression()}")

    def maybe_raise(self, depth: int) -> None:
        error = self.rng.choice(_ERRORS)
        self.line(depth, f"if {self.condition()}:")
        cause = self.rng.choice(["", "", " from None", f" from {self.rng.choice(_ERRORS)}('cause')"])
        self.line(
            depth + 1, self.rng.choice([f"raise {error}({self.place()}){cause}", "raise", "x = 1 / 0", "x.missing"])
        )

    def call(self, depth: int) -> None:
        if not self.callees:
            return self.log(depth)
        name, is_generator = self.rng.choice(self.callees)
        call = f"{name}(log, n - 1)" if self.rng.random() < 0.7 else f"{name}(log, 2)"
        self.line(depth, f"x = {'list(' + call + ')' if is_generator else call}")
        return None

    def yields(self, depth: int) -> None:
        generators = [name for name, is_generator in self.callees if is_generator]
        if generators and self.rng.random() < 0.5:
            self.line(depth, f"x = yield from {self.rng.choice(generators)}(log, n - 1)")
        else:
            self.line(depth, f"x = yield ({self.place()}, x)")

    def branch(self, depth: int) -> None:
        self.line(depth, f"if {self.condition()}:")
        self.inner(depth)
        if self.rng.random() < 0.5:
            self.line(depth, "else:")
            self.inner(depth)

    def tries(self, depth: int) -> None:
        self.line(depth, "try:")
        self.inner(depth)
        for error in self.rng.sample(_ERRORS, self.rng.randint(1, 2)):
            name = self.rng.choice(["", " as e"])
            self.line(depth, f"except {error}{name}:")
            self.inner(depth)
            if self.rng.random() < 0.3:
                self.line(depth + 1, "raise")
        if self.rng.random() < 0.3:
            self.line(depth, "except Exception:")
            self.inner(depth)
        if self.rng.random() < 0.3:
            self.line(depth, "else:")
            self.inner(depth)
        if self.rng.random() < 0.4:
            self.line(depth, "finally:")
            self.inner(depth)

    def finals(self, depth: int) -> None:
        self.line(depth, "try:")
        self.inner(depth)
        self.line(depth, "finally:")
        self.inner(depth)

    def withs(self, depth: int) -> None:
        swallows, fails = self.rng.random() < 0.4, self.rng.random() < 0.1
        self.line(depth, f"with Manager(log, {self.place()}, {swallows}, {fails}) as w:")
        self.inner(depth)

    def loops(self, depth: int) -> None:
        if self.rng.random() < 0.7:
            self.line(depth, f"for i{depth} in range(n + {self.rng.randint(0, 2)}):")
        else:
            self.line(depth, f"c{depth} = {self.rng.randint(1, 3)}")
            self.line(depth, f"while c{depth} > 0:")
            self.line(depth + 1, f"c{depth} -= 1")
        self.inner(depth, loop=True)
        if self.rng.random() < 0.3:
            self.line(depth, "else:")
            self.inner(depth)

    def closure(self, depth: int) -> None:
        name = f"g{self.place()}"
        self.line(depth, f"def {name}(a, *b, k={self.place()}):")
        self.line(depth + 1, "nonlocal x")
        self.line(depth + 1, f"x = (a, b, k, {self.expression()})")
        self.line(depth + 1, "return x")
        self.line(depth, f"log.append({name}({self.expression()}, *range(n)))")

    def leave_loop(self, depth: int) -> None:
        self.line(depth, f"if {self.condition()}: {self.rng.choice(['break', 'continue'])}")

    def returns(self, depth: int) -> None:
        self.line(depth, f"if {self.condition()}: return {self.expression()}")
