"""One file for each version of the schema, run in the order of their `down_revision`."""
