"""Makes the files of a GPU report: all of them are composed and checked before the first one is written."""

from __future__ import annotations

import getpass
import json
import os
import socket
from collections.abc import Iterator

from fleetcraft.actions.files_out import replace_file
from fleetcraft.core.errors import UsageError
from fleetcraft.report import svg
from fleetcraft.report.figures import figures_of
from fleetcraft.report.gpu_data import Report
from fleetcraft.report.gpu_page import fixed_text, render
from fleetcraft.usage import publish


def write_report(
    report: Report, output: str, *, figures: str | None = None, kind: str = "svg", data: str | None = None,
    published: bool = False,
) -> list[str]:  # fmt: skip
    """Write the page, and where asked its figures and its document. Returns the paths.

    Raises UsageError, and Refused where a published report would tell a name.
    """
    document = publish.clean(report.document) if published else report.document
    files: dict[str, bytes] = {output: render(document).encode()}
    if data is not None:
        files[data] = (json.dumps(document, allow_nan=False, indent=1) + "\n").encode()
    if figures is not None:
        for figure in figures_of(document):
            path = os.path.join(figures, f"{figure.name}.{kind}")
            if kind == "png":
                from fleetcraft.report import png

                files[path] = png.draw(figure)
            else:
                files[path] = svg.draw(figure, standalone=True).encode()
    if published:
        denied, fixed = {*report.private, *_mine()}, fixed_text()
        for path, content in files.items():
            if not path.endswith(".png"):  # drawn from the same cleaned document
                publish.check(content.decode(), denied, fixed)
    if figures is not None:
        try:
            os.makedirs(figures, exist_ok=True)
        except OSError as error:
            raise UsageError(
                f"Cannot make the folder {figures}: {error.strerror}.", hint="Name another one."
            ) from error
    for path, content in files.items():
        replace_file(path, content)
    return list(files)


def _mine() -> Iterator[str]:
    """Who and where we are."""
    yield os.path.expanduser("~")
    yield socket.gethostname()
    try:
        yield getpass.getuser()
    except (KeyError, OSError):
        return  # nobody knows the name of this user, so nothing can tell it
