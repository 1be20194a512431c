"""What trials are made of, and when a frozen row is no good any more."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fleetcraft.actions.calibrate import Asked, Sample, calibrate, judge, most_at_once, parse_parameters
from fleetcraft.actions.calibrated import digest_now, share, use, vram_of
from fleetcraft.cli.main import main
from fleetcraft.core.errors import Refused, UsageError
from fleetcraft.transports.api import Answer
from fleetcraft.usage import calibration as c

GIB = 1024**3
WORKED = Answer(argv=("worker",), code=0, out="", err="", took_s=1.0)
COMMAND = ["tool", "--batch", "{batch}"]


def receipt(index, at, end, outcome="succeeded", **more):
    return {"t": "receipt", "b": 1, "i": index, "o": outcome, "at": at, "end": end, "rss_kib": 10 + index, **more}


def judged(receipts, samples=(), *, per_gpu=1, worker=WORKED):
    return judge(receipts, samples, batch=4, per_gpu=per_gpu, cycles=2, worker=worker)


def test_a_stable_point_has_its_busy_time_and_peaks_within_it():
    progress = {"phase": "decode", "at_utc": 3.0}
    samples = [Sample(utc_s=at, used_bytes=used) for at, used in ((0.5, 99), (1.5, 7), (3.5, 5), (9.0, 99))]
    one = judged([receipt(0, 1.0, 2.0), receipt(1, 2.5, 4.0, progress=progress)], samples)
    assert (one.state, one.wall_s, one.error) == (c.STABLE, 3.0, None)
    assert one.items_per_s == pytest.approx(4 * 2 / 3.0)
    assert one.gpu_bytes == {"whole": 7, "decode": 5}
    assert one.host_bytes == 11 * 1024


def test_memory_that_no_sample_shows_is_absent_with_its_reason():
    one = judged([receipt(0, 1.0, 2.0), receipt(1, 2.5, 4.0)], [Sample(utc_s=1.5, used_bytes=0)])
    assert one.gpu_bytes is None
    assert "no sample" in one.gpu_reason


def test_every_other_end_is_named_and_has_no_throughput():
    memory = judged([receipt(0, 1, 2, "failed"), receipt(1, 1, 2, "out_of_memory", error="its output says so")])
    assert (memory.state, memory.error) == (c.OUT_OF_MEMORY, "its output says so")
    failed = judged([receipt(0, 1, 2), receipt(1, 2, 3, "failed", exit=7)])
    assert (failed.state, failed.error, failed.items_per_s) == (c.FAILED, "run 1.1: failed, exit 7", None)
    gone = Answer(argv=("worker",), code=None, out="", err="", took_s=1.0, problem="timed out")
    assert judged([receipt(0, 1, 2)], worker=gone).error == "1 of 2 runs came to an end: timed out"
    alone = judged([receipt(n, n, n + 1) for n in range(4)], per_gpu=2)
    assert (alone.state, alone.error) == (c.FAILED, "only 1 of 2 ran at once")


def test_spans_that_only_touch_do_not_share_a_moment():
    assert most_at_once([(0, 1), (1, 2), (0.5, 1.5)]) == 2


@pytest.mark.parametrize("per_gpu", range(1, 17))
def test_a_share_fits_so_often_and_no_more(per_gpu):
    milli = round(share(per_gpu) * 1000)
    assert milli * per_gpu <= 1000 < milli * (per_gpu + 1)


def test_the_reservation_is_a_part_of_the_peak_with_a_margin_and_fits():
    assert vram_of(40 * GIB, 2, 80 * GIB) == 21 * GIB
    assert vram_of(80 * GIB, 2, 80 * GIB) == 40 * GIB
    assert vram_of(1, 1, None) == 1 << 20


def test_parameters_are_words_with_a_value():
    assert parse_parameters(["size=720p", "mode=a=b"]) == {"size": "720p", "mode": "a=b"}
    for words in (["size"], ["=1"], ["a=1", "a=2"]):
        with pytest.raises(UsageError, match="--param"):
            parse_parameters(words)


@pytest.mark.parametrize(
    ("words", "said"),
    (
        (["f", "--batches", "1,2", "--", "true"], "has {batch}"),
        (["f", "--batches", "1,2"], "no command"),
        (["f", "--batches", "1,x", "--", "t", "{batch}"], "--batches"),
        (["f", "--batches", "0", "--", "t", "{batch}"], "--batches"),
        (["f", "--batches", "1", "--cycles", "1", "--", "t", "{batch}"], "--cycles 1"),
        (["f", "--batches", "1", "--per-gpu", "17", "--", "t", "{batch}"], "--per-gpu"),
        (["f", "--batches", "1", "--headroom", "100", "--", "t", "{batch}"], "--headroom"),
        (["f", "--batches", "1", "--headroom", "nan", "--", "t", "{batch}"], "--headroom"),
        (["f", "--batches", "1", "--gpus", "2", "--", "t", "{batch}"], "--gpus"),
        (["f", "--batches", "1", "--code", "nowhere", "--", "t", "{batch}"], "nowhere"),
        (["f", "--", "t", "{batch}"], "--batches"),
    ),
)
def test_what_cannot_be_tried_is_refused_at_once(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["task", "calibrate", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


class Idle:
    """A transport whose worker ends at once."""

    name = "idle"

    def __init__(self) -> None:
        self.calls: list[tuple[str, ...]] = []

    def run(self, argv, **_options):
        self.calls.append(tuple(argv))
        return Answer(argv=tuple(argv), code=3, out="", err="cannot", took_s=0.0)


def test_a_worker_that_did_nothing_is_named_and_nothing_is_frozen(tmp_path):
    asked = Asked(
        family="f", command=COMMAND, batches=[2, 1], per_gpu=[1], parameters={}, env={}, cwd=str(tmp_path),
        table=str(tmp_path / "t.json"),
    )  # fmt: skip
    idle = Idle()
    row, is_frozen = calibrate(asked, str(tmp_path), transport=idle, at_utc=1.0)
    assert not is_frozen
    assert [one["batch"] for one in row["trials"]] == [1, 2]
    assert row["trials"][0]["error"] == "0 of 2 runs came to an end: cannot"
    assert not (tmp_path / "t.json").exists()
    assert len(idle.calls) == 2


def test_a_frozen_row_is_refused_after_the_first_trial(tmp_path):
    key: dict[str, Any] = {
        "family": "f",
        "device": None,
        "driver": None,
        "code": digest_now(COMMAND, []),
        "parameters": {},
    }
    row = c.make_row(key, command=COMMAND, code_paths=[], device_bytes=None, headroom_pct=10, trials=[], at_utc=1.0)
    place = tmp_path / "t.json"
    place.write_text(c.encode(c.add([], row, replaces=False, place="t")))
    before = place.read_bytes()
    asked = Asked(
        family="f", command=COMMAND, batches=[1, 2], parameters={}, env={}, cwd=str(tmp_path), table=str(place)
    )
    idle = Idle()
    with pytest.raises(Refused, match="has a row for family 'f'"):
        calibrate(asked, str(tmp_path), transport=idle, at_utc=2.0)
    assert len(idle.calls) == 1
    assert place.read_bytes() == before


@pytest.fixture
def frozen(tmp_path):
    code = tmp_path / "code"
    code.mkdir()
    (code / "tool.py").write_text("one\n")
    key = {
        "family": "f", "device": "A", "driver": "1", "code": digest_now(COMMAND, [str(code)]), "parameters": {},
    }  # fmt: skip
    trial = c.Trial(batch=4, per_gpu=2, cycles=2, state=c.STABLE, wall_s=1.0, gpu_bytes={"whole": 40 * GIB})
    row = c.make_row(
        key, command=COMMAND, code_paths=[str(code)], device_bytes=80 * GIB, headroom_pct=10, trials=[trial], at_utc=1.0
    )  # fmt: skip
    place = tmp_path / "table.json"
    place.write_text(c.encode(c.add([], row, replaces=False, place="t")))
    return place


def test_a_row_fills_in_the_words_the_share_and_the_memory(frozen):
    for command in (None, COMMAND):
        found = use(str(frozen), "f", "A", command)
        assert found.command == ["tool", "--batch", "4"]
        assert (found.gpus, found.vram_bytes) == (0.5, 21 * GIB)


def test_a_row_that_does_not_hold_any_more_is_refused(frozen):
    with pytest.raises(UsageError, match="another command"):
        use(str(frozen), "f", None, ["tool", "{batch}"])
    with pytest.raises(UsageError, match="no row for family 'g'"):
        use(str(frozen), "g", None, None)
    with pytest.raises(UsageError, match="on 'B'"):
        use(str(frozen), "f", "B", None)
    (frozen.parent / "code" / "tool.py").write_text("two\n")
    with pytest.raises(UsageError, match="code of family 'f' changed"):
        use(str(frozen), "f", None, None)
    frozen.write_text(frozen.read_text().replace('"batch": 4', '"batch": 8'))
    with pytest.raises(UsageError, match="edited"):
        use(str(frozen), "f", None, None)
    frozen.unlink()
    with pytest.raises(UsageError, match="Cannot read the calibration table"):
        use(str(frozen), "f", None, None)


@pytest.mark.parametrize(
    ("words", "said"),
    (
        (["--calibrated", "t", "--", "a"], "--family"),
        (["--calibrated", "t", "--family", "f", "--gpus", "1", "--", "a"], "--gpus and --vram"),
        (["--calibrated", "t", "--family", "f", "--from", "-"], "not for --from"),
        (["--device", "A", "--", "a"], "--calibrated FILE"),
        (["--calibrated", "nowhere", "--family", "f"], "Cannot read the calibration table nowhere"),
    ),
)
def test_enqueue_says_what_does_not_go_together(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["task", "enqueue", *words]) == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_calibrated_task_has_what_its_row_says(frozen, monkeypatch, capsys):
    monkeypatch.chdir(frozen.parent)
    assert main(["task", "enqueue", "--calibrated", str(frozen), "--family", "f", "--name", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["added"] == 1
    assert main(["task", "show", "a", "--json"]) == 0
    told = capsys.readouterr().out
    assert '"--batch","4"' in told
    assert str(21 * GIB) in told
