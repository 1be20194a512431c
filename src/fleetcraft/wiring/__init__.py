"""Puts what looks and what acts together, for commands that do both again and again."""
