"""The screen of `gpu top`, driven by keys as a person would."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace

import pytest
from textual.widgets import DataTable, Input, Static

from fleetcraft.cli.gpu_top_app import TopApp
from fleetcraft.core.errors import OutOfReach
from tests.support.gpu_pictures import BUSY, FREE, HELD, picture, segment, served


@pytest.fixture
def seen(tmp_path):
    segment(tmp_path / "t", "n1", BUSY, HELD)
    segment(tmp_path / "t", "n2", FREE, age_s=400)
    lives = [served("n1", ["GPU-n1-0", "GPU-n1-1"], running=[{"task": "1.0", "gpus": ["GPU-n1-0"]}])]
    lives.append(served("n2", ["GPU-n2-0"]))
    return replace(picture(tmp_path / "t", served=lives), at_utc=time.time())


def drive(app: TopApp, *script) -> None:
    """Run the app without a terminal; each step is a key, or a check."""

    async def run() -> None:
        async with app.run_test(size=(140, 30)) as pilot:
            for _ in range(200):
                await pilot.pause(0.01)
                if app.picture is not None or text_of(app, "#head") != "reading ...":
                    break
            for step in script:
                if asyncio.iscoroutinefunction(step):
                    await step()
                elif isinstance(step, str):
                    await pilot.press(step)
                    await pilot.pause()
                else:
                    step()

    asyncio.run(run())


def wait_for(holds):
    """A step that waits until something holds."""

    async def step() -> None:
        deadline_s = time.monotonic() + 10
        while not holds():
            assert time.monotonic() < deadline_s, "it never came"
            await asyncio.sleep(0.01)

    return step


def text_of(app: TopApp, name: str) -> str:
    content = app.query_one(name, Static).content
    return getattr(content, "plain", str(content))


def rows(app: TopApp) -> list[str]:
    table = app.query_one(DataTable)
    return [
        " ".join(cell.plain.strip() for cell in table.get_row_at(at) if cell.plain.strip())
        for at in range(table.row_count)
    ]


def test_hosts_head_their_gpus_and_a_silent_one_says_so(seen):
    app = TopApp(lambda: seen)

    def check():
        shown = rows(app)
        assert len(shown) == 5
        assert shown[0].startswith("n1 2 s 7 2 GPUs: 1 working, 1 reserved-idle")
        assert shown[1].startswith("0 working")
        assert shown[1].endswith("1.0")
        assert shown[3].startswith("n2 SILENT 6m")
        assert "unreachable" in shown[4]
        assert "95 %" in shown[1]
        assert "2 of 3 GPUs on 1 of 2 hosts report" in text_of(app, "#head")

    drive(app, check)


def test_a_filter_is_written_refused_and_cleared(seen):
    app = TopApp(lambda: seen)

    def type_text(text):
        def step():
            app.query_one("#filter", Input).value = text

        return step

    drive(
        app, "slash", type_text("class=working"), "enter", lambda: assert_equal(len(rows(app)), 2),
        lambda: assert_in("only class=working", text_of(app, "#head")),
        "slash", type_text("colour=red"), "enter", lambda: assert_equal(len(rows(app)), 2),
        "escape", lambda: assert_equal(len(rows(app)), 5),
    )  # fmt: skip


def assert_equal(one, other):
    assert one == other


def assert_in(part, whole):
    assert part in whole


def test_sorting_goes_round_and_keeps_the_chosen_row(seen):
    app = TopApp(lambda: seen)

    def chosen(word):
        return lambda: assert_in(word, text_of(app, "#about"))

    drive(
        app, "down", "down", chosen("n1 GPU 1"), "s", "s", lambda: assert_equal(rows(app)[-1].split()[0], "n2"),
        lambda: assert_in("by util", text_of(app, "#head")), chosen("n1 GPU 1"),
        "r", lambda: assert_in("95 %", rows(app)[0]),
    )  # fmt: skip


def test_a_pause_reads_nothing_and_export_writes_what_is_shown(seen, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    looks = []

    def look():
        looks.append(1)
        return seen

    app = TopApp(look, interval_s=0.02, filter_text="class=working", now=lambda: seen.at_utc)
    before = []
    drive(
        app,
        "p",
        lambda: before.append(len(looks)),
        "down",
        "down",
        lambda: assert_in("paused", text_of(app, "#head")),
        "e",
    )
    assert len(looks) - before[0] <= 1
    (written,) = tmp_path.glob("gpu-top-*.json")
    document = json.loads(written.read_text())
    assert (document["schema"], document["filter"], document["totals"]["gpus"]) == (
        "fleetcraft.gpu.top/1",
        "class=working",
        1,
    )


def test_a_look_that_fails_keeps_the_screen_and_says_so(seen):
    answers = iter([seen])

    def look():
        try:
            return next(answers)
        except StopIteration:
            raise OutOfReach("the storage did not answer") from None

    app = TopApp(look)
    drive(app, app._tick, wait_for(lambda: "the storage did not answer" in text_of(app, "#head")))
    assert app.picture is seen


def test_names_are_shown_as_they_are_and_never_as_markup(tmp_path):
    segment(tmp_path / "t", "n1", BUSY, job="x")
    lives = [served("n1", ["GPU-n1-0"], job="[red]7[/red]", running=[{"task": "[b]t\x1b[31m", "gpus": ["GPU-n1-0"]}])]
    odd = replace(picture(tmp_path / "t", served=lives), problems=("a [bold]problem[/bold]",))
    app = TopApp(lambda: odd)
    drive(
        app, "down", lambda: assert_in("[red]7[/red] [b]t\\x1b[31m", rows(app)[1]),
        lambda: assert_in("a [bold]problem[/bold]", text_of(app, "#head")),
    )  # fmt: skip
