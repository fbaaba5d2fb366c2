"""What makes the tables of earlier versions of those of today, for tests of migrations."""

from __future__ import annotations

WITHOUT_TURNS = """
DROP INDEX sessions_by_turn;
ALTER TABLE sessions DROP COLUMN turn;
CREATE INDEX sessions_by_change ON sessions (changed_s DESC) WHERE deleted_s IS NULL;
"""
"""Version 5."""
