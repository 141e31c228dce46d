"""The structured program: its parts, its text, the way back from text, and changes that several passes make."""
