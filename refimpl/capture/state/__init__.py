"""What is noted while a segment is captured: its graph, guards on what was there before, and changes of it."""
