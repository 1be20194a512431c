"""Batch schedulers behind one seam: what is asked for, what they answered, and what the answer is worth."""
