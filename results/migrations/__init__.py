"""Migrations of a results database, by alembic: one file of `versions` for each version of the schema.

`results.engine` runs them when it opens an older database for writing. A migration changes tables and moves data; the views are
dropped before and made anew after it.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from results.kept import keep_missing
from results.schema import REVISION

FIRST = "v1"  # the revision of a database without alembic's table


def upgrade(connection: sa.Connection) -> None:
    """Bring the tables up to date, in the connection's transaction, and keep with each run what comparisons need of it."""
    if REVISION.name not in sa.inspect(connection).get_table_names():
        REVISION.create(connection)
        connection.execute(sa.insert(REVISION), [{"version_num": FIRST}])
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
    keep_missing(connection)
