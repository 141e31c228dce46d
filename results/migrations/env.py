"""Run by alembic: the migrations go over the connection that `results.migrations.upgrade` gives, in its transaction."""

from __future__ import annotations

from alembic import context

from results.schema import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
context.run_migrations()
