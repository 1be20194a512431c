"""The toy's codec: exact frames, true colors, whole files; and drawing that repeats itself."""

import os
from pathlib import Path

import av
import numpy as np
import pytest

from toyvideo import video
from toyvideo.clips import COLORS, FRAMES, PROMPTS, SIZE_PX, draw_clip, draw_clips, parse_prompt, to_bytes
from toyvideo.video import UPSCALE, VideoError, psnr_db, read_clip, write_clip

FACTS = {"prompt": PROMPTS[0].text, "seed": "0"}


def true_clip(index=0, seed=5):
    return to_bytes(draw_clip(PROMPTS[index], np.random.default_rng(seed)))


def numbered_clip(count):
    """Every frame has its own grey level, so that a lost or swapped frame shows."""
    levels = (np.arange(count) * 7 + 20).astype(np.uint8)
    return np.broadcast_to(levels[:, None, None, None], (count, SIZE_PX, SIZE_PX, 3)).copy()


def test_drawing_with_one_seed_gives_one_result():
    first, prompts = draw_clips(1, seed=3)
    again, _ = draw_clips(1, seed=3)
    other, _ = draw_clips(1, seed=4)

    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert prompts == list(PROMPTS)


def test_every_prompt_is_understood_and_others_are_named_in_the_error():
    assert [parse_prompt(prompt.text) for prompt in PROMPTS] == list(PROMPTS)
    with pytest.raises(ValueError, match=r"'a pink disc'.*a red disc moving left"):
        parse_prompt("a pink disc")


def test_every_clip_survives_the_codec(tmp_path):
    for index, prompt in enumerate(PROMPTS):
        frames = true_clip(index)
        path = tmp_path / f"{prompt.slug}.mp4"

        decoded = write_clip(path, frames, FACTS)
        stored = read_clip(path)

        assert np.array_equal(stored.frames, decoded)
        assert stored.facts == FACTS
        quality_db = psnr_db(frames, decoded)
        assert quality_db is not None
        assert quality_db > 42.0


@pytest.mark.parametrize("color", sorted(COLORS))
def test_a_flat_color_comes_back_within_two_levels(tmp_path, color):
    level = np.rint(np.array(COLORS[color]) * 255.0).astype(np.uint8)
    frames = np.broadcast_to(level, (4, SIZE_PX, SIZE_PX, 3)).copy()

    decoded = write_clip(tmp_path / "flat.mp4", frames, FACTS)

    assert np.abs(decoded.astype(int) - frames.astype(int)).max() <= 2


@pytest.mark.parametrize("count", (1, 2, 16, 33))
def test_every_frame_comes_back_in_its_place(tmp_path, count):
    frames = numbered_clip(count)

    decoded = write_clip(tmp_path / "numbered.mp4", frames, FACTS)

    assert len(decoded) == count
    levels = decoded.mean(axis=(1, 2, 3))
    assert np.abs(levels - frames.mean(axis=(1, 2, 3))).max() < 2.0


def test_the_file_tells_players_its_matrix_and_range(tmp_path):
    write_clip(tmp_path / "clip.mp4", true_clip(), FACTS)

    with av.open(str(tmp_path / "clip.mp4")) as container:
        stream = container.streams.video[0]
        frame = next(container.decode(stream))
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert (stream.width, stream.height, stream.frames) == (SIZE_PX * UPSCALE, SIZE_PX * UPSCALE, FRAMES)
        # 1 is BT.709 and, for the range, the limited one.
        assert (frame.colorspace, frame.color_range) == (1, 1)


def test_two_neighbouring_pixels_of_unlike_color_do_not_bleed(tmp_path):
    frames = np.zeros((4, SIZE_PX, SIZE_PX, 3), dtype=np.uint8)
    frames[:, :, 0::2] = (200, 40, 40)
    frames[:, :, 1::2] = (40, 60, 200)

    decoded = write_clip(tmp_path / "stripes.mp4", frames, FACTS).astype(int)

    # At one picture element for each pixel, 4:2:0 would turn both stripes purple.
    assert (decoded[..., 0::2, 0] - decoded[..., 0::2, 2]).min() > 60
    assert (decoded[..., 1::2, 2] - decoded[..., 1::2, 0]).min() > 60


def test_the_same_clip_gives_the_same_bytes(tmp_path):
    write_clip(tmp_path / "one.mp4", true_clip(), FACTS)
    write_clip(tmp_path / "two.mp4", true_clip(), FACTS)

    assert (tmp_path / "one.mp4").read_bytes() == (tmp_path / "two.mp4").read_bytes()


def test_a_clip_that_decodes_otherwise_is_never_named(tmp_path, monkeypatch):
    real = read_clip

    def loses_a_frame(path):
        stored = real(path)
        return type(stored)(frames=stored.frames[:-1], facts=stored.facts)

    monkeypatch.setattr("toyvideo.video.read_clip", loses_a_frame)
    with pytest.raises(VideoError, match="decoded"):
        write_clip(tmp_path / "clip.mp4", true_clip(), FACTS)

    assert list(tmp_path.iterdir()) == []


def test_an_earlier_file_stays_when_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "clip.mp4"
    write_clip(path, true_clip(), FACTS)
    before = path.read_bytes()

    def storage_full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", storage_full)
    with pytest.raises(OSError, match="No space"):
        write_clip(path, true_clip(seed=6), FACTS)

    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("kind", ("empty", "noise", "half", "text"))
def test_a_damaged_file_is_refused_by_name(tmp_path, kind):
    path = tmp_path / "clip.mp4"
    write_clip(path, true_clip(), FACTS)
    whole = path.read_bytes()
    damaged = {
        "empty": b"",
        "noise": np.random.default_rng(1).bytes(4000),
        "half": whole[: len(whole) // 2],
        "text": b"not a video\n",
    }
    path.write_bytes(damaged[kind])

    with pytest.raises(VideoError, match=r"clip\.mp4"):
        read_clip(path)


def test_a_file_that_decodes_to_fewer_frames_than_it_declares_is_refused(tmp_path, monkeypatch):
    write_clip(tmp_path / "clip.mp4", true_clip(), FACTS)
    real = video._decode_rgb
    monkeypatch.setattr(video, "_decode_rgb", lambda *args: list(real(*args))[:-1])

    with pytest.raises(VideoError, match="decoded 15 frames, the file declares 16"):
        read_clip(tmp_path / "clip.mp4")


def test_one_task_runs_the_codec_in_its_own_thread_alone(tmp_path, monkeypatch):
    threads = []

    def counting(real):
        def call(*args):
            threads.append(len(list(Path("/proc/self/task").iterdir())))
            return real(*args)

        return call

    before = len(list(Path("/proc/self/task").iterdir()))
    # The first is called between the frames of encoding, the second between those of decoding.
    monkeypatch.setattr(video, "_to_yuv", counting(video._to_yuv))
    monkeypatch.setattr(video, "_shrink", counting(video._shrink))
    write_clip(tmp_path / "clip.mp4", true_clip(), FACTS)

    assert len(threads) == 2 * FRAMES
    assert max(threads) == before
