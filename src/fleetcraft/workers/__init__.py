"""The one process per node that claims tasks and runs them on its slots."""
