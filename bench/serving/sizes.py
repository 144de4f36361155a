"""Fields of the contest with peers, and the number of ids of each."""

USER = {"user_id": 20_000, "age": 8, "city": 500, "segment": 200}
VISIT = {"device": 6, "site": 200, "position": 10, "os": 12, "hour": 24, "weekday": 7, "campaign": 100}
AD = {"ad_id": 20_000, "category": 50, "advertiser": 2_000, "price": 20, "format": 8}
"""The first of USER and AD is its table's key."""
