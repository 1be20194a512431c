"""Imports the toy before any test here imports numpy, because it bounds the threads that numpy then starts."""

import toyvideo

assert toyvideo.TOY_LABEL
