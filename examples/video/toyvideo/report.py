"""Writes the study as one HTML file that needs nothing else: clips, figures, scores, timeline and outcomes.

Every text is escaped, and the page's own policy forbids all that is not in it: no name of a clip or task can do harm.
"""

from __future__ import annotations

import argparse
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from toyvideo.files import write_text
from toyvideo.metrics import METRICS, Metric
from toyvideo.report_about import about_section
from toyvideo.report_media import clip_table, figure_cards
from toyvideo.timeline import TimelineEntry, seconds_of, timeline_svg

HERE = Path(__file__).parent
KINDS = {
    "prepare": "autoencoder and true clips",
    "train": "train",
    "generate": "generate",
    "score": "score",
    "summarize": "summarize and plot",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What the report is made of."""

    summary: Mapping[str, Any]
    clips: Path
    plots: Path
    contact_sheet: Path
    timeline: Sequence[TimelineEntry] = ()
    states: Mapping[str, int] | None = None
    facts: Sequence[tuple[str, str]] = ()
    made_utc: str = ""
    ledgers: Sequence[Path] = ()
    gpu_page: str = ""


def build_report(study: Study) -> str:
    """Return the whole page."""
    style = (HERE / "report.css").read_text(encoding="utf-8")
    script = (HERE / "report.js").read_text(encoding="utf-8")
    # The script is allowed by its digest, so one that slipped in through a name would not run.
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    )
    body = "".join(
        [
            _header(study),
            _scores(study),
            _clips(study),
            _timeline(study),
            _ledger(study),
            about_section(study.made_utc, study.summary.get("provenance", {})),
        ]
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Toy video study</title><style>\n{style}</style></head>\n<body><main>{body}</main>"
        f"<script>{script}</script></body></html>\n"
    )


def _header(study: Study) -> str:
    arms = [arm for arm in study.summary["arms"] if arm["iterations"] is not None]
    made = sum(len(arm["clips"]) for arm in arms)
    lead = f"{len(arms)} training lengths, {made} generated clips, each judged from its pixels."
    tiles = [("generated clips", str(made)), *_run_tiles(study), *study.facts]
    cards = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>' for label, value in tiles
    )
    return (
        f'<p class="toy">{escape(str(study.summary["what"]))}</p>'
        "<h1>Does longer training follow the prompt better?</h1>"
        f'<p class="lead">{escape(lead)} {escape(_finding(arms))}</p><div class="tiles">{cards}</div>'
    )


def _finding(arms: Sequence[Mapping[str, Any]]) -> str:
    """Say the result in one sentence, from the figures."""
    parts = []
    for arm in arms:
        figure = arm["metrics"]["as_prompted"]
        if figure["value"] is not None:
            right = round(figure["value"] * figure["of"])
            parts.append(f"{right} of {figure['of']} after {arm['iterations']} iterations")
    return f"Right color and right direction: {', '.join(parts)}." if parts else ""


def _run_tiles(study: Study) -> list[tuple[str, str]]:
    tiles = []
    if study.states is not None:
        total = sum(study.states.values())
        tiles.append(("tasks succeeded", f"{study.states.get('succeeded', 0)} of {total}"))
    if study.timeline:
        others = sum(entry["outcome"] != "succeeded" for entry in study.timeline)
        spans = [(entry["start_utc"], entry["end_utc"]) for entry in study.timeline if entry["end_utc"]]
        busy_s = sum(seconds_of(end) - seconds_of(begin) for begin, end in spans)
        tiles.append(("attempts that did not succeed", str(others)))
        tiles.append(("of slot time used", f"{busy_s:.0f} s"))
    return tiles


def _scores(study: Study) -> str:
    head = "".join(
        f'<th scope="col" title="{escape(metric.meaning)}">{escape(metric.label)}</th>' for metric in METRICS
    )
    rows = []
    for arm in study.summary["arms"]:
        is_truth = arm["iterations"] is None
        note = "drawn, held out" if is_truth else f"{arm['iterations']} iterations"
        cells = "".join(_score_cell(metric, arm["metrics"][metric.key]) for metric in METRICS)
        rows.append(
            f'<tr class="{"truth" if is_truth else "arm"}"><th scope="row">{escape(str(arm["arm"]))} '
            f"<small>{escape(note)}</small></th>{cells}</tr>"
        )
    meanings = "".join(f"<dt>{escape(metric.label)}</dt><dd>{escape(metric.meaning)}</dd>" for metric in METRICS)
    return (
        f'<h2>Scores</h2><div class="scroll"><table><thead><tr><th scope="col">arm</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        '<p class="note">The truth went through the same codec and the same scorer: '
        "it shows what a perfect model would get.</p>"
        f'<div class="figures">{figure_cards(study.plots)}</div>'
        f"<details><summary>What each score means</summary><dl>{meanings}</dl></details>"
    )


def _score_cell(metric: Metric, figure: Mapping[str, Any]) -> str:
    text = metric.format(figure["value"])
    if figure["value"] is None:
        return f'<td title="{escape(str(figure["reason"]))}">{escape(text)}</td>'
    partial = "" if figure["measured"] == figure["of"] else f" <small>({figure['measured']} of {figure['of']})</small>"
    return f"<td>{escape(text)}{partial}</td>"


def _clips(study: Study) -> str:
    sheet = ""
    if study.contact_sheet.exists():
        data = b64encode(study.contact_sheet.read_bytes()).decode()
        sheet = (
            "<details><summary>Contact sheet</summary>"
            f'<img alt="Four frames of one clip for each prompt and arm" src="data:image/png;base64,{data}"></details>'
        )
    return (
        "<h2>Clips</h2><p>For the same prompt and seed, every arm starts from the same noise. "
        '<button id="play" type="button" hidden>Pause clips</button></p>'
        f'<div class="clips scroll">{clip_table(study.summary, study.clips)}</div>{sheet}'
    )


def _timeline(study: Study) -> str:
    kinds = [kind for kind in KINDS if any(entry["kind"] == kind for entry in study.timeline)]
    legend = "".join(f'<li><i class="{kind}"></i>{escape(KINDS[kind])}</li>' for kind in kinds)
    if any(entry["outcome"] != "succeeded" for entry in study.timeline):
        legend += '<li><i class="failed"></i>did not succeed</li>'
    return (
        f'<h2>What the slots did</h2><ul class="legend">{legend}</ul>'
        f'<div class="scroll">{timeline_svg(study.timeline)}</div>{_outcomes(study)}'
    )


def _outcomes(study: Study) -> str:
    """Count attempts by kind and outcome, and tasks by state."""
    counts = Counter((entry["kind"], entry["outcome"]) for entry in study.timeline)
    outcomes = sorted({outcome for _, outcome in counts}, key=lambda name: (name != "succeeded", name))
    kinds = sorted({kind for kind, _ in counts}, key=lambda kind: [*KINDS, kind].index(kind))
    head = "".join(f'<th scope="col">{escape(outcome)}</th>' for outcome in outcomes)
    rows = "".join(
        f'<tr><th scope="row">{escape(KINDS.get(kind, kind))}</th>'
        + "".join(f"<td>{counts[kind, outcome]}</td>" for outcome in outcomes)
        + "</tr>"
        for kind in kinds
    )
    states = ", ".join(f"{count} {escape(state)}" for state, count in (study.states or {}).items() if count)
    told = f"<p>Tasks by state: {states}.</p>" if states else ""
    table = f"<table><thead><tr><th>attempts</th>{head}</tr></thead><tbody>{rows}</tbody></table>" if counts else ""
    return f'<div class="outcomes scroll"><h2>Outcomes</h2>{told}{table}</div>'


def _ledger(study: Study) -> str:
    """What became of every second of the GPUs, as `fleetcraft gpu report` drew it."""
    if not study.ledgers:
        return ""
    images = "".join(
        f'<figure><h3>{"GPUs" if "gpu" in path.stem else "slots"}</h3><img alt="Bars of the ledger by class" '
        f'src="data:image/svg+xml;base64,{b64encode(path.read_bytes()).decode()}"></figure>'
        for path in study.ledgers
    )
    more = f'<a href="{escape(study.gpu_page)}">{escape(study.gpu_page)}</a>'
    return (
        "<h2>Where the time of the GPUs went</h2>"
        f'<div class="figures ledger">{images}</div>'
        f'<p class="note">Every allocated second is in one class. The GPUs of this demo are simulated. '
        f"Timeline, wastes and tasks: {more}, beside this file.</p>"
    )


def main(argv: list[str] | None = None) -> int:
    """Write the report from files."""
    parser = argparse.ArgumentParser(prog="toyvideo.report", description="Write the toy study's HTML report.")
    parser.add_argument("--summary", type=Path, required=True, help="summary.json; the contact sheet lies beside it")
    parser.add_argument("--clips", type=Path, required=True, help="the folder with one folder of clips for each arm")
    parser.add_argument("--plots", type=Path, required=True, help="the folder with the figures")
    parser.add_argument(
        "--timeline", type=Path, help="JSON: list of {task, slot, worker, start_utc, end_utc, outcome, kind}"
    )
    parser.add_argument("--out", type=Path, required=True, help="the HTML file to write")
    arguments = parser.parse_args(argv)
    study = Study(
        summary=json.loads(arguments.summary.read_text(encoding="utf-8")),
        clips=arguments.clips,
        plots=arguments.plots,
        contact_sheet=arguments.summary.parent / "contact-sheet.png",
        timeline=json.loads(arguments.timeline.read_text(encoding="utf-8")) if arguments.timeline else (),
    )
    write_text(arguments.out, build_report(study))
    print(f"report written to {arguments.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
