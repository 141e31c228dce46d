"""Looks up the traced and partitioned program of a compile in the cache, and keeps it there.

`counters["aot_autograd"]` counts under upstream's names: autograd_cache_hit, autograd_cache_miss, autograd_cache_guard_miss,
autograd_cache_bypass, autograd_cache_saved. `counters["autograd_cache_bypass"]` and `counters["autograd_cache_miss"]` count by
reason. The logger `refimpl.compile_cache` has a line for each.

Counterpart: torch/_functorch/_aot_autograd/autograd_cache.py AOTAutogradCache.try_load, save
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import sympy

from refimpl._torch import FakeTensorMode, without_fake_mode
from refimpl.aot.analysis.fake_arguments import fake_mode_for
from refimpl.aot.compile_program import PartitionedProgram
from refimpl.aot.functional_program import ProgramRequest
from refimpl.aot.options import current_settings
from refimpl.capture.public.counters import counters
from refimpl.compile_cache import store
from refimpl.compile_cache.bypass import Bypass, Reason
from refimpl.compile_cache.environment import FORMAT
from refimpl.compile_cache.key import key_of, shape_env_of
from refimpl.compile_cache.records import program_record, to_partitioned
from refimpl.errors import RefimplError
from refimpl.export.archive.errors import ArchiveError, strings, typed
from refimpl.export.archive.expressions import to_expression
from refimpl.export.archive.symbols import SymbolWriter
from refimpl.symbolic.facts import FactState
from refimpl.symbolic.ranges import EmptyRange
from refimpl.symbolic.shape_env import ShapeEnv

LOG = logging.getLogger("refimpl.compile_cache")
MOST_PROGRAMS = 8  # programs of one key, which differ in their guards
ABSENT, DAMAGED, MALFORMED, GUARDED = "no file", "unusable file", "unreadable program", "guards"
# What malformed content may raise besides ArchiveError.
_MALFORMED = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, RefimplError, RuntimeError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip


def place_of(request: ProgramRequest) -> Place | None:
    """The place of a request in the cache. None, counted by its reason, if the request cannot be kept."""
    try:
        return Place(request)
    except Bypass as bypass:
        _count_bypass(bypass)
        return None


def _count_bypass(bypass: Bypass) -> None:
    counters["aot_autograd"]["autograd_cache_bypass"] += 1
    counters["autograd_cache_bypass"][bypass.reason.value] += 1
    LOG.info("compiled without the cache: %s", bypass)


class Place:
    """The place of one request. The symbols and guards that it has now tell later what a trace has added."""

    def __init__(self, request: ProgramRequest) -> None:
        """Raises Bypass."""
        self.key = key_of(request)
        self._request = request
        self._env = shape_env_of(request.args)
        self._others: list[Any] = []  # records of programs for other sizes
        self._start = None if self._env is None else _Start.of(self._env)

    def load(self) -> PartitionedProgram | None:
        """The program that a process has kept here. None if there is none, its file is unusable, or its guards do not hold."""
        try:
            record = store.read(store.folder_of(current_settings()), self.key, FORMAT)
        except (OSError, store.Unusable) as reason:
            return self._miss(DAMAGED, reason)
        if record is None:
            return self._miss(ABSENT, "")
        try:
            with without_fake_mode():
                kept = typed(record, list, "the file")
                serving = next(((one, guards) for one in kept if (guards := self._guards(one)) is not None), None)
                if serving is None:
                    counters["aot_autograd"]["autograd_cache_guard_miss"] += 1
                    self._others = kept[: MOST_PROGRAMS - 1]
                    return self._miss(GUARDED, "sizes that no kept program is for")
                self._add(serving[1])
                found = self._program(serving[0])
        except _MALFORMED as error:
            return self._miss(MALFORMED, error)
        counters["aot_autograd"]["autograd_cache_hit"] += 1
        LOG.info("loaded %s", self.key)
        return found

    def save(self, partitioned: PartitionedProgram) -> None:
        """Keep a program, unless a part of it cannot be kept. Its graphs must be as the partitioner made them."""
        settings = current_settings()
        try:
            record = self._record(partitioned)
        except Bypass as bypass:
            _count_bypass(bypass)
            return
        try:
            records = [record, *self._others]
            store.write(store.folder_of(settings), self.key, FORMAT, records, settings.autograd_cache_bytes)
        except (OSError, ValueError) as error:  # ValueError: a path that the system cannot have
            LOG.warning("%s is not kept: %s", self.key, error)
            return
        counters["aot_autograd"]["autograd_cache_saved"] += 1
        LOG.info("kept %s", self.key)

    def _miss(self, reason: str, detail: object) -> None:
        counters["aot_autograd"]["autograd_cache_miss"] += 1
        counters["autograd_cache_miss"][reason] += 1
        level = logging.INFO if reason in (ABSENT, GUARDED) else logging.WARNING
        LOG.log(level, "miss of %s: %s: %s", self.key, reason, detail)

    def _mode(self) -> tuple[FakeTensorMode, ShapeEnv]:
        mode = fake_mode_for(self._request.args, dynamic=self._request.config.dynamic_shapes)
        env: Any = mode.shape_env
        assert isinstance(env, ShapeEnv)
        return mode, env

    def _program(self, record: Any) -> PartitionedProgram:
        mode, env = self._mode()
        return to_partitioned(record["program"], mode, env)

    def _record(self, partitioned: PartitionedProgram) -> dict[str, Any]:
        """The record, which must be that of the program read from it. Raises Bypass."""
        env = self._env
        guards = [] if env is None or self._start is None else self._start.guards_since(env)
        try:
            with without_fake_mode():
                record = {"guards": [SymbolWriter(env).expression(guard) for guard in guards]}
                record |= {"program": program_record(partitioned, env)}
                again = program_record(self._program(record), env)
        except _MALFORMED as error:
            raise Bypass(Reason.NOT_KEPT, str(error).splitlines()[0] if str(error) else error) from error
        if again != record["program"]:
            raise Bypass(Reason.NOT_KEPT, "a program that is read as another one")
        return record

    # ------------------------------------------------------------------------------------------------------------ guards

    def _guards(self, record: Any) -> list[Any] | None:
        """The guards that the trace of the kept program added; None if one does not hold for the sizes of the request."""
        texts = strings(record, "guards", "the file")
        if not texts:
            return []
        env = self._env
        if env is None:
            raise ArchiveError(seen="guards", expected="none: no size is a symbol")
        symbols = {str(symbol): symbol for symbol in env.facts.ranges}
        guards = [to_expression(text, symbols) for text in texts]
        return guards if all(env.hint_of(guard, bool) is True for guard in guards) else None

    def _add(self, guards: list[Any]) -> None:
        for guard in guards:
            try:
                answer = self._env.evaluate_expr(guard) if self._env is not None else sympy.true
            except EmptyRange as error:
                raise ArchiveError(
                    seen=f"the guard {guard}: {error}", expected="one that agrees with the others"
                ) from error
            if answer is not sympy.true:
                raise ArchiveError(seen=f"the guard {guard}, which is {answer}", expected="one that holds")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """What a ShapeEnv knows before a trace."""

    symbols: frozenset[Any]
    num_guards: int
    facts: FactState

    @classmethod
    def of(cls, env: ShapeEnv) -> _Start:
        return cls(symbols=frozenset(env.facts.ranges), num_guards=len(env.guards), facts=env.facts.copy())

    def guards_since(self, env: ShapeEnv) -> list[Any]:
        """The guards that a trace has added. Raises Bypass if it has learnt anything that does not follow from them."""
        if frozenset(env.facts.ranges) != self.symbols or env.unbacked or env.deferred_runtime_asserts:
            raise Bypass(Reason.UNBACKED)
        added = env.guards[self.num_guards :]
        if any(guard.size_oblivious for guard in added):
            raise Bypass(Reason.NOT_KEPT, "a guard that holds for sizes of two and more")
        facts = self.facts.copy()
        for guard in added:
            facts.learn(guard.expr)
        for condition, is_true in env.facts.known.items():
            if condition not in self.facts.known and facts.decide(condition) is not is_true:
                raise Bypass(Reason.NOT_KEPT, f"a fact without a guard: {condition} is {is_true}")
        return [guard.expr for guard in added]
