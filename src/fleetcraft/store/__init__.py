"""Files: the seam to the file system, whole-or-nothing publication, and journals with one writer."""
