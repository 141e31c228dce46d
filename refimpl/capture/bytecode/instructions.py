"""The instruction set that the bytecode of all supported versions of CPython is translated to.

Counterpart: torch/_dynamo/bytecode_transformation.py Instruction
Differs: one set of operations for all versions. It has no NULLs below callables, no caches, block stacks, exception triples or
positions to resume at (`lasti`), and no fused or specialised operations. Each instruction says which handler covers it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, auto
from types import CodeType
from typing import Any


class Op(IntEnum):
    """What an instruction does. `[a, b] -> [c]` names the values it pops (top last) and those it pushes; its argument follows."""

    # The stack itself
    POP = auto()  # [v] -> []
    COPY = auto()  # pushes the n-th value from the top again
    SWAP = auto()  # exchanges the top and the n-th value from the top
    LOAD_CONST = auto()  # [] -> [v]; the value

    # Local variables; the argument is a slot. From MAKE_CELL on, the slot of a cell or free variable holds the cell
    LOAD_FAST = auto()
    STORE_FAST = auto()
    DELETE_FAST = auto()
    LOAD_FAST_AND_CLEAR = auto()  # also loads an unbound variable; STORE_FAST restores it
    MAKE_CELL = auto()
    LOAD_DEREF = auto()
    STORE_DEREF = auto()
    DELETE_DEREF = auto()
    LOAD_FROM_DICT_OR_DEREF = auto()  # [mapping] -> [v]

    # Names; the argument is the name
    LOAD_GLOBAL = auto()
    STORE_GLOBAL = auto()
    DELETE_GLOBAL = auto()
    LOAD_NAME = auto()
    STORE_NAME = auto()
    DELETE_NAME = auto()
    LOAD_LOCALS = auto()  # [] -> [mapping of names in a class body or module]
    LOAD_FROM_DICT_OR_GLOBALS = auto()  # [mapping] -> [v]

    # Attributes and items
    LOAD_ATTR = auto()  # [object] -> [v]
    STORE_ATTR = auto()  # [v, object] -> []
    DELETE_ATTR = auto()  # [object] -> []
    LOAD_SUPER_ATTR = auto()  # [super, class, self] -> [v]; (name, whether super was called with arguments)
    BINARY_SUBSCR = auto()  # [object, key] -> [v]
    STORE_SUBSCR = auto()  # [v, object, key] -> []
    DELETE_SUBSCR = auto()  # [object, key] -> []

    # Operators
    UNARY = auto()  # [a] -> [v]; "-", "+", "~", "not"
    BINARY = auto()  # [a, b] -> [v]; "+", "+=", ...
    COMPARE = auto()  # [a, b] -> [v]; "<", "==", ...
    IS = auto()  # [a, b] -> [bool]; whether inverted
    CONTAINS = auto()  # [a, b] -> [bool]; whether inverted

    # Containers and strings; the argument is the number of items, or how deep below the operand the container is
    BUILD_TUPLE = auto()
    BUILD_LIST = auto()
    BUILD_SET = auto()
    BUILD_MAP = auto()  # [k, v, k, v, ...] -> [dict]
    BUILD_CONST_KEY_MAP = auto()  # [v, v, ..., keys] -> [dict]
    BUILD_SLICE = auto()
    BUILD_STRING = auto()
    LIST_APPEND = auto()  # [v] -> []
    SET_ADD = auto()  # [v] -> []
    MAP_ADD = auto()  # [k, v] -> []
    LIST_EXTEND = auto()  # [iterable] -> []
    SET_UPDATE = auto()  # [iterable] -> []
    DICT_UPDATE = auto()  # [mapping] -> []
    DICT_MERGE = auto()  # [mapping] -> []; the function to be called is two below the dict
    LIST_TO_TUPLE = auto()  # [list] -> [tuple]
    UNPACK_SEQUENCE = auto()  # [v] -> [last, ..., first]
    UNPACK_EX = auto()  # the same, with a list among the values; (how many before the list, how many after)
    CONVERT = auto()  # [v] -> [str]; "s", "r" or "a"
    FORMAT = auto()  # [v] or [v, spec] -> [str]; whether there is a spec

    # Jumps and returns; the argument is the target
    JUMP = auto()
    POP_JUMP_IF_TRUE = auto()  # [v] -> []
    POP_JUMP_IF_FALSE = auto()
    POP_JUMP_IF_NONE = auto()
    POP_JUMP_IF_NOT_NONE = auto()
    GET_ITER = auto()  # [v] -> [iterator]
    FOR_ITER = auto()  # [iterator] -> [iterator, v], or [] and a jump when the iterator is exhausted
    RETURN_VALUE = auto()  # [v] -> []; v goes to the caller

    # Generators
    YIELD_VALUE = auto()  # [v] -> [what is sent]; whether `yield from` passes on a value of another generator
    GET_YIELD_FROM_ITER = auto()  # [v] -> [iterator]
    SEND = auto()  # [receiver, v] -> [receiver, the value it yields], or [the value it returns] and a jump

    # Calls and definitions
    CALL = auto()  # [function, argument, ...] -> [v]; how many arguments
    CALL_KW = auto()  # [function, argument, ..., names of the last arguments] -> [v]; how many arguments
    CALL_EX = auto()  # [function, arguments] or [function, arguments, keywords] -> [v]; whether there are keywords
    MAKE_FUNCTION = auto()  # [code] -> [function]
    SET_FUNCTION_ATTRIBUTE = auto()  # [v, function] -> [function]; which attribute
    LOAD_BUILD_CLASS = auto()  # [] -> [`__build_class__`]
    IMPORT_NAME = auto()  # [level, names] -> [module]; its name
    IMPORT_FROM = auto()  # [module] -> [module, v]; the name

    # Exceptions. The exception that the frame handles is part of the frame's state
    RAISE = auto()  # [] or [exception] or [exception, cause]; how many
    RERAISE = auto()  # [exception] -> raises it with the traceback it has
    PUSH_EXC_INFO = auto()  # [exception] -> [exception handled before, exception]; now handles exception
    POP_EXCEPT = auto()  # [exception handled before] -> []; handles that one again
    CHECK_EXC_MATCH = auto()  # [exception, class or tuple] -> [exception, bool]
    CHECK_GROUP_MATCH = auto()  # [exception, class or tuple] -> [rest, matching part or None]
    PREPARE_RERAISE_STAR = auto()  # [original group, list] -> [exception or None]
    CLEANUP_THROW = auto()  # [receiver, sent, exception] -> [None, value of a StopIteration]; raises other exceptions
    STOP_ITERATION_ERROR = auto()  # [exception] -> [the exception, or RuntimeError in place of StopIteration]
    WITH_ENTER = auto()  # [manager] -> [its bound __exit__, result of __enter__]
    WITH_EXCEPT_START = auto()  # [..., exception] -> [..., exception, result of __exit__]; how deep `__exit__` is

    # Patterns
    MATCH_MAPPING = auto()  # [v] -> [v, bool]
    MATCH_SEQUENCE = auto()  # [v] -> [v, bool]
    MATCH_KEYS = auto()  # [v, keys] -> [v, keys, tuple of values or None]
    MATCH_CLASS = auto()  # [v, class, names] -> [tuple of attributes or None]; how many positional patterns
    GET_LEN = auto()  # [v] -> [v, len(v)]
    DICT_WITHOUT_KEYS = auto()  # [v, keys] -> [v, dict]

    # Operations of modules, class bodies and type declarations only: by name, with one or two operands
    STATEMENT = auto()  # [] -> []; "annotations"
    INTRINSIC_1 = auto()  # [v] -> [v]; "print", "import_star", "typevar", ...
    INTRINSIC_2 = auto()  # [v, w] -> [v]; "typevar_with_bound", ...


JUMPS = frozenset(
    {
        Op.JUMP, Op.POP_JUMP_IF_TRUE, Op.POP_JUMP_IF_FALSE, Op.POP_JUMP_IF_NONE, Op.POP_JUMP_IF_NOT_NONE, Op.FOR_ITER, Op.SEND,
    }
)  # fmt: skip
# Control never reaches the instruction after one of these.
ENDS = frozenset({Op.JUMP, Op.RETURN_VALUE, Op.RAISE, Op.RERAISE})
# Exceptions cannot come from these, so no handler is recorded for them.
CANNOT_RAISE = frozenset(
    {
        Op.POP, Op.COPY, Op.SWAP, Op.LOAD_CONST, Op.STORE_FAST, Op.LOAD_FAST_AND_CLEAR, Op.MAKE_CELL, Op.STORE_DEREF,
        Op.JUMP, Op.RETURN_VALUE, Op.PUSH_EXC_INFO, Op.POP_EXCEPT, Op.BUILD_TUPLE, Op.BUILD_LIST, Op.LIST_APPEND,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Handler:
    """The handler of an exception: the stack is cut to `depth` values, the exception is pushed, and control goes to `target`."""

    target: int
    depth: int


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction. `line` is the user's; `offset` is that of the instruction in `co_code` it came from, which several may
    share.
    """

    op: Op
    arg: Any
    line: int | None
    offset: int
    handler: Handler | None = None

    def __str__(self) -> str:
        arg = "" if self.arg is None else f" {self.arg!r}"
        handler = "" if self.handler is None else f"  ! {self.handler.target} at {self.handler.depth}"
        return f"{self.op.name}{arg}{handler}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NormalizedCode:
    """A code object in this instruction set. Jumps and handlers hold indices into `instructions`."""

    code: CodeType
    instructions: tuple[Instruction, ...]
    slots: tuple[str, ...]  # names: arguments and other locals, then cells that are no arguments, then free variables
    cells: frozenset[int]  # slots of cell variables
    first_free: int  # the first slot of the free variables
    is_generator: bool

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.code.co_name

    def __str__(self) -> str:
        targets = {i.arg for i in self.instructions if i.op in JUMPS} | {
            i.handler.target for i in self.instructions if i.handler
        }
        lines = [f"{self.name} ({self.code.co_filename}:{self.code.co_firstlineno})"]
        for index, instruction in enumerate(self.instructions):
            mark = ">>" if index in targets else "  "
            lines.append(f"{instruction.line or '':>5} {mark} {index:>4} {instruction}")
        return "\n".join(lines)
