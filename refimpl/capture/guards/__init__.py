"""When a segment may be used again: where objects are read from (`sources`), and what has to hold of them (`guard_list`)."""
