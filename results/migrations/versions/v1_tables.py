"""Version 1: the tables of the first schema. A database without alembic's table has this version.

It is never run: a new database is made from `results.schema` as it is today.
"""

from __future__ import annotations

revision = "v1"
down_revision = None


def upgrade() -> None:
    """Nothing to do: the tables were there before the migrations were."""
