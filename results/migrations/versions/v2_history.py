"""Version 2: what queries over many runs need.

Facts of a run, its suites and subjects become columns of `runs`. `issue` and `observed` move from `extra` to columns of
`records`. One index finds a case in all runs, another one counts a run without reading its records.
"""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "v2"
down_revision = "v1"

_FACTS = {
    "torch": (("worker", "torch"), ("versions", "torch"), ("torch",)),
    "torch_git": (("worker", "torch_git"),),
    "triton": (("versions", "triton"),),
    "machine": (("worker", "devices", 0, "name"), ("cpu_model",), ("machine",), ("platform",)),
}
_MOVED = ("issue", "observed")
_BATCH = 5000


def upgrade() -> None:
    """Add the columns and indices, and fill the columns."""
    for name in (*_FACTS, "command"):
        op.add_column("runs", sa.Column(name, sa.Text, nullable=False, server_default=""))
    for name in ("suites", "subjects"):
        op.add_column("runs", sa.Column(name, sa.Text, nullable=False, server_default="[]"))
    for name in _MOVED:
        op.add_column("records", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.create_index("cases_by_id", "cases", ["case_id", "run"])
    op.drop_index("records_by_status", "records")
    op.create_index("records_by_status_and_speed", "records", ["run", "status", "speedup"])
    connection = op.get_bind()
    _fill_runs(connection)
    _fill_records(connection)


def _fill_runs(connection: sa.Connection) -> None:
    for run, environment in connection.execute(sa.text("SELECT run, environment FROM runs")).all():
        known = json.loads(environment)
        values = {
            name: next((str(v) for path in paths if (v := _at(known, path))), "") for name, paths in _FACTS.items()
        }
        for name, column in (("suites", "suite"), ("subjects", "subject")):
            labels = connection.execute(
                sa.text(f"SELECT {column} FROM cases WHERE run = :run GROUP BY {column} ORDER BY min(ordinal)"),
                {"run": run},
            )
            values[name] = json.dumps(labels.scalars().all())
        assignments = ", ".join(f"{name} = :{name}" for name in values)
        connection.execute(sa.text(f"UPDATE runs SET {assignments} WHERE run = :run"), {**values, "run": run})


def _at(data: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        try:
            data = data[key]
        except (LookupError, TypeError):
            return None
    return data


def _fill_records(connection: sa.Connection) -> None:
    query = sa.text(
        "SELECT run, ordinal, extra FROM records WHERE extra LIKE '%\"issue\"%' OR extra LIKE '%\"observed\"%'"
    )
    update = sa.text(
        "UPDATE records SET issue = :issue, observed = :observed, extra = :extra WHERE run = :run AND ordinal = :ordinal"
    )
    rows = [row._asdict() for row in connection.execute(query)]
    for start in range(0, len(rows), _BATCH):
        moved = []
        for row in rows[start : start + _BATCH]:
            extra = json.loads(row["extra"])
            verdict = extra.get("verdict", {})
            values = {name: verdict.pop(name, "") for name in _MOVED}
            if not verdict:
                extra.pop("verdict", None)
            moved.append({**row, **values, "extra": json.dumps(extra) if extra else ""})
        connection.execute(update, moved)
