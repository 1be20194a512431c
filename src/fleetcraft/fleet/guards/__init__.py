"""Rules asked before a fleet grows. Each looks at evidence gathered elsewhere, and refuses what it cannot read."""
