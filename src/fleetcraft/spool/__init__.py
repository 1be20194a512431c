"""The spool: batches of tasks, tokens that say who may run them, and one folder per worker life."""
