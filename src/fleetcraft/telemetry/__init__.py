"""What the GPUs of this host are and do, behind one seam; every value may be absent, with a reason."""
