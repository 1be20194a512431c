"""Writes clips as MP4 (H.264, 4:2:0) and reads them back frame by frame with PyAV.

A file appears under its name only after every frame was decoded from it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import av
import av.error
import numpy as np
from av.container import InputContainer
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Colorspace, Interpolation
from av.video.stream import VideoStream

from toyvideo.clips import ByteArray
from toyvideo.files import write_aside

FRAMES_PER_S = 8
# 4:2:0 keeps one color for 2x2 pixels. With each pixel drawn 4x4, all of such a square is one pixel's color.
UPSCALE = 4
QUALITY_CRF = 14

# FFmpeg's own numbers for stream tags. They are another enumeration than the scaler's `Colorspace`.
_TAG_BT709 = 1
_TAG_LIMITED_RANGE = 1
_SCALER_FLAGS = (
    Interpolation.BICUBIC
    | Interpolation.ACCURATE_RND
    | Interpolation.FULL_CHR_H_INT
    | Interpolation.FULL_CHR_H_INP
    | Interpolation.BITEXACT
)


class VideoError(Exception):
    """A clip could not be written or read as promised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredClip:
    """A clip read back: frames (count, height, width, 3) at the toy's size, and the facts stored with it."""

    frames: ByteArray
    facts: dict[str, str]


def write_clip(path: Path, frames: ByteArray, facts: dict[str, str]) -> ByteArray:
    """Write `frames` to `path`, whole or not at all; return them as they decode from the file."""
    decoded: list[ByteArray] = []

    def fill(part: Path) -> None:
        _encode(part, frames, facts)
        decoded.append(read_clip(part).frames)
        if decoded[0].shape != frames.shape:
            raise VideoError(f"{path}: wrote frames of shape {frames.shape}, decoded {decoded[0].shape}")

    write_aside(path, fill)
    return decoded[0]


def read_clip(path: Path) -> StoredClip:
    """Decode every frame of `path` from its start; seeking would not be frame exact."""
    try:
        with av.open(str(path), mode="r") as container:
            stream = container.streams.video[0]
            stream.codec_context.thread_count = 1
            frames = [_shrink(image) for image in _decode_rgb(path, container, stream)]
            declared = stream.frames
            facts = json.loads(container.metadata.get("comment", "{}"))
    # PyAV raises a bare IndexError for a container without a video stream.
    except (av.error.FFmpegError, IndexError, ValueError) as error:
        raise VideoError(f"{path}: not a readable clip: {error}") from error
    if not frames or (declared and declared != len(frames)):
        raise VideoError(f"{path}: decoded {len(frames)} frames, the file declares {declared}")
    return StoredClip(frames=np.stack(frames), facts=facts)


def psnr_db(one: ByteArray, other: ByteArray) -> float | None:
    """Return the peak signal-to-noise ratio; None when the two are equal, where it has no finite value."""
    error = float(np.mean((one.astype(np.float64) - other.astype(np.float64)) ** 2))
    return None if error == 0.0 else round(10.0 * float(np.log10(255.0**2 / error)), 3)


def _encode(part: Path, frames: ByteArray, facts: dict[str, str]) -> None:
    # The format is named because the name of a `.part` file does not tell it.
    with av.open(str(part), mode="w", format="mp4", options={"movflags": "+faststart"}) as container:
        container.metadata["comment"] = json.dumps(facts, sort_keys=True)
        stream = container.add_stream("libx264", rate=FRAMES_PER_S)
        stream.height, stream.width = frames.shape[1] * UPSCALE, frames.shape[2] * UPSCALE
        stream.pix_fmt = "yuv420p"
        context = stream.codec_context
        # One thread per task: its worker gave it one CPU. It also makes the bytes repeatable.
        context.thread_count = 1
        context.options = {"crf": str(QUALITY_CRF), "preset": "veryfast", "x264-params": "threads=1:sync-lookahead=0"}
        context.colorspace = _TAG_BT709
        context.color_primaries = _TAG_BT709
        context.color_trc = _TAG_BT709
        context.color_range = _TAG_LIMITED_RANGE
        for image in frames:
            container.mux(stream.encode(_to_yuv(image)))
        container.mux(stream.encode(None))


def _to_yuv(image: ByteArray) -> VideoFrame:
    large = np.ascontiguousarray(image.repeat(UPSCALE, axis=0).repeat(UPSCALE, axis=1))
    # Without an explicit matrix the scaler uses BT.601 while players assume what the tag says.
    return VideoFrame.from_ndarray(large, format="rgb24").reformat(
        format="yuv420p",
        src_color_range=ColorRange.JPEG,
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
        interpolation=_SCALER_FLAGS,
        threads=1,
    )


def _decode_rgb(path: Path, container: InputContainer, stream: VideoStream) -> Iterator[ByteArray]:
    for frame in container.decode(stream):
        if frame.colorspace != _TAG_BT709:
            tag = frame.colorspace
            raise VideoError(f"{path}: its color matrix is tagged {tag}, not BT.709, so its colors are not known")
        image = frame.reformat(
            format="rgb24",
            src_colorspace=Colorspace.ITU709,
            src_color_range=ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            interpolation=_SCALER_FLAGS,
            threads=1,
        )
        yield cast(ByteArray, image.to_ndarray())


def _shrink(image: ByteArray) -> ByteArray:
    """Average each square of the upscaled picture back to one pixel."""
    height, width = image.shape[0] // UPSCALE, image.shape[1] // UPSCALE
    squares = image[: height * UPSCALE, : width * UPSCALE].reshape(height, UPSCALE, width, UPSCALE, 3)
    return np.asarray(np.rint(squares.mean(axis=(1, 3))), dtype=np.uint8)
