"""Puts figures and clips into the page itself, as inline SVG and as base64 MP4."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any

FIGURES = {
    "as_prompted": ("As prompted", "right color and direction, share of all clips"),
    "frechet": ("Fréchet distance", "to held-out clips, lower is better"),
    "speed_error": ("Speed error", "share of the true mean speed, lower is better"),
    "sharpness": ("Sharpness", "of the disc's rim, best when near the truth"),
    "flicker": ("Flicker", "change of color per frame, lower is better"),
    "loss": ("Training loss", "mean squared error of v"),
}
# The figures' own palette, exchanged for the page's, which knows light and dark.
_PALETTE = {
    "#24292f": "currentColor",
    "#d0d7de": "var(--grid)",
    "#0b62c4": "var(--accent)",
    "#9a5b00": "var(--truth)",
    "#8fbaf0": "var(--arm-1)",
    "#3f8ae0": "var(--arm-2)",
    "#0b4f9e": "var(--arm-3)",
}


def figure_cards(plots: Path) -> str:
    """Return one card for each figure; a figure that is not there says so."""
    cards = []
    for key, (title, note) in FIGURES.items():
        path = plots / f"{key}.svg"
        drawing = inline_svg(path.read_text(encoding="utf-8"), title) if path.exists() else "<p>not drawn</p>"
        cards.append(f"<figure><h3>{escape(title)}</h3><figcaption>{escape(note)}</figcaption>{drawing}</figure>")
    return "".join(cards)


def inline_svg(text: str, label: str) -> str:
    """Return the drawing without prolog, metadata and style sheet, in the colors and font of the page."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'font-family: [^;"]*;? ?', "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", text, count=1)
    text = text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)
    for color, variable in _PALETTE.items():
        text = text.replace(color, variable)
    return text


def clip_table(summary: Mapping[str, Any], clips: Path) -> str:
    """Return a table with one row for each prompt and one column for each arm."""
    arms, prompts = summary["arms"], summary["prompts"]
    head = "".join(f'<th scope="col">{escape(str(arm["arm"]))}</th>' for arm in arms)
    rows = []
    for prompt in prompts:
        cells = []
        for arm in arms:
            wanted = [row for row in arm["clips"] if row.get("prompt") == prompt]
            shown = "".join(_clip(clips / str(arm["arm"]) / row["file"], row) for row in wanted)
            cells.append(f"<td>{shown}</td>")
        rows.append(f'<tr><th scope="row">{escape(prompt)}</th>{"".join(cells)}</tr>')
    unreadable = [
        f"{arm['arm']}/{row['file']}: {row['reasons']['readable']}"
        for arm in arms
        for row in arm["clips"]
        if not row["readable"]
    ]
    told = "".join(f"<li>{escape(line)}</li>" for line in unreadable)
    note = f"<p>Clips that could not be read:</p><ul>{told}</ul>" if told else ""
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>{note}"


def _clip(path: Path, row: Mapping[str, Any]) -> str:
    verdict = _verdict(row)
    if not path.exists():
        return f'<div class="clip"><div class="gone">file is gone</div>{verdict}</div>'
    data = b64encode(path.read_bytes()).decode()
    label = escape(f"{row['prompt']}, seed {row['seed']}")
    # Without the script, the attributes alone make the clip play.
    video = f'<video autoplay muted loop playsinline width="96" height="96" aria-label="{label}" title="{label}"'
    return f'<div class="clip">{video} src="data:video/mp4;base64,{data}"></video>{verdict}</div>'


def _verdict(row: Mapping[str, Any]) -> str:
    wrong = [what for what in ("color", "direction") if not row[f"{what}_ok"]]
    if not wrong:
        return "<span>✓ as prompted</span>"
    found = "; ".join(f"{what}: {row[what] or row['reasons'].get(f'{what}_ok', 'not measured')}" for what in wrong)
    return f'<span class="no" title="{escape(found)}">✗ {" and ".join(wrong)}</span>'
