"""ACT: the one door through which every surface changes a spool."""
