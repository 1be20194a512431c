"""The scheduler jobs that are kept alive to run workers: submitted, renewed, grown, drained and accounted for."""
