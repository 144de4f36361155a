"""Pipeline of the contest with peers: ids alone, so that every peer can compute the same scores.

16 fields with one id each: 4 of the user and 5 of the ad come from look-up tables, 7 come with the request.
"""

from bench.serving.sizes import AD, USER, VISIT
from livectr.ingest.language.streams import Stream, label_join
from livectr.ingest.language.tables import Table
from livectr.ingest.pipeline import Pipeline
from livectr.models import DeepFM

DIM = 16


def _pipeline() -> Pipeline:
    event = dict(request_id="string", user_id="int64", ad_id="int64", ts="int64")
    shown = {**event, **dict.fromkeys(VISIT, "int64")}
    impressions = Stream("impressions", key="user_id", time="ts", columns=shown)
    clicks = Stream("clicks", key="user_id", time="ts", columns=event)
    users = Table("users", key="user_id", columns=dict.fromkeys(USER, "int64"))
    ads = Table("ads", key="ad_id", columns=dict.fromkeys(AD, "int64"))
    log = label_join(impressions, clicks, on="request_id", window="10m").lookup(users).lookup(ads)
    sparse = {name: log[name] if name == "user_id" else users[name] for name in USER}
    sparse |= {name: log[name] for name in VISIT}
    sparse |= {name: log[name] if name == "ad_id" else ads[name] for name in AD}
    return Pipeline(log, sparse=sparse, rank=DeepFM(dim=DIM, hidden=(256, 128)), items=ads)


pipeline = _pipeline()
