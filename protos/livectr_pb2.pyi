from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Placement(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLACEMENT_UNSPECIFIED: _ClassVar[Placement]
    PLACEMENT_CONTEXT: _ClassVar[Placement]
    PLACEMENT_CANDIDATE: _ClassVar[Placement]
    PLACEMENT_EITHER: _ClassVar[Placement]
PLACEMENT_UNSPECIFIED: Placement
PLACEMENT_CONTEXT: Placement
PLACEMENT_CANDIDATE: Placement
PLACEMENT_EITHER: Placement

class Int64s(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, values: _Optional[_Iterable[int]] = ...) -> None: ...

class Doubles(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, values: _Optional[_Iterable[float]] = ...) -> None: ...

class Bools(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[bool]
    def __init__(self, values: _Optional[_Iterable[bool]] = ...) -> None: ...

class Strings(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class Bytes(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, values: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Column(_message.Message):
    __slots__ = ("name", "ints", "doubles", "bools", "strings", "bytes", "offsets", "nulls")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INTS_FIELD_NUMBER: _ClassVar[int]
    DOUBLES_FIELD_NUMBER: _ClassVar[int]
    BOOLS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    NULLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ints: Int64s
    doubles: Doubles
    bools: Bools
    strings: Strings
    bytes: Bytes
    offsets: _containers.RepeatedScalarFieldContainer[int]
    nulls: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., ints: _Optional[_Union[Int64s, _Mapping]] = ..., doubles: _Optional[_Union[Doubles, _Mapping]] = ..., bools: _Optional[_Union[Bools, _Mapping]] = ..., strings: _Optional[_Union[Strings, _Mapping]] = ..., bytes: _Optional[_Union[Bytes, _Mapping]] = ..., offsets: _Optional[_Iterable[int]] = ..., nulls: _Optional[_Iterable[int]] = ...) -> None: ...

class ContentFeatures(_message.Message):
    __slots__ = ("name", "ids", "features")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    name: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    features: bytes
    def __init__(self, name: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ..., features: _Optional[bytes] = ...) -> None: ...

class RankRequest(_message.Message):
    __slots__ = ("request_id", "context", "candidates", "bids", "content", "version", "side", "explain")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    BIDS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    EXPLAIN_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    context: _containers.RepeatedCompositeFieldContainer[Column]
    candidates: _containers.RepeatedCompositeFieldContainer[Column]
    bids: _containers.RepeatedScalarFieldContainer[float]
    content: _containers.RepeatedCompositeFieldContainer[ContentFeatures]
    version: int
    side: str
    explain: int
    def __init__(self, request_id: _Optional[str] = ..., context: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., candidates: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., bids: _Optional[_Iterable[float]] = ..., content: _Optional[_Iterable[_Union[ContentFeatures, _Mapping]]] = ..., version: _Optional[int] = ..., side: _Optional[str] = ..., explain: _Optional[int] = ...) -> None: ...

class Explanations(_message.Message):
    __slots__ = ("features", "fields", "candidates", "heads", "weights", "position")
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    features: _containers.RepeatedScalarFieldContainer[str]
    fields: int
    candidates: _containers.RepeatedCompositeFieldContainer[Explanation]
    heads: _containers.RepeatedScalarFieldContainer[str]
    weights: _containers.RepeatedScalarFieldContainer[float]
    position: str
    def __init__(self, features: _Optional[_Iterable[str]] = ..., fields: _Optional[int] = ..., candidates: _Optional[_Iterable[_Union[Explanation, _Mapping]]] = ..., heads: _Optional[_Iterable[str]] = ..., weights: _Optional[_Iterable[float]] = ..., position: _Optional[str] = ...) -> None: ...

class Explanation(_message.Message):
    __slots__ = ("index", "logit", "contributions", "keys", "cold_keys", "scale", "shift", "head_logits")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    LOGIT_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTIONS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    COLD_KEYS_FIELD_NUMBER: _ClassVar[int]
    SCALE_FIELD_NUMBER: _ClassVar[int]
    SHIFT_FIELD_NUMBER: _ClassVar[int]
    HEAD_LOGITS_FIELD_NUMBER: _ClassVar[int]
    index: int
    logit: float
    contributions: _containers.RepeatedScalarFieldContainer[float]
    keys: _containers.RepeatedScalarFieldContainer[int]
    cold_keys: _containers.RepeatedScalarFieldContainer[int]
    scale: float
    shift: float
    head_logits: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, index: _Optional[int] = ..., logit: _Optional[float] = ..., contributions: _Optional[_Iterable[float]] = ..., keys: _Optional[_Iterable[int]] = ..., cold_keys: _Optional[_Iterable[int]] = ..., scale: _Optional[float] = ..., shift: _Optional[float] = ..., head_logits: _Optional[_Iterable[float]] = ...) -> None: ...

class Exploration(_message.Message):
    __slots__ = ("explored", "propensity")
    EXPLORED_FIELD_NUMBER: _ClassVar[int]
    PROPENSITY_FIELD_NUMBER: _ClassVar[int]
    explored: bool
    propensity: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, explored: _Optional[bool] = ..., propensity: _Optional[_Iterable[float]] = ...) -> None: ...

class RankResponse(_message.Message):
    __slots__ = ("request_id", "version", "model", "index", "pctr", "ecpm", "degraded", "degraded_reason", "value", "exploration", "side", "explanations", "targets")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PCTR_FIELD_NUMBER: _ClassVar[int]
    ECPM_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    EXPLANATIONS_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    version: int
    model: str
    index: _containers.RepeatedScalarFieldContainer[int]
    pctr: _containers.RepeatedScalarFieldContainer[float]
    ecpm: _containers.RepeatedScalarFieldContainer[float]
    degraded: bool
    degraded_reason: str
    value: _containers.RepeatedScalarFieldContainer[float]
    exploration: Exploration
    side: str
    explanations: Explanations
    targets: _containers.RepeatedCompositeFieldContainer[TargetScores]
    def __init__(self, request_id: _Optional[str] = ..., version: _Optional[int] = ..., model: _Optional[str] = ..., index: _Optional[_Iterable[int]] = ..., pctr: _Optional[_Iterable[float]] = ..., ecpm: _Optional[_Iterable[float]] = ..., degraded: _Optional[bool] = ..., degraded_reason: _Optional[str] = ..., value: _Optional[_Iterable[float]] = ..., exploration: _Optional[_Union[Exploration, _Mapping]] = ..., side: _Optional[str] = ..., explanations: _Optional[_Union[Explanations, _Mapping]] = ..., targets: _Optional[_Iterable[_Union[TargetScores, _Mapping]]] = ...) -> None: ...

class TargetScores(_message.Message):
    __slots__ = ("name", "probability", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROBABILITY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    probability: _containers.RepeatedScalarFieldContainer[float]
    value: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, name: _Optional[str] = ..., probability: _Optional[_Iterable[float]] = ..., value: _Optional[_Iterable[float]] = ...) -> None: ...

class PreRankRequest(_message.Message):
    __slots__ = ("request_id", "context", "ids", "names", "top_k", "content", "bids", "version", "side")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BIDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    context: _containers.RepeatedCompositeFieldContainer[Column]
    ids: Int64s
    names: Strings
    top_k: int
    content: _containers.RepeatedCompositeFieldContainer[ContentFeatures]
    bids: _containers.RepeatedScalarFieldContainer[float]
    version: int
    side: str
    def __init__(self, request_id: _Optional[str] = ..., context: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., ids: _Optional[_Union[Int64s, _Mapping]] = ..., names: _Optional[_Union[Strings, _Mapping]] = ..., top_k: _Optional[int] = ..., content: _Optional[_Iterable[_Union[ContentFeatures, _Mapping]]] = ..., bids: _Optional[_Iterable[float]] = ..., version: _Optional[int] = ..., side: _Optional[str] = ...) -> None: ...

class PreRankResponse(_message.Message):
    __slots__ = ("request_id", "version", "model", "index", "ids", "names", "score", "unknown", "degraded", "degraded_reason", "value", "side")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    version: int
    model: str
    index: _containers.RepeatedScalarFieldContainer[int]
    ids: Int64s
    names: Strings
    score: _containers.RepeatedScalarFieldContainer[float]
    unknown: int
    degraded: bool
    degraded_reason: str
    value: _containers.RepeatedScalarFieldContainer[float]
    side: str
    def __init__(self, request_id: _Optional[str] = ..., version: _Optional[int] = ..., model: _Optional[str] = ..., index: _Optional[_Iterable[int]] = ..., ids: _Optional[_Union[Int64s, _Mapping]] = ..., names: _Optional[_Union[Strings, _Mapping]] = ..., score: _Optional[_Iterable[float]] = ..., unknown: _Optional[int] = ..., degraded: _Optional[bool] = ..., degraded_reason: _Optional[str] = ..., value: _Optional[_Iterable[float]] = ..., side: _Optional[str] = ...) -> None: ...

class RecommendRequest(_message.Message):
    __slots__ = ("request_id", "context", "ids", "names", "excluded_ids", "excluded_names", "prerank_k", "top_k", "bid_column", "content", "bids", "version", "side")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_IDS_FIELD_NUMBER: _ClassVar[int]
    EXCLUDED_NAMES_FIELD_NUMBER: _ClassVar[int]
    PRERANK_K_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    BID_COLUMN_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    BIDS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    context: _containers.RepeatedCompositeFieldContainer[Column]
    ids: Int64s
    names: Strings
    excluded_ids: Int64s
    excluded_names: Strings
    prerank_k: int
    top_k: int
    bid_column: str
    content: _containers.RepeatedCompositeFieldContainer[ContentFeatures]
    bids: _containers.RepeatedScalarFieldContainer[float]
    version: int
    side: str
    def __init__(self, request_id: _Optional[str] = ..., context: _Optional[_Iterable[_Union[Column, _Mapping]]] = ..., ids: _Optional[_Union[Int64s, _Mapping]] = ..., names: _Optional[_Union[Strings, _Mapping]] = ..., excluded_ids: _Optional[_Union[Int64s, _Mapping]] = ..., excluded_names: _Optional[_Union[Strings, _Mapping]] = ..., prerank_k: _Optional[int] = ..., top_k: _Optional[int] = ..., bid_column: _Optional[str] = ..., content: _Optional[_Iterable[_Union[ContentFeatures, _Mapping]]] = ..., bids: _Optional[_Iterable[float]] = ..., version: _Optional[int] = ..., side: _Optional[str] = ...) -> None: ...

class RecommendStage(_message.Message):
    __slots__ = ("name", "items_in", "items_out", "microseconds")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ITEMS_IN_FIELD_NUMBER: _ClassVar[int]
    ITEMS_OUT_FIELD_NUMBER: _ClassVar[int]
    MICROSECONDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    items_in: int
    items_out: int
    microseconds: int
    def __init__(self, name: _Optional[str] = ..., items_in: _Optional[int] = ..., items_out: _Optional[int] = ..., microseconds: _Optional[int] = ...) -> None: ...

class RecommendResponse(_message.Message):
    __slots__ = ("request_id", "version", "model", "prerank_model", "ids", "names", "pctr", "ecpm", "stages", "degraded", "degraded_reason", "value", "exploration", "side")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PRERANK_MODEL_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PCTR_FIELD_NUMBER: _ClassVar[int]
    ECPM_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_REASON_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPLORATION_FIELD_NUMBER: _ClassVar[int]
    SIDE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    version: int
    model: str
    prerank_model: str
    ids: Int64s
    names: Strings
    pctr: _containers.RepeatedScalarFieldContainer[float]
    ecpm: _containers.RepeatedScalarFieldContainer[float]
    stages: _containers.RepeatedCompositeFieldContainer[RecommendStage]
    degraded: bool
    degraded_reason: str
    value: _containers.RepeatedScalarFieldContainer[float]
    exploration: Exploration
    side: str
    def __init__(self, request_id: _Optional[str] = ..., version: _Optional[int] = ..., model: _Optional[str] = ..., prerank_model: _Optional[str] = ..., ids: _Optional[_Union[Int64s, _Mapping]] = ..., names: _Optional[_Union[Strings, _Mapping]] = ..., pctr: _Optional[_Iterable[float]] = ..., ecpm: _Optional[_Iterable[float]] = ..., stages: _Optional[_Iterable[_Union[RecommendStage, _Mapping]]] = ..., degraded: _Optional[bool] = ..., degraded_reason: _Optional[str] = ..., value: _Optional[_Iterable[float]] = ..., exploration: _Optional[_Union[Exploration, _Mapping]] = ..., side: _Optional[str] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ColumnInfo(_message.Message):
    __slots__ = ("name", "dtype", "placement", "required")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    placement: Placement
    required: bool
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., placement: _Optional[_Union[Placement, str]] = ..., required: _Optional[bool] = ...) -> None: ...

class ContentInfo(_message.Message):
    __slots__ = ("name", "fields", "width", "vectors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    FIELDS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    fields: _containers.RepeatedScalarFieldContainer[str]
    width: int
    vectors: int
    def __init__(self, name: _Optional[str] = ..., fields: _Optional[_Iterable[str]] = ..., width: _Optional[int] = ..., vectors: _Optional[int] = ...) -> None: ...

class VersionInfo(_message.Message):
    __slots__ = ("side", "number", "created_ms", "champion", "examples", "rows", "served", "held")
    SIDE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    CHAMPION_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    side: str
    number: int
    created_ms: int
    champion: str
    examples: int
    rows: int
    served: bool
    held: bool
    def __init__(self, side: _Optional[str] = ..., number: _Optional[int] = ..., created_ms: _Optional[int] = ..., champion: _Optional[str] = ..., examples: _Optional[int] = ..., rows: _Optional[int] = ..., served: _Optional[bool] = ..., held: _Optional[bool] = ...) -> None: ...

class SideInfo(_message.Message):
    __slots__ = ("name", "namespace", "share", "by", "model", "fingerprint", "version", "trouble", "explore")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    EXPLORE_FIELD_NUMBER: _ClassVar[int]
    name: str
    namespace: str
    share: float
    by: str
    model: str
    fingerprint: str
    version: int
    trouble: str
    explore: str
    def __init__(self, name: _Optional[str] = ..., namespace: _Optional[str] = ..., share: _Optional[float] = ..., by: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., version: _Optional[int] = ..., trouble: _Optional[str] = ..., explore: _Optional[str] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("role", "model", "fingerprint", "version", "created_ms", "columns", "max_candidates", "items", "content", "trouble", "champion", "value", "needs_bids", "step", "run_id", "examples", "lookup_ttl_ms", "held", "versions", "sides")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    MAX_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    CHAMPION_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NEEDS_BIDS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_TTL_MS_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    SIDES_FIELD_NUMBER: _ClassVar[int]
    role: str
    model: str
    fingerprint: str
    version: int
    created_ms: int
    columns: _containers.RepeatedCompositeFieldContainer[ColumnInfo]
    max_candidates: int
    items: int
    content: _containers.RepeatedCompositeFieldContainer[ContentInfo]
    trouble: str
    champion: str
    value: str
    needs_bids: bool
    step: int
    run_id: str
    examples: int
    lookup_ttl_ms: int
    held: str
    versions: _containers.RepeatedCompositeFieldContainer[VersionInfo]
    sides: _containers.RepeatedCompositeFieldContainer[SideInfo]
    def __init__(self, role: _Optional[str] = ..., model: _Optional[str] = ..., fingerprint: _Optional[str] = ..., version: _Optional[int] = ..., created_ms: _Optional[int] = ..., columns: _Optional[_Iterable[_Union[ColumnInfo, _Mapping]]] = ..., max_candidates: _Optional[int] = ..., items: _Optional[int] = ..., content: _Optional[_Iterable[_Union[ContentInfo, _Mapping]]] = ..., trouble: _Optional[str] = ..., champion: _Optional[str] = ..., value: _Optional[str] = ..., needs_bids: _Optional[bool] = ..., step: _Optional[int] = ..., run_id: _Optional[str] = ..., examples: _Optional[int] = ..., lookup_ttl_ms: _Optional[int] = ..., held: _Optional[str] = ..., versions: _Optional[_Iterable[_Union[VersionInfo, _Mapping]]] = ..., sides: _Optional[_Iterable[_Union[SideInfo, _Mapping]]] = ...) -> None: ...
