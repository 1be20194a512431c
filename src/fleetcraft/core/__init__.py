"""Words without I/O: names, states, records, resources, decisions, the outcome fold, the clock and the errors."""
