"""The toy's report: one file that needs nothing else, says what is missing, and escapes every text."""

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest

from toyvideo import plot, report, score, summarize
from toyvideo.clips import PROMPTS, draw_clip, draw_clips, to_bytes
from toyvideo.frechet import fit_features
from toyvideo.report import Study, build_report
from toyvideo.timeline import find_stretches, timeline_svg
from toyvideo.video import write_clip

HOSTILE = "<script>alert(1)</script>\"'&"
VOID = {"meta", "br", "img", "input", "link"}


class Page(HTMLParser):
    """Collects what a browser would load or run, and whether the tags are balanced."""

    def __init__(self, text):
        super().__init__()
        self.open, self.loads, self.tags, self.links, self.ids = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.loads += [values[name] for name in ("src", "data", "poster") if values.get(name)]
        if tag in ("link", "use", "image"):
            self.loads += [value for name, value in attrs if name.endswith("href")]
        if tag == "a":
            self.links.append(values["href"])
        assert not [name for name in values if name.startswith("on")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def entry(task="t", slot="gpu-0", worker="w1", start=0.0, end=1.0, outcome="succeeded", kind="generate"):
    def stamp(at_s):
        minutes, seconds = divmod(at_s, 60)
        return f"2026-01-02T{int(minutes) // 60:02d}:{int(minutes) % 60:02d}:{seconds:06.3f}Z"

    return {
        "task": task,
        "slot": slot,
        "worker": worker,
        "start_utc": stamp(start),
        "end_utc": stamp(end),
        "outcome": outcome,
        "kind": kind,
    }


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small study: true clips, and one arm with one good, one wrong, one black and one damaged clip."""
    root = tmp_path_factory.mktemp("study")
    features = fit_features(draw_clips(3, 1234)[0])
    rng = np.random.default_rng(1)
    clips = [to_bytes(draw_clip(prompt, rng)) for prompt in PROMPTS[:4]]
    for index, prompt in enumerate(PROMPTS[:4]):
        facts = {"prompt": prompt.text, "seed": "0"}
        write_clip(root / "clips/truth" / f"{prompt.slug}-0.mp4", clips[index], facts)
        shown = [clips[0], clips[0], np.zeros_like(clips[0]), clips[0]][index]
        write_clip(root / "clips/short" / f"{prompt.slug}-0.mp4", shown, facts)
    (root / "clips/short" / f"{PROMPTS[3].slug}-0.mp4").write_bytes(b"damaged")
    scores = [
        score.score_arm(arm, sorted((root / "clips" / arm).glob("*.mp4")), features) for arm in ("truth", "short")
    ]
    summary = summarize.build_summary(scores, [])
    summary["arms"][1].update(iterations=150, loss=[1.0, 0.8, 0.7])
    summarize.write_contact_sheet(root / "contact-sheet.png", root / "clips", ["truth", "short"])
    plot.plot_all(summary, root / "plots")
    return Study(summary=summary, clips=root / "clips", plots=root / "plots", contact_sheet=root / "contact-sheet.png")


def rebuilt(study, **changes):
    fields = ("summary", "clips", "plots", "contact_sheet")
    return build_report(Study(**{**{name: getattr(study, name) for name in fields}, **changes}))


def test_the_report_holds_all_that_it_shows(study):
    text = rebuilt(study, timeline=[entry()], states={"succeeded": 1})
    page = Page(text)

    assert page.open == []
    assert page.loads
    # Drawings may refer to their own parts.
    assert all(load.startswith(("data:", "#")) for load in page.loads)
    assert len(page.ids) == len(set(page.ids))
    assert {load[1:] for load in page.loads if load.startswith("#")} <= set(page.ids)
    assert page.tags.count("video") == 7
    assert page.tags.count("svg") == 7
    assert "url(http" not in text
    assert "@import" not in text
    assert all(link.startswith("https://arxiv.org/") for link in page.links)


def test_the_report_calls_itself_a_toy_and_tells_the_result(study):
    text = rebuilt(study)

    assert "toy latent video diffusion" in text
    assert "1 of 4 after 150 iterations" in text
    assert "No attempt has been recorded yet." in text


def test_the_report_says_what_is_wrong_or_missing(study, tmp_path):
    text = rebuilt(study, plots=tmp_path, contact_sheet=tmp_path / "none.png")

    assert "✗ direction" in text
    assert "✗ color and direction" in text
    assert "a colored disc is visible in 0 of 16 frames" in text
    assert "not a readable clip" in text
    assert text.count("not drawn") == 6
    assert "file is gone" in rebuilt(study, clips=tmp_path)


def test_every_text_is_escaped(study):
    summary = json.loads(json.dumps(study.summary))
    summary["what"] = HOSTILE
    summary["arms"][1]["arm"] = HOSTILE
    summary["prompts"][0] = HOSTILE
    summary["provenance"] = {HOSTILE: HOSTILE}
    for row in summary["arms"][0]["clips"]:
        row.update(prompt=HOSTILE, seed=HOSTILE, file=HOSTILE, color=HOSTILE, color_ok=False)
    for metric in ("frechet", "flicker"):
        summary["arms"][1]["metrics"][metric].update(value=None, reason=HOSTILE)
    timeline = [entry(task=HOSTILE, slot=HOSTILE, worker=HOSTILE, outcome=HOSTILE, kind=HOSTILE)]

    text = rebuilt(
        study, summary=summary, timeline=timeline, states={HOSTILE: 1}, facts=[(HOSTILE, HOSTILE)], made_utc=HOSTILE
    )
    page = Page(text)

    assert "<script>alert" not in text
    assert page.tags.count("script") == 1
    assert page.open == []
    assert "&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#x27;&amp;" in text


def test_only_the_pages_own_script_may_run(study):
    text = rebuilt(study)

    assert re.search(r"default-src 'none'; .*script-src 'sha256-[A-Za-z0-9+/=]{44}'\"", text)
    assert text.count("<script") == 1


def test_the_figures_take_the_colors_of_the_page(study):
    text = rebuilt(study)

    figures = text[text.index('<div class="figures">') : text.index("What each score means")]
    assert "var(--accent)" in figures
    assert plot.TEXT not in figures
    assert plot.ACCENT not in figures


def test_the_figures_are_the_same_each_time(study, tmp_path):
    for path in plot.plot_all(study.summary, tmp_path):
        assert path.read_bytes() == (study.plots / path.name).read_bytes()


def test_the_table_as_csv_has_a_line_for_each_arm_and_metric(study):
    lines = summarize.summary_csv(study.summary).splitlines()

    assert lines[0] == "arm,iterations,metric,value,clips_measured,clips,reason"
    assert len(lines) == 1 + 2 * 8
    assert "short,150,as_prompted,0.25,4,4," in lines


def test_the_command_writes_the_page(study, tmp_path):
    (tmp_path / "summary.json").write_text(json.dumps(study.summary))
    (tmp_path / "timeline.json").write_text(json.dumps([entry(task="clip-short-1")]))
    arguments = ["--summary", tmp_path / "summary.json", "--clips", study.clips, "--plots", study.plots]

    assert (
        report.main(
            [*map(str, arguments), "--timeline", str(tmp_path / "timeline.json"), "--out", str(tmp_path / "r.html")]
        )
        == 0
    )

    assert "clip-short-1: succeeded, 1.00 s" in (tmp_path / "r.html").read_text()


def test_a_long_pause_between_two_lives_is_cut_and_named():
    svg = timeline_svg([entry(start=0, end=2), entry(start=7202, end=7204, worker="w2")])

    assert "paused 2.0 h" in svg
    places = [float(x) for x in re.findall(r'<rect class="bar[^"]*" x="([0-9.]+)"', svg)]
    assert len(places) == 2
    assert places[0] < places[1] < 1160


def test_stretches_share_the_width_and_do_not_overlap():
    stretches = find_stretches([(0.0, 1.0), (0.5, 3.0), (100.0, 101.0), (500.0, 500.0)])

    assert [(s.begin_s, s.end_s) for s in stretches] == [(0.0, 3.0), (100.0, 101.0), (500.0, 500.001)]
    for before, after in pairwise(stretches):
        assert before.right < after.left
    assert stretches[-1].right == pytest.approx(1150.0)


def test_an_attempt_that_did_not_succeed_stands_out(study):
    timeline = [entry(), entry(task="clip-9", outcome="lost", start=1, end=2)]

    text = rebuilt(study, timeline=timeline)

    assert text.count("bar kind-generate bad") == 1
    assert "clip-9: lost, 1.00 s" in text
    assert '<th scope="col">lost</th>' in text
    assert "did not succeed" in text
