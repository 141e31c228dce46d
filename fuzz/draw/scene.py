"""Scene: a program under construction, executed statement by statement. A statement that eager refuses is dropped.

The live values show what the next statement can use: shapes, dtypes, strides, and which tensors share memory. The scene also
keeps programs defined: it allows no write through a tensor whose elements overlap, and no read of memory that is partly
overwritten.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzz.draw.choices import Draw
from fuzz.draw.geometry import overlaps_itself, partly_overlap, share_storage
from fuzz.draw.inputs.shapes import draw_broadcastable, draw_pool, draw_shape
from fuzz.draw.inputs.specs import draw_dtype, draw_spec
from fuzz.draw.settings import Settings
from fuzz.program.render import render_operand, render_statement
from fuzz.program.structure import Block, Definition, FuzzProgram, OpCall, Operand, Ref, StateEntry, Statement
from oracle.observe.flatten import flatten
from oracle.program.inputs import decode

Condition = Callable[[torch.Tensor], bool]
# Exceptions of torch and Python for a statement that is invalid.
REFUSALS = (
    RuntimeError,
    IndexError,
    ValueError,
    TypeError,
    NotImplementedError,
    KeyError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    NameError,  # a name that is bound in a branch that was not taken
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something outside of the program that a call plan may change before a later call (`Call.before`)."""

    kind: str  # "global", "class attribute", "module attribute", ...
    name: str  # occurs in the source of a program that depends on it: "SCALE0", "self.w0"
    texts: tuple[str, ...]  # alternative statements that change it; run in the source's namespace, with `target`
    restore: str = ""  # the statement that restores it; "" if there is none


@dataclass(slots=True, kw_only=True, eq=False)
class _Region:
    """A `with` statement under construction: the statements from `start` on are its body."""

    start: int
    expression: str
    manager: contextlib.AbstractContextManager[Any] | None = None  # while entered

    def enter(self, namespace: dict[str, Any]) -> None:
        self.manager = eval(self.expression, namespace)
        assert self.manager is not None
        self.manager.__enter__()

    def leave(self) -> None:
        if self.manager is not None:
            self.manager.__exit__(None, None, None)
            self.manager = None


class Scene:
    """Live values by name, in the order of their creation."""

    def __init__(self, draw: Draw, settings: Settings, *, seed: int) -> None:
        self.draw = draw
        self.settings = settings
        self.seed = seed
        self.sizes = draw_pool(draw)
        self.specs: dict[str, Any] = {}  # input of the calls -> its spec, in order
        self.arguments: list[str] = []  # of the function; the names of the inputs, except those made by `derive`
        self.derive: list[Statement] = []
        self.statements: list[Statement] = []
        self.definitions: list[Definition] = []
        self.state: list[StateEntry] | None = None
        self.families: dict[str, None] = {}
        self.changes: list[Change] = []
        self.alternatives: dict[str, tuple[Any, ...]] = {}  # argument -> other specs it may have at a later call
        self.values: dict[str, torch.Tensor] = {}
        self.scalars: dict[str, bool | int | float] = {}  # Python numbers that are arguments or were computed
        self.is_random = False
        self._namespace: dict[str, Any] = {"torch": torch}
        self._counter = 0
        self._regions: list[_Region] = []
        torch.default_generator.manual_seed(seed)

    # ---------------------------------------------------------------------------------------------------- arguments

    def add_argument(self, spec: Any, *, name: str | None = None) -> str:
        """A new argument of the function, whose spec refers to no other; its value joins the scene."""
        name = name or f"a{len(self.arguments)}"
        self.specs[name] = spec
        self.arguments.append(name)
        self._bind(name, decode(spec, seed=self.seed))
        return name

    def add_arguments(self, specs: Sequence[Any]) -> list[str]:
        """New arguments that share memory with one another; before the first statement."""
        assert not self.statements, "arguments that share memory, but the program has begun"
        names = [f"a{len(self.arguments) + number}" for number in range(len(specs))]
        self.specs.update(zip(names, specs, strict=True))
        self.arguments += names
        self._rebuild()
        return names

    def add_input(self, spec: Any) -> str:
        """A new input that is not an argument, for `derive_arguments`. Its value does not join the scene."""
        name = f"r{len(self.specs)}"
        self.specs[name] = spec
        self._namespace[name] = decode(spec, seed=self.seed)
        return name

    def derive_arguments(self, statements: Sequence[Statement], names: Sequence[str]) -> bool:
        """Make arguments from inputs by statements that run before each call. Call it before the program's first statement.

        Returns False, with the scene unchanged, if eager refuses.
        """
        assert not self.statements, f"arguments {names} are derived, but the program has begun"
        before = len(self.derive), len(self.arguments)
        self.derive += statements
        self.arguments += names
        try:
            self._rebuild()
        except REFUSALS:
            del self.derive[before[0] :], self.arguments[before[1] :]
            self._rebuild()
            return False
        return True

    def forget_arguments(self, count: int) -> None:
        """Keep only the first `count` arguments; drops those added for a statement that eager refused."""
        for name in self.arguments[count:]:
            self.specs.pop(name, None)
            self.alternatives.pop(name, None)
            self.values.pop(name, None)
            self.scalars.pop(name, None)
            self._namespace.pop(name, None)
        del self.arguments[count:]

    def new_tensor(
        self,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        *,
        domain: str = "any",
        requires_grad: bool | None = None,
        layouts: Sequence[str] = (),
    ) -> str:
        """A new argument; properties that are not given are drawn."""
        draw = self.draw
        if shape is None:
            shape = draw_shape(draw, self.sizes, max_numel=self.settings.max_numel)
        if dtype is None:
            dtype = draw_dtype(draw, self.settings.dtypes)
        if requires_grad is None:
            requires_grad = draw.chance(0.35)
        return self.add_argument(
            draw_spec(draw, shape, dtype, domain=domain, requires_grad=requires_grad, layouts=layouts)
        )

    # ------------------------------------------------------------------------------------------------------- picking

    def pick(self, condition: Condition = lambda tensor: True) -> str | None:
        """A live tensor that fulfils the condition, newest results more often. None if there is none."""
        names = [name for name, tensor in self.values.items() if condition(tensor)]
        if not names:
            return None
        results = [name for name in names if name.startswith("v")]  # not arguments that were added late
        return self.draw.choice(results[-2:] if results and self.draw.chance(0.65) else names)

    def tensor(
        self,
        condition: Condition = lambda tensor: True,
        *,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        domain: str = "any",
        layouts: Sequence[str] = (),
        fresh: float = 0.1,
    ) -> str:
        """A live tensor that fits, or (with probability `fresh`, and if none fits) a new argument.

        A new argument has the given shape and dtype; the caller must make sure that it fulfils `condition`. A `domain` other than
        "any" applies to new arguments only: where a kernel needs it, use a function of a live tensor (`.abs() + 0.1`,
        `.sigmoid()`) as the alternative.
        """

        def fits(tensor: torch.Tensor) -> bool:
            return (
                (shape is None or tuple(tensor.shape) == tuple(shape))
                and (dtype is None or dtype_name(tensor) == dtype)
                and condition(tensor)
            )

        name = None if domain != "any" or self.draw.chance(fresh) else self.pick(fits)
        return name or self.new_tensor(shape, dtype, domain=domain, layouts=layouts)

    def target(self, condition: Condition = lambda tensor: True) -> str | None:
        """A tensor that can be written to: not empty, without overlapping elements, and autograd would notice the write."""
        return self.pick(
            lambda tensor: (
                tensor.numel() > 0
                and condition(tensor)
                and not overlaps_itself(tensor)
                and not self.is_saved_elsewhere(tensor)
            )
        )

    def is_saved_elsewhere(self, tensor: torch.Tensor) -> bool:
        """Whether autograd may have saved this memory through another tensor, and would not notice a write through this one.

        This happens for arguments that share a storage without being views of each other: eager's backward then uses whatever is
        in that memory.
        """
        values = self.values.values()
        if not self.statements or not any(value.requires_grad for value in values):
            return False
        family = _base(tensor)
        return any(_base(other) is not family and share_storage(other, tensor) for other in values)

    def operand_for(self, target: str) -> Operand:
        """A source for a write to the target: a tensor that broadcasts to it, or a number."""
        tensor = self.values[target]

        def fits(other: torch.Tensor) -> bool:
            return (
                other is not tensor
                and torch.can_cast(other.dtype, tensor.dtype)
                and other.dim() <= tensor.dim()
                and all(m in (1, n) for m, n in zip(reversed(other.shape), reversed(tensor.shape), strict=False))
                and not partly_overlap(other, tensor)
            )

        if self.draw.chance(0.2):
            return self.scalar(tensor)
        name = self.pick(fits)
        if name is None:
            shape = draw_broadcastable(self.draw, tensor.shape)
            name = self.new_tensor(shape, dtype_name(tensor))
        return Ref(name)

    def number(self, tensor: torch.Tensor) -> bool | int | float:
        """A Python number that may be combined with a tensor of this dtype without changing it."""
        if tensor.dtype is torch.bool:
            return self.draw.chance(0.5)
        if tensor.is_floating_point() or tensor.is_complex():
            return self.draw.choice((2.0, 0.5, -1.0, 0.0, 3, 1.7, -0.0))
        return self.draw.choice((2, 1, 3, 0) if tensor.dtype is torch.uint8 else (2, -1, 3, 0))

    def scalar(self, tensor: torch.Tensor) -> Operand:
        """A number, or a live Python scalar, that may be combined with a tensor of this dtype without changing it."""
        kinds: tuple[type, ...] = (bool,)
        if tensor.dtype is not torch.bool:
            kinds = (int, float) if tensor.is_floating_point() or tensor.is_complex() else (int,)
        fitting = [name for name, value in self.scalars.items() if type(value) in kinds]
        return Ref(self.draw.choice(fitting)) if fitting and self.draw.chance(0.5) else self.number(tensor)

    # ------------------------------------------------------------------------------------------------------- writing

    def fresh(self) -> str:
        """An unused name."""
        self._counter += 1
        return f"v{self._counter - 1}"

    def define(self, definition: Definition) -> None:
        """Execute a definition at module level and keep it. Raises what it raises."""
        exec(compile(definition.text, "<definition>", "exec"), self._namespace)
        self.definitions.append(definition)

    def add(self, statements: Statement | Iterable[Statement]) -> bool:
        """Execute and keep statements. False, with the scene unchanged, if eager refuses or a result grows too large."""
        added = [statements] if not isinstance(statements, Iterable) else list(statements)
        before = len(self.statements)
        try:
            for statement in added:
                self._execute(statement)
                self.statements.append(statement)
            is_kept = self._is_small(added)
            self._forget_unusable()
        except REFUSALS:
            is_kept = False
        if not is_kept:
            # Statements that ran before the refusal may have had effects: build the scene again without them.
            del self.statements[before:]
            self._rebuild()
        return is_kept

    @contextlib.contextmanager
    def region(self, expression: str) -> Iterator[None]:
        """A context: statements added inside are the body of `with expression:`, and run in it."""
        opened = _Region(start=len(self.statements), expression=expression)
        self._regions.append(opened)
        opened.enter(self._namespace)
        try:
            yield
        finally:
            opened.leave()
            self._regions.remove(opened)
            body = tuple(self.statements[opened.start :])
            del self.statements[opened.start :]
            if body:
                self.statements.append(Block(header=f"with {expression}:", body=body))

    def _execute(self, statement: Statement) -> None:
        source = "\n".join(render_statement(statement))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(compile(source, "<statement>", "exec"), self._namespace)
        for name in statement.results:
            if name in self._namespace:
                self._bind(name, self._namespace[name])
        for name in statement.uses if isinstance(statement, OpCall) else ():
            if name in self.values and name in self._namespace:
                self._bind(name, self._namespace[name])  # an in-place operator may have rebound it
        if self.state is not None:
            for name in (*statement.uses, *statement.results):
                if name.startswith("self."):
                    self._bind_state(name)

    def _bind(self, name: str, value: Any) -> None:
        self._namespace[name] = value
        if name.startswith("_"):
            return  # a result that must not be used: indices of equal elements, workspaces
        if isinstance(value, torch.Tensor):
            if is_usable(value):
                self.values[name] = value
        elif isinstance(value, (bool, int, float)):
            self.scalars[name] = value

    def _forget_unusable(self) -> None:
        for name in [name for name, tensor in self.values.items() if not is_usable(tensor)]:
            del self.values[name]

    def _is_small(self, statements: Sequence[Statement]) -> bool:
        names = [name for statement in statements for name in statement.results]
        return all(
            self.values[name].numel() <= 4 * self.settings.max_numel and self.values[name].dim() <= 8
            for name in names
            if name in self.values
        )

    def _rebuild(self) -> None:
        for region in reversed(self._regions):
            region.leave()
        self._namespace = {"torch": torch}
        self.values, self.scalars = {}, {}
        torch.default_generator.manual_seed(self.seed)
        for definition in self.definitions:
            exec(compile(definition.text, "<definition>", "exec"), self._namespace)
        if self.state is not None:
            self._make_state()
        self._make_arguments()
        for number, statement in enumerate(self.statements):
            for region in self._regions:
                if region.start == number:
                    region.enter(self._namespace)
            self._execute(statement)
        for region in self._regions:
            if region.start >= len(self.statements):
                region.enter(self._namespace)
        self._forget_unusable()

    def _make_arguments(self) -> None:
        inputs = zip(self.specs, decode([*self.specs.values()], seed=self.seed), strict=True)
        self._namespace.update(inputs)
        for statement in self.derive:
            exec(compile("\n".join(render_statement(statement)), "<derive>", "exec"), self._namespace)
        for name in self.arguments:
            self._bind(name, self._namespace[name])

    # -------------------------------------------------------------------------------------------------------- module

    def become_module(self, entries: Sequence[StateEntry]) -> None:
        """Make the program a module with this state. Call it before the first statement; raises what building it raises."""
        self.state = list(entries)
        self._make_state()

    def add_state(self, entry: StateEntry) -> None:
        """Add a line to the module's `__init__`, and execute it. Raises what it raises."""
        assert self.state is not None, f"state {entry.name} of a function"
        self._make_entry(entry)
        self.state.append(entry)

    def _make_state(self) -> None:
        self._namespace["self"] = torch.nn.Module()
        assert self.state is not None
        for entry in self.state:
            self._make_entry(entry)

    def _make_entry(self, entry: StateEntry) -> None:
        exec(compile(entry.text, "<state>", "exec"), self._namespace)
        self._bind_state(entry.name)

    def _bind_state(self, name: str) -> None:
        value = getattr(self._namespace["self"], name.removeprefix("self."), None)
        if isinstance(value, torch.Tensor) and is_usable(value):
            self.values[name] = value
        elif isinstance(value, (bool, int, float)):
            self.scalars[name] = value

    # --------------------------------------------------------------------------------------------------------- result

    def wants_gradients(self) -> bool:
        """Whether the program computes something that requires a gradient."""
        has_state = self.state is not None and bool(self.state)
        return has_state or any(value.requires_grad for value in self.values.values())

    def accepts_backward(self, result: Operand) -> bool:
        """Whether backward works from the result and the written arguments. It frees the graphs, so call it last."""
        arguments = [self._namespace[name] for name in self.arguments]
        leaves, _ = flatten([eval(render_operand(result), self._namespace), arguments], "")
        outputs = {id(leaf.value): leaf.value for leaf in leaves if isinstance(leaf.value, torch.Tensor)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._goes_back([*outputs.values()])

    def _goes_back(self, outputs: Sequence[torch.Tensor]) -> bool:
        try:
            roots = [tensor for tensor in outputs if tensor.requires_grad]  # asking may raise
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(tensor) for tensor in roots])
        except REFUSALS:
            return False
        return True

    def to_program(self, result: Operand, **fields: Any) -> FuzzProgram:
        """The current program; `fields` may add a call plan."""
        return FuzzProgram(
            arguments=tuple(self.arguments),
            inputs=tuple(self.specs) if self.derive else (),
            derive=tuple(self.derive),
            statements=tuple(self.statements),
            result=result,
            definitions=tuple(self.definitions),
            state=None if self.state is None else tuple(self.state),
            seed=self.seed,
            families=tuple(self.families),
            **fields,
        )


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _base(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def is_usable(tensor: torch.Tensor) -> bool:
    """False for a view made under no_grad whose base was written to later: autograd refuses to use it."""
    try:
        tensor.grad_fn  # noqa: B018 - asking is what may raise
    except RuntimeError:
        return False
    return True
