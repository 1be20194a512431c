"""Declares the whole study as tasks for a spool: names, commands or calls, what each needs, and what it leaves.

Names and contents depend on the plan and the folder alone, so that enqueuing again adds nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toyvideo.clips import PROMPTS
from toyvideo.report_media import FIGURES

TRUTH = "truth"
PACKAGE_HOME = Path(__file__).resolve().parent.parent
# A task gets one CPU, so its linear algebra may not start threads of its own.
ENVIRONMENT = {
    "PYTHONPATH": str(PACKAGE_HOME),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
}

Task = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to study, and in which folder."""

    folder: Path
    arms: dict[str, int] = field(default_factory=lambda: {"short": 150, "medium": 600, "long": 1500})
    seeds: int = 2
    fit_clips_per_prompt: int = 80

    @property
    def clips_per_arm(self) -> int:
        return len(PROMPTS) * self.seeds

    def clip(self, arm: str, slug: str, seed: int) -> Path:
        return self.folder / "clips" / arm / f"{slug}-{seed}.mp4"

    def checkpoint(self, arm: str) -> Path:
        return self.folder / f"checkpoint-{arm}.npz"

    def score(self, arm: str) -> Path:
        return self.folder / "scores" / f"{arm}.json"


def study_tasks(plan: Plan) -> list[Task]:
    """Return every task of the study; a task comes after the ones that it waits for."""
    return [*_prepare(plan), *_train(plan), *_generate(plan), *_score(plan), *_summarize(plan)]


def kind_of(name: str) -> str:
    """Return the part of the study that a task belongs to, from its name."""
    return {"train": "train", "clip": "generate", "score": "score", "summarize": "summarize", "plot": "summarize"}.get(
        name.split("-", 1)[0], "prepare"
    )


def _command(plan: Plan, name: str, arguments: list[str], outputs: list[Path], after: list[str]) -> Task:
    task: Task = {
        "name": name,
        "command": [sys.executable, "-m", *arguments],
        "cpus": 1,
        "cwd": str(plan.folder),
        "env": ENVIRONMENT,
        "outputs": [str(path) for path in outputs],
        "retries": 1,
        "timeout": "5m",
    }
    return {**task, "after": after} if after else task


def _prepare(plan: Plan) -> Iterator[Task]:
    autoencoder = plan.folder / "autoencoder.npz"
    count = str(plan.fit_clips_per_prompt)
    yield _command(
        plan,
        "autoencoder",
        ["toyvideo.autoencoder", "--out", str(autoencoder), "--per-prompt", count],
        [autoencoder],
        [],
    )
    folder = plan.folder / "clips" / TRUTH
    clips = [plan.clip(TRUTH, prompt.slug, seed) for prompt in PROMPTS for seed in range(plan.seeds)]
    yield _command(plan, "truth", ["toyvideo.truth", "--out", str(folder), "--per-prompt", str(plan.seeds)], clips, [])


def _train(plan: Plan) -> Iterator[Task]:
    for arm, iterations in plan.arms.items():
        checkpoint = plan.checkpoint(arm)
        arguments = ["toyvideo.train", "--arm", arm, "--iterations", str(iterations)]
        arguments += ["--autoencoder", str(plan.folder / "autoencoder.npz"), "--out", str(checkpoint)]
        yield _command(plan, f"train-{arm}", arguments, [checkpoint], ["autoencoder"])


def _generate(plan: Plan) -> Iterator[Task]:
    """One call for each clip: a resident loads the arm's checkpoint once and then serves many."""
    for arm in plan.arms:
        for prompt in PROMPTS:
            for seed in range(plan.seeds):
                out = str(plan.clip(arm, prompt.slug, seed))
                yield {
                    "name": f"clip-{arm}-{prompt.slug}-{seed}",
                    "call": "toyvideo.generate:generate",
                    "args": {"prompt": prompt.text, "seed": seed, "out": out},
                    "setup": "toyvideo.generate:setup",
                    "setup_args": {"checkpoint": str(plan.checkpoint(arm))},
                    "python": sys.executable,
                    "gpus": 1,
                    "cpus": 1,
                    "cwd": str(plan.folder),
                    "env": ENVIRONMENT,
                    "outputs": [out],
                    "retries": 1,
                    "timeout": "5m",
                    "after": [f"train-{arm}"],
                }


def _score(plan: Plan) -> Iterator[Task]:
    for arm in (TRUTH, *plan.arms):
        clips, score = plan.folder / "clips" / arm, plan.score(arm)
        arguments = ["toyvideo.score", "--arm", arm, "--clips", str(clips), "--out", str(score)]
        arguments += ["--expect", str(plan.clips_per_arm)]
        slugs = [f"{prompt.slug}-{seed}" for prompt in PROMPTS for seed in range(plan.seeds)]
        after = ["truth"] if arm == TRUTH else [f"clip-{arm}-{slug}" for slug in slugs]
        yield _command(plan, f"score-{arm}", arguments, [score], after)


def _summarize(plan: Plan) -> Iterator[Task]:
    folder = plan.folder / "summary"
    arms = [TRUTH, *plan.arms]
    arguments = ["toyvideo.summarize", "--clips", str(plan.folder / "clips"), "--out", str(folder), "--scores"]
    arguments += [str(plan.score(arm)) for arm in arms]
    arguments += ["--checkpoints", *(str(plan.checkpoint(arm)) for arm in plan.arms)]
    outputs = [folder / name for name in ("summary.json", "summary.csv", "contact-sheet.png")]
    yield _command(plan, "summarize", arguments, outputs, [f"score-{arm}" for arm in arms])
    plots = plan.folder / "plots"
    figures = [plots / f"{key}.svg" for key in FIGURES]
    arguments = ["toyvideo.plot", "--summary", str(folder / "summary.json"), "--out", str(plots)]
    yield _command(plan, "plot", arguments, figures, ["summarize"])
