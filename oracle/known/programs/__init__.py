"""Programs that show known issues, one per file. They are data: read by oracle.known.ledger, executed by workers."""
