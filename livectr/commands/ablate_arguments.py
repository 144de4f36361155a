"""The flags of `livectr ablate`."""

from typing import Any

from livectr.commands.flags import command, count

EPILOG = """\
  livectr ablate --pipeline examples/images/pipeline.py --source file:logs --content images=features \\
      --grid images --seeds 5 --out ablation
  livectr ablate --pipeline p.py --source 'file:logs-{seed}' --content 'images=features-{seed}' \\
      --grid aggregator,warm_up --jobs 2 --out ablation   # every seed has a log of its own"""


def add_ablate(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "ablate",
        "ablate",
        "train variants of a pipeline's models on the same log, and print what each part of them is worth",
        EPILOG,
    )
    parser.add_argument(
        "--pipeline", required=True, metavar="FILE.py", help="whose rank= is a DICM (grid prerank: prerank=)"
    )
    parser.add_argument(
        "--source",
        required=True,
        metavar="URL",
        help="the logs, read to their end: file:DIR or kafka://HOST:PORT; {seed} is the seed's number",
    )
    parser.add_argument(
        "--content", metavar="NAME=DIR,…", help="features of the pipeline's content; may have {seed} in it"
    )
    parser.add_argument(
        "--grid",
        required=True,
        metavar="A,B,…",
        help="images (Table 3), aggregator (Table 4), basic_net (Figure 5), warm_up (Table 5), "
        "prerank (Table 8), all",
    )
    parser.add_argument("--seeds", type=count, default=5, metavar="N", help="trainings of each variant [5]")
    parser.add_argument("--out", required=True, metavar="DIR", help="for ablation.json, tables.md, figures")
    parser.add_argument(
        "--jobs", type=count, default=None, metavar="N", help="trainings at a time [a core each]"
    )
    parser.add_argument(
        "--ledger", metavar="FILE", help="of livectr simulate: also measure the true click probabilities"
    )
