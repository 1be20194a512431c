"""A toy video study: a numpy latent video diffusion model on procedural clips of moving discs.

It is a workload with a known right answer, not a video model that anyone should use.
"""

from __future__ import annotations

import os

TOY_LABEL = "toy latent video diffusion on procedural clips"

# The matrices are small: threads of the linear algebra would wait for one another most of the time (60 times slower
# was seen on a busy machine). It reads these once, when numpy is imported, which every module here does later.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
