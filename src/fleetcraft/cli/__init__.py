"""The command line: parse what a person typed, look through readmodel, act through actions, print one answer."""
