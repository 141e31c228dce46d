"""triage: the way from a wrong program, of a record or of a user's file, to a report that a maintainer accepts."""
