"""`cluster list`, `cluster show` and `cluster probe`: which clusters are known, and how to get to know one."""

from __future__ import annotations

import argparse

from fleetcraft.cli.command import EXITS, Command, Example
from fleetcraft.cli.output import Output, count, printable
from fleetcraft.cli.profiles import profiles
from fleetcraft.cli.tables import table
from fleetcraft.core.errors import EXIT_DONE

_SHAPE_HEADS = ("PARTITION", "NODES", "GPUS", "CPUS", "MEMORY", "TIME", "MOST NODES", "RATE", "ABOUT")


def _list(_: argparse.Namespace, output: Output) -> int:
    clusters = profiles().list_clusters()
    if output.json:
        output.document(LIST.schema, {"clusters": [cluster.as_json() for cluster in clusters]})
        return EXIT_DONE
    rows = [
        (
            cluster.name,
            "shipped" if cluster.shipped else "default" if cluster.is_default else "own",
            cluster.scheduler or "?",
            ", ".join(cluster.partitions),
            f"cannot be used: {cluster.problem}" if cluster.problem else cluster.description,
        )
        for cluster in clusters
    ]
    output.lines(table(output, ("CLUSTER", "WHOSE", "SCHEDULER", "PARTITIONS", "ABOUT"), rows))
    return EXIT_DONE


def _show_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("which cluster")
    group.add_argument("cluster", metavar="NAME", nargs="?", help="a name or a file (default: the only one of yours)")


def _show(arguments: argparse.Namespace, output: Output) -> int:
    room = profiles()
    profile = room.show_cluster(arguments.cluster)
    names = list(profile.partitions) or [None]
    sites = [room.show_site(profile.source, name) for name in names]
    if output.json:
        body = {
            "name": profile.name,
            "source": profile.source,
            "description": profile.description,
            "default_partition": profile.defaults.get("partition"),
            "warnings": [problem.as_json() for problem in profile.warnings],
            "sites": [site.as_json() for site in sites],
        }
        output.document(SHOW.schema, body)
        return EXIT_DONE
    output.line(f"{output.paint(profile.name, 'bold')}  {printable(profile.description)}")
    if profile.partitions:
        output.lines(["", *table(output, _SHAPE_HEADS, room.shape_rows(profile))])
    output.line()
    output.lines(f"{what:<12} {printable(sentence)}" for what, sentence in room.rule_lines(sites[0]))
    for problem in profile.warnings:
        output.note(f"warning: {problem.sentence}")
    return EXIT_DONE


def _probe_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what to draft")
    group.add_argument("cluster", metavar="NAME", help="what the profile shall be called")
    group.add_argument(
        "--scheduler", metavar="KIND", default="slurm", help="slurm, local, or psij:EXECUTOR (default: slurm)"
    )
    group.add_argument("--write", action="store_true", help="keep the draft as your profile of that name")
    group.add_argument("--force", action="store_true", help="with --write: replace a profile that is there")


def _probe(arguments: argparse.Namespace, output: Output) -> int:
    profiles()
    from fleetcraft.actions.profiles import probe_cluster

    draft = probe_cluster(arguments.cluster, kind=arguments.scheduler, write=arguments.write, replace=arguments.force)
    if output.json:
        body = {
            "name": draft.name,
            "path": draft.path,
            "written": draft.written,
            "not_told": list(draft.not_told),
            "problems": [problem.as_json() for problem in draft.problems],
            "toml": draft.text,
        }
        output.document(PROBE.schema, body)
        return EXIT_DONE
    if not draft.written:
        output.stdout.write(draft.text)
        output.note(f"nothing was written; --write keeps this as {draft.path}")
        return EXIT_DONE
    open_places = draft.text.count("\n#? ")
    output.line(f"wrote {printable(draft.path)}; {count(open_places, 'place')} marked #? for you to fill in")
    output.line(f"then: fleetcraft config check {draft.name}")
    return EXIT_DONE


LIST = Command(
    path=("cluster", "list"),
    summary="which clusters have a profile",
    description="List your own site profiles, then the shipped ones. The default is that of $FLEETCRAFT_PROFILE,\n"
    "else the only one of your own.",
    run=_list,
    uses_spool=False,
    examples=(
        Example(line="fleetcraft cluster list", what="All that can be named."),
        Example(line="fleetcraft cluster list --json", what="The same as one JSON object."),
    ),
)
SHOW = Command(
    path=("cluster", "show"),
    summary="a cluster's partitions and rules, as its profile says",
    description="Show the partitions of a cluster and the rules that hold there, as its profile says. Nothing is\n"
    "asked of the scheduler; a question mark stands where the profile says nothing.",
    arguments=_show_arguments,
    run=_show,
    uses_spool=False,
    examples=(
        Example(line="fleetcraft cluster show tacc-like", what="One of the shipped examples."),
        Example(line="fleetcraft cluster show --json", what="Your only profile, with every value of every partition."),
    ),
)
PROBE = Command(
    path=("cluster", "probe"),
    summary="draft a profile from what the scheduler tells",
    description="Ask the scheduler of this machine for its partitions and limits, and print a draft of a profile.\n"
    "What could not be learned is marked #? in it. Nothing is written without --write.",
    arguments=_probe_arguments,
    run=_probe,
    uses_spool=False,
    examples=(
        Example(line="fleetcraft cluster probe mine", what="Look at the draft."),
        Example(line="fleetcraft cluster probe mine --write", what="Keep it; then fill in what is marked."),
    ),
    exits={75: f"the scheduler did not answer, or {EXITS[75]}"},
)
