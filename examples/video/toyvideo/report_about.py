"""Says in the report what the toy is, what its figures cannot tell, and where its methods come from."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

PARAGRAPHS = (
    (
        "A workload that behaves like a study of a video generator and has a known right answer. Clips of 16 frames, "
        "32 by 32 pixels, show one disc in one of three colors that moves in one of four directions. The autoencoder "
        "is a principal component analysis of such clips, with 64 numbers for each clip. The denoiser is a network of "
        "three layers, trained on v-prediction with a cosine schedule, and sampled by 24 DDIM steps with "
        "classifier-free guidance. All of it is numpy on the CPU. A GPU that a task holds is only reserved for it, "
        "and may be simulated. The arms differ only in the number of training iterations."
    ),
    (
        "It says nothing about real video models. With two dozen clips in an arm, a share near one half is "
        "uncertain by about 20 points of 100, and small differences in the other scores mean little. A score can "
        "also be good for a poor reason: a model that has only learned the mean speed shows a smaller speed error "
        "than the true clips, whose speeds vary."
    ),
)
SOURCES = (
    ("latent diffusion", "Rombach et al. 2022", "https://arxiv.org/abs/2112.10752"),
    ("cosine noise schedule", "Nichol and Dhariwal 2021", "https://arxiv.org/abs/2102.09672"),
    ("v-prediction", "Salimans and Ho 2022", "https://arxiv.org/abs/2202.00512"),
    ("classifier-free guidance", "Ho and Salimans 2022", "https://arxiv.org/abs/2207.12598"),
    ("DDIM sampling", "Song, Meng and Ermon 2021", "https://arxiv.org/abs/2010.02502"),
    ("Adam", "Kingma and Ba 2015", "https://arxiv.org/abs/1412.6980"),
    ("Fréchet distance between feature distributions", "Heusel et al. 2017", "https://arxiv.org/abs/1706.08500"),
)


def about_section(made_utc: str, provenance: Mapping[str, str]) -> str:
    """Return the closing part of the page."""
    told = "".join(f"<p>{escape(paragraph)}</p>" for paragraph in PARAGRAPHS)
    sources = "".join(
        f'<li>{escape(what)}: <a href="{escape(url)}">{escape(who)}</a></li>' for what, who, url in SOURCES
    )
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in provenance.items())
    traced = f"<details><summary>What the summarizing task ran under</summary><dl>{rows}</dl></details>" if rows else ""
    made = f'<p class="soft">Made {escape(made_utc)}.</p>' if made_utc else ""
    return f"<h2>What this toy is</h2>{told}{traced}<h2>Sources of the methods</h2><ul>{sources}</ul>{made}"
