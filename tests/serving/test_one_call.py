"""Look up → score → reply of a rank request: few calls of Python."""

from __future__ import annotations

import sys
from types import FrameType

from livectr.client.clients import column_of
from livectr.protos import livectr_pb2 as pb
from livectr.serving.options import ServeOptions
from livectr.serving.score.followers import version_follower
from livectr.serving.score.rank import Ranker
from tests.serving.display_pipeline import pipeline
from tests.serving.display_requests import ADS, CONTEXT, POSITIONS
from tests.serving.display_world import World, publication
from tests.waiting import left_s

MOST_CALLS = 64
"""Calls of Python functions, libraries' own included, from the features of a request to its reply's bytes."""


def test_a_request_whose_rows_are_in_memory_takes_few_calls_of_python(redis_url: str, world: World) -> None:
    world.publish(publication(redis_url))
    options, calls = ServeOptions(redis_url), list[str]()
    follower = version_follower("rank", pipeline, options)
    follower.start()
    assert follower.wait_ready(left_s())
    ranker = Ranker(pipeline, follower, options)
    request = pb.RankRequest(
        context=[column_of(name, [value]) for name, value in CONTEXT.items()],
        candidates=[column_of("ad_id", ADS), column_of("position", POSITIONS)],
    )
    raw = request.SerializeToString()

    def hook(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls.append(frame.f_code.co_qualname)

    for profile in (None, hook):  # the first reads rows and computes partial results
        sys.setprofile(profile)
        reply = ranker.rank(ranker.schema.reader.read(raw), None).serialized()
        sys.setprofile(None)
    follower.close()

    assert len(pb.RankResponse.FromString(reply).index) == len(ADS)
    after = calls[calls.index("PlanStages.ordered") :]
    assert len(after) <= MOST_CALLS, "\n".join(after)
