"""Fleetcraft keeps shared GPU clusters honestly busy."""

__version__ = "0.1.0"
