"""`livectr query rank|prerank|recommend|describe|verify`: ask a running server.

No pipeline file is needed: the server describes its columns and their types.
"""

import argparse
import json
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from livectr.commands.flags import command, count, group, wait_s
from livectr.commands.run import verify
from livectr.commands.run.access import access_of, add_server_flags
from livectr.commands.run.described import show_described
from livectr.commands.run.explained import show
from livectr.system.errors import ConfigError, ConnectError

if TYPE_CHECKING:
    from livectr.client.clients import RecommendClient

AGAIN_S = 0.5
"""Time between two attempts of `--wait`."""
WHOLE = re.compile(r"-?(0|[1-9]\d*)(\.0+)?")
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?|[Nn]a[Nn]")
NULL = "null"
"""Word for no value, in columns whose values are not texts."""
ROLES = {
    "rank": (
        "order candidates by expected revenue",
        "  livectr query rank --server localhost:50051 --context user_id=42 page=home"
        " --candidates ad_id=1,2,3\n"
        "  livectr query rank --server localhost:50051 --context user_id=42 page=home"
        " --candidates ad_id=1,2,3 --explain",
    ),
    "prerank": (
        "choose the best of the catalogue, or of some candidates",
        "  livectr query prerank --server localhost:50052 --context user_id=42 --top-k 10",
    ),
    "recommend": (
        "choose the best of the catalogue by pre-rank, and order them by rank",
        "  livectr query recommend --server localhost:50053 --context user_id=42 page=home --top-k 10\n"
        "  livectr query recommend --server localhost:50053 --context user_id=42 --prerank-k 200"
        " --exclude 7,9 --bid-column bid",
    ),
    "describe": (
        "show a server's model, its kept versions and sides, and the columns of a request",
        "  livectr query describe --server localhost:50051",
    ),
}
BOOLS = {"true": True, "1": True, "false": False, "0": False}


def add(commands: Any) -> None:
    """Add the commands."""
    roles = group(
        commands, "query", "ask a server, or verify its replies", "rank|prerank|recommend|describe|verify"
    )
    for role, (help, example) in ROLES.items():
        query = command(roles, role, run, help, example)
        query.set_defaults(role=role)
        add_server_flags(query)
        query.add_argument("--json", action="store_true", help="print JSON in place of a table")
        query.add_argument(
            "--wait",
            type=wait_s,
            default=0.0,
            metavar="DURATION",
            help="ask again for so long while no server answers, or it serves no version yet [do not wait]",
        )
        if role == "describe":
            continue
        query.add_argument(
            "--version",
            type=count,
            default=0,
            metavar="N",
            help="take no other version's answer [served one]",
        )
        query.add_argument(
            "--request-id",
            default="",
            metavar="ID",
            help="id of the request, in the server's log and served log",
        )
        many: dict[str, Any] = dict(action="extend", nargs="+", default=[])
        query.add_argument(
            "--side", default="", metavar="stable|canary", help="take this side's answer [the server chooses]"
        )
        query.add_argument(
            "--context",
            metavar="COLUMN=VALUE",
            help='one value a column; of a list a,b or ["a", "b"]',
            **many,
        )
        query.add_argument(
            "--candidates",
            metavar="COLUMN=V1,V2,…",
            help='one value a candidate, or ["V1", "V2", …]; the items of a list are separated by blanks',
            **many,
        )
        query.add_argument(
            "--request",
            default="",
            metavar="JSON|FILE",
            help='context and candidates as JSON over HTTP has them: {"context": {…}, "candidates": {…}}',
        )
        query.add_argument(
            "--bids",
            default="",
            metavar="B1,B2,…",
            help="one bid a candidate [that of the pipeline's value; else 1 to rank, none to pre-rank]",
        )
        if role == "rank":
            query.add_argument(
                "--explain",
                nargs="?",
                type=count,
                const=1,
                default=0,
                metavar="N",
                help="show what each feature adds to the scores of the N best candidates, and which fields "
                "are missing or cold [1]",
            )
            continue
        query.add_argument("--top-k", type=count, default=10, help="number of items to choose [10]")
        if role == "recommend":
            query.add_argument("--prerank-k", type=count, default=400, help="number of items to rank [400]")
            query.add_argument("--exclude", default="", metavar="I1,I2,…", help="items that are not wanted")
            query.add_argument(
                "--bid-column", default="", metavar="COLUMN", help="of the items' table [bid 1]"
            )
    verify.add(roles)


def run(given: argparse.Namespace) -> int:
    """Ask, and print a table or JSON.

    Raises:
        CallError: the server refuses the request, or none answers, for as long as `--wait` says.
    """
    end = time.monotonic() + given.wait
    while True:
        last = time.monotonic() + AGAIN_S > end
        try:
            return _ask(given, last=last)
        except ConnectError:
            if last:
                raise
            time.sleep(AGAIN_S)


def _ask(given: argparse.Namespace, *, last: bool) -> int:
    from livectr.client.clients import PreRankClient, RankClient, RecommendClient
    from livectr.serving.front import answers

    if given.role == "describe":
        return _describe(given, last=last)
    kinds: dict[str, Any] = {"rank": RankClient, "prerank": PreRankClient, "recommend": RecommendClient}
    client: RankClient | PreRankClient | RecommendClient
    with kinds[given.role](given.server, given.timeout, **access_of(given)) as client:
        described = client.describe()
        if described.role not in (given.role, "recommend"):
            raise ConfigError(f"{given.server} is a {described.role} server; ask it with that command.")
        dtypes = {column.name: column.dtype for column in described.columns}
        context = {n: _value(n, text, dtypes) for n, text in _pairs(given.context, "--context")}
        columns = {n: _values(n, text, dtypes) for n, text in _pairs(given.candidates, "--candidates")}
        if given.request:
            context, columns = _of_request(given, dtypes)
        bids = _bids(given.bids)
        client = client.pinned(given.version).on_side(given.side)
        if isinstance(client, RankClient):
            answer = client.explain(context, columns, bids, best=given.explain, request_id=given.request_id)
            rows = answers.ranked(answer, columns)
        else:
            if len(columns) > 1:
                raise ConfigError(
                    f"pre-rank chooses by one column of --candidates, not {', '.join(columns)}."
                )
            _check_item_column(columns, described)
            candidates = next(iter(columns.values()), None)
            if isinstance(client, RecommendClient):
                answer = _recommended(client, given, context, candidates, described)
                rows = answers.recommended(answer)
            else:
                answer = client.prerank(context, candidates, given.top_k, bids, request_id=given.request_id)
                rows = answers.chosen(answer)
    stages = answers.stages(answer) if isinstance(client, RecommendClient) else []
    explanations = answers.explained(answer) if isinstance(client, RankClient) else []
    if given.json:
        more: dict[str, Any] = {"stages": stages} if stages else {}
        more |= {"explanations": explanations} if explanations else {}
        more |= {"degraded": answer.degraded_reason} if answer.degraded else {}
        more |= answers.exploration(answer)
        reply = {"side": answer.side, "version": answer.version, "model": answer.model, "results": rows}
        print(json.dumps(reply | more))
    else:
        side = f"{answer.side}, " if answer.side != "stable" else ""
        _print(rows, f"{side}version {answer.version} of {answer.model}")
        if stages:
            _print(stages, f"pre-rank by {answer.prerank_model}")
        if answer.degraded:
            print(f"degraded: {answer.degraded_reason}")
        for one in explanations:
            show(one, ", ".join(f"{name} {values[one['index']]}" for name, values in columns.items()))
    return 0


def _check_item_column(columns: dict[str, list[Any]], server: Any) -> None:
    """Refuse candidates of a column that is not the items'; a pre-rank server does not tell theirs."""
    item = next((column.name for column in server.columns if _is_item(column)), None)
    for name in columns:
        if item is not None and name != item:
            raise ConfigError(
                f"--candidates names {name}, but items are chosen by {item}: say {item}=V1,V2,…."
            )


def _is_item(column: Any) -> bool:
    from livectr.protos import livectr_pb2 as pb

    return bool(column.placement == pb.PLACEMENT_CANDIDATE)


def _recommended(
    client: "RecommendClient",
    given: argparse.Namespace,
    context: dict[str, Any],
    candidates: Any,
    server: Any,
) -> Any:
    from livectr.client.clients import RecommendItems

    dtype = next(column.dtype for column in server.columns if _is_item(column))
    excluded = [_value("--exclude", one, {"--exclude": dtype}) for one in given.exclude.split(",") if one]
    items = RecommendItems(candidates, excluded, given.bid_column, _bids(given.bids))
    counts = given.top_k, given.prerank_k
    return client.recommend(context, *counts, items=items, request_id=given.request_id)


def _describe(given: argparse.Namespace, *, last: bool) -> int:
    """Print what a server says of itself.

    Args:
        given: flags of the command.
        last: print it also if no version is served.

    Raises:
        ConnectError: no version is served.
    """
    from livectr.client.clients import RankClient
    from livectr.serving.front import answers

    with RankClient(given.server, given.timeout, **access_of(given)) as client:
        described = client.describe()
    if described.version or last:
        if given.json:
            print(json.dumps(answers.facts(described)))
        else:
            show_described(described)
    if not described.version:
        more = "; `--wait DURATION` waits for one" if not given.wait else ""
        raise ConnectError(f"{given.server} serves no version yet{more}.")
    return 0


def _pairs(texts: list[str], flag: str) -> list[tuple[str, str]]:
    pairs = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise ConfigError(f"{flag} is {text!r}, but must be COLUMN=VALUE.")
        pairs.append((name, value))
    return pairs


def _value(name: str, text: str, dtypes: Mapping[str, str]) -> Any:
    """Value of a column. The type of an unknown column is guessed; the server then refuses the column.

    A list is a JSON list, or has commas or blanks between its items.
    """
    dtype = dtypes.get(name, "int64" if WHOLE.fullmatch(text) else "string")
    if dtype.startswith("list<"):
        if text == NULL:
            return None
        if (listed := _json_list(text)) is not None:
            return listed
        item = dtype.removeprefix("list<").removesuffix(">")
        items = text.split(",") if "," in text else text.split(" ")
        return [_scalar(name, one.strip(), item) for one in items if one.strip()]
    return _scalar(name, text, dtype)


def _values(name: str, text: str, dtypes: Mapping[str, str]) -> list[Any]:
    """Values of candidates: of a JSON list, or between commas; the items of a list are between blanks."""
    if (listed := _json_list(text)) is not None:
        return listed
    if dtypes.get(name, "").startswith("list<"):
        return [_value(name, one or "[]", dtypes) for one in text.split(",")]
    return [_value(name, one, dtypes) for one in text.split(",")]


def _json_list(text: str) -> list[Any] | None:
    """Items of a JSON list; None: the text is none."""
    if not text.startswith("["):
        return None
    try:
        listed: list[Any] = json.loads(text)
    except ValueError:
        return None
    return listed


def _scalar(name: str, text: str, dtype: str) -> Any:
    """Value of a text: numbers as JSON writes them, and not as Python reads them (007, 1_000)."""
    if dtype == "string":
        return text
    if dtype == "binary":
        return text.encode()
    if text == NULL:
        return None
    if dtype == "bool" and text.lower() in BOOLS:
        return BOOLS[text.lower()]
    if dtype in ("int64", "int32") and WHOLE.fullmatch(text):
        return int(text.partition(".")[0])
    if dtype in ("float64", "float32") and NUMBER.fullmatch(text):
        return float(text)
    raise ConfigError(f"{name} is {text!r}, but must be {dtype}.")


def _of_request(
    given: argparse.Namespace, dtypes: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Context and candidates of --request. Raises ConfigError."""
    from livectr.serving.front.requests import JsonRequest, typed

    if given.context or given.candidates:
        raise ConfigError("--request has context and candidates; leave --context and --candidates out.")
    text = given.request
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--request {text} is neither a JSON object nor a file: {error}") from None
    request = JsonRequest(text.encode("utf-8", "surrogatepass"), ("context", "candidates"))
    columns = {}
    for name, values in request.mapping("candidates").items():
        if not isinstance(values, list):
            raise ConfigError(f"candidates.{name} must be a list with a value for each candidate")
        columns[name] = [typed(name, value, dtypes.get(name)) for value in values]
    context = request.mapping("context")
    return {name: typed(name, value, dtypes.get(name)) for name, value in context.items()}, columns


def _bids(text: str) -> list[float]:
    try:
        return [float(one) for one in text.split(",") if one]
    except ValueError:
        raise ConfigError(f"--bids is {text!r}, but must be numbers, separated by commas.") from None


def _print(rows: list[dict[str, Any]], caption: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for name in rows[0] if rows else ("no result",):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{value:.6f}" if isinstance(value, float) else str(value) for value in row.values()))
    console = Console()
    console.print(table)
    # Not the table's caption: it would be as narrow as the table.
    console.print(caption, highlight=False, markup=False)
