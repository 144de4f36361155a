"""`livectr logs simulate`: write simulated display-ad traffic."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from livectr.commands.data.waiting import add_wait, wait_for_broker
from livectr.commands.flags import command, count, duration_s, positive, seed
from livectr.commands.settings import add_log_flags
from livectr.system.errors import ConfigError
from livectr.system.heap import loading

if TYPE_CHECKING:
    from livectr.simulator.closed_loop import LoopOptions

EXAMPLES = """\
  livectr logs simulate --to file:/tmp/logs --seconds 60 --fast --ledger /tmp/ledger.arrows
  livectr logs simulate --to kafka://localhost:9092 --rate 5000 --seconds 3600 --events arrow
  livectr logs simulate --to file:/tmp/loop --fast --ask 127.0.0.1:50051 --against 127.0.0.1:50052
  livectr logs simulate --to file:/tmp/loop --fast --ask 127.0.0.1:50053 --against 127.0.0.1:50053 \
      --candidates 200 --cut 20 --blind-cut"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = command(
        commands,
        "simulate",
        run,
        "write display-ad traffic with known click probabilities to files or Kafka",
        EXAMPLES,
    )
    parser.add_argument("--to", required=True, metavar="URL", help="kafka://HOST:PORT or file:DIR")
    _add_traffic(parser)
    _add_market(parser)
    _add_loop(parser)
    _add_output(parser)


def _add_traffic(parser: Any) -> None:
    parser.add_argument(
        "--rate", type=positive, default=1000.0, help="impressions per second of event time [1000]"
    )
    parser.add_argument("--seconds", type=positive, default=60.0, help="length in event time [60]")
    parser.add_argument("--fast", action="store_true", help="write at full speed, not by the clock")
    parser.add_argument("--start", metavar="TIME", help="first event time, ISO 8601 or epoch ms [now]")
    parser.add_argument(
        "--tick",
        type=duration_s,
        default=0.1,
        metavar="DURATION",
        help="event time that is made at once; longer ticks for days of thin traffic [100ms]",
    )
    parser.add_argument(
        "--label-window",
        type=duration_s,
        default=2.0,
        metavar="DURATION",
        help="label window of the pipeline that reads the logs [2s]",
    )
    parser.add_argument(
        "--click-delay",
        type=positive,
        default=0.2,
        metavar="WINDOWS",
        help="mean delay of a click, in label windows [0.2]",
    )
    parser.add_argument(
        "--click-delay-spread",
        type=positive,
        default=0.0,
        metavar="S",
        help="ads differ: standard deviation of the logarithm of their mean delays [0]",
    )
    parser.add_argument(
        "--click-delay-period",
        type=duration_s,
        default=0.0,
        metavar="DURATION",
        help="ads drift: event time in which the mean delay of an ad goes up and down [they stay]",
    )


def _add_market(parser: Any) -> None:
    parser.add_argument(
        "--base",
        type=float,
        default=-2.1,
        metavar="LOG_ODDS",
        help="log odds of a click without any effect; -0.9 makes a log of conversions [-2.1]",
    )
    parser.add_argument("--users", type=count, default=2000, help="number of users [2000]")
    parser.add_argument("--ads", type=count, default=200, help="ads that are alive at a time [200]")
    parser.add_argument(
        "--ad-interval", type=duration_s, default=3600.0, metavar="DURATION", help="time between new ads [1h]"
    )
    parser.add_argument(
        "--ad-life", type=count, default=24, metavar="N", help="intervals that an ad lives [24]"
    )
    parser.add_argument(
        "--drift",
        type=duration_s,
        default=7 * 86400.0,
        metavar="DURATION",
        help="time constant of tastes [7d]",
    )
    parser.add_argument(
        "--image-effect",
        type=_spreads,
        default=(0.0, 0.35, 0.1),
        metavar="ALL,SEGMENT,OWN",
        help="spread of tastes in pictures: common to all users, between segments of age and gender, "
        "between users [0,0.35,0.1]",
    )
    parser.add_argument("--seed", type=seed, default=1, help="the same seed gives the same traffic [1]")


def _add_loop(parser: Any) -> None:
    parser.add_argument(
        "--ask",
        metavar="HOST:PORT[@SIDE]",
        help="closed loop: a rank server, or one of its sides, chooses the four ads of a page",
    )
    parser.add_argument(
        "--against",
        metavar="HOST:PORT[@SIDE]",
        help="a second server, which half of the users are asked of after a third of the time",
    )
    parser.add_argument(
        "--candidates",
        type=count,
        default=40,
        metavar="N",
        help="ads that --ask chooses among for a page [40]",
    )
    parser.add_argument(
        "--cut",
        type=count,
        default=0,
        metavar="N",
        help="a funnel: pre-rank of a server of recommendations passes N of them on to rank [rank sees all]",
    )
    parser.add_argument(
        "--blind-cut",
        action="store_true",
        help="pre-rank of --ask gets no bids; that of --against, which may be the same server, does",
    )


def _add_output(parser: Any) -> None:
    parser.add_argument(
        "--events", choices=("json", "arrow"), default="json", help="one event a message, or many [json]"
    )
    parser.add_argument("--partitions", type=count, default=4, help="partitions of every topic [4]")
    parser.add_argument(
        "--ledger", metavar="FILE", help="write every impression's true click probability here"
    )
    parser.add_argument(
        "--no-images", action="store_true", help="leave out the ads' pictures (topic ad_images)"
    )
    parser.add_argument(
        "--wait-for-start",
        action="store_true",
        help="write the look-up tables, then wait for a line on standard input",
    )
    add_wait(parser)
    add_log_flags(parser, "simulate")


def run(given: argparse.Namespace) -> int:
    """Write the traffic. Counts go to standard error about every second, the last to standard output."""
    with loading(lean=given.alone):
        from livectr.logs.formats import iso_ms
        from livectr.simulator.delays import ClickDelays
        from livectr.simulator.simulate import SimulateOptions, simulate
        from livectr.simulator.traffic import TrafficOptions
        from livectr.simulator.truth import World

    wait_for_broker(given.to, given.start_wait_s)
    try:
        start = given.start and iso_ms(int(given.start) if given.start.isdigit() else given.start)
    except ValueError:
        raise ConfigError(
            f"--start is {given.start!r}, but must be ISO 8601 or epoch milliseconds."
        ) from None
    options = SimulateOptions(
        to=given.to,
        world=World(
            users=given.users,
            ads=given.ads,
            ad_interval_s=given.ad_interval,
            ad_life=given.ad_life,
            drift_s=given.drift,
            image_effect=given.image_effect,
            base=given.base,
            seed=given.seed,
        ),
        traffic=TrafficOptions(
            rate=given.rate,
            seconds=given.seconds,
            start_ms=start or int(time.time() * 1000),
            label_window_ms=round(given.label_window * 1000),
            click_delays=ClickDelays(given.click_delay, given.click_delay_spread, given.click_delay_period),
            tick_ms=round(given.tick * 1000),
        ),
        partitions=given.partitions,
        events=given.events,
        real_time=not given.fast,
        ledger=given.ledger,
        images=not given.no_images,
        wait_for_start=given.wait_for_start,
        loop=_loop(given),
    )
    counts = simulate(options, progress=lambda some: print(json.dumps(some), file=sys.stderr, flush=True))
    print(json.dumps(counts), flush=True)
    if options.loop is not None:
        from livectr.simulator.outcome import show_outcome

        show_outcome(counts["outcome"])
    return 0


def _loop(given: argparse.Namespace) -> LoopOptions | None:
    if given.ask is None:
        if given.against is not None:
            raise ConfigError("--against is the second server; name the first with --ask")
        return None
    from livectr.simulator.closed_loop import LoopOptions

    servers = [server for server in (given.ask, given.against) if server]
    return LoopOptions(servers, given.candidates, cut=given.cut, blind=given.blind_cut)


def _spreads(text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) != 3 or not all(0 <= value < 10 for value in values):
        raise argparse.ArgumentTypeError(f'{text!r} must be three numbers from 0 to 10, as in "0.4,0.6,0.3"')
    return values
