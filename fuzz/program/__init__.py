"""The structured program: its parts, rendering to Python text, parsing, and edits that several passes use."""
