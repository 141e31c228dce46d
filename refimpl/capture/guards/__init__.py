"""When a segment may be used again: where objects are read from (`sources`), and the conditions on them (`guard_list`)."""
