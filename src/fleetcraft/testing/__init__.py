"""Shipped fakes for every seam: a clock that is set by hand, file systems that misbehave, actors that take turns."""
