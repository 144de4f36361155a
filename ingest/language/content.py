"""Content: raw features of images or texts by id, which a sub-model of the network embeds (DICM §4, §5.1).

    content={"images": Content(("image", "clicked_images"), EmbeddingModel(width=4096))}

The ids are the keys of sparse fields, which keep their own embeddings: DICM's baseline has image ids as
sparse features, too (§7.4). The features are in a ContentStore, whose folder is a setting of trainer and
servers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.tables import Table
from livectr.system.errors import ConfigError


@dataclass(frozen=True)
class Content:
    """Declaration of one kind of content.

    Args:
        fields: sparse fields whose keys are content ids: whole numbers, or lists of them. An id without
            features gets the sub-model's learned "absent" vector.
        model: configuration of the sub-model (`models.embedding`).
        topic: table of new pictures, with an id and a column of type "image"; needs `encoder`.
        encoder: name of the encoder of the topic's pictures. Without both, `livectr features encode` makes
            the features.
    """

    fields: tuple[str, ...]
    model: object
    topic: Table | None = None
    encoder: str | None = None

    def check(self, name: str, sparse: Mapping[str, Expr]) -> None:
        """Check the declaration against the pipeline's sparse fields.

        Raises:
            ConfigError: it does not fit.
        """
        if not isinstance(self.fields, tuple) or not self.fields:
            raise ConfigError(
                f"content {name!r}: fields is {self.fields!r}; name the sparse fields whose keys are its "
                'ids, as in ("image",)'
            )
        for field in self.fields:
            if field not in sparse:
                raise ConfigError(
                    f"content {name!r} names {field!r}, which is no sparse field; fields: {', '.join(sparse)}"
                )
            if dtypes.element(sparse[field].dtype) not in ("int64", "int32"):
                raise ConfigError(
                    f"content {name!r}: field {field!r} is {sparse[field].dtype}; ids are whole numbers"
                )
        if (self.topic is None) is not (self.encoder is None):
            raise ConfigError(
                f"content {name!r}: topic and encoder go together: the pictures, and what makes features "
                "of them"
            )
        if self.topic is not None and self.image_column is None:
            raise ConfigError(
                f'content {name!r}: table {self.topic.topic} has no column of type "image"; declare one'
            )

    @property
    def image_column(self) -> str | None:
        """Column of the topic that holds pictures."""
        columns = self.topic.columns if self.topic is not None else {}
        return next((name for name, kind in columns.items() if kind == "image"), None)


def content_of(contents: Mapping[str, Content], fields: Collection[str]) -> tuple[str, ...]:
    """Names of the content whose ids are in some of the fields."""
    return tuple(name for name, content in contents.items() if not set(content.fields).isdisjoint(fields))


def check_contents(contents: Mapping[str, Content], sparse: Mapping[str, Expr]) -> None:
    """Check all content of a pipeline.

    Raises:
        ConfigError: a declaration does not fit, or two kinds of content share a field.
    """
    owner: dict[str, str] = {}
    for name, content in contents.items():
        if not isinstance(content, Content):
            raise ConfigError(f"Pipeline: content {name!r} is {content!r}, but must be a Content(...)")
        content.check(name, sparse)
        for field in content.fields:
            if field in owner:
                raise ConfigError(
                    f"field {field!r} belongs to content {owner[field]!r} and {name!r}; leave it in one"
                )
            owner[field] = name
