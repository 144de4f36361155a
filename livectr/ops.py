"""The operators of the feature language: functions from expressions to an expression.

from livectr import ops

ops.cross(ops.bucketize(users.age, [18, 25, 35]), users.gender)
"""

from livectr.ingest.operators import *  # noqa: F403
from livectr.ingest.operators import __all__ as __all__
