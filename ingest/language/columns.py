"""Columns of streams and tables as attributes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from livectr.ingest.language import dtypes
from livectr.ingest.language.expr import Expr
from livectr.ingest.language.hidden import mark
from livectr.system.errors import ConfigError


class UnknownColumnError(ConfigError, AttributeError):
    """Raised for an undeclared column; an AttributeError too, so that hasattr() works."""


@dataclass(frozen=True, eq=False)
class Columns:
    """Base of streams and tables: columns as attributes."""

    topic: str
    key: str
    columns: Mapping[str, str]
    time: str | None = None

    def __post_init__(self) -> None:
        if not self.topic:
            raise ConfigError(f"{type(self).__name__}: the topic has no name")
        object.__setattr__(self, "columns", dict(self.columns))
        for name, dtype in self.columns.items():
            dtypes.check_dtype(dtype, f"{self.topic}.{name}")
        self._need("key", self.key, ("int64", "int32", "string"))
        if self.time is not None:
            self._need("time", self.time, ("int64",))
        for name in set(self.columns) & set(self.__dataclass_fields__):
            mark(self, name, f'{self.topic}["{name}"]')

    def _need(self, what: str, name: str, allowed: tuple[str, ...]) -> None:
        if name not in self.columns:
            raise UnknownColumnError(f"{self.topic}: {what} column {name!r} is not declared; {self._known()}")
        if self.columns[name] not in allowed:
            kinds = " or ".join(allowed)
            raise ConfigError(
                f"{self.topic}: {what} column {name!r} is {self.columns[name]}; it must be {kinds}"
            )

    def _settings(self) -> list[str]:
        return [name for name in self.__dataclass_fields__ if name != "where"]

    def _known(self) -> str:
        return f"its columns are {', '.join(self.columns)}"

    def __getitem__(self, name: str) -> Expr:
        if name not in self.columns:
            raise UnknownColumnError(f"{self.topic} has no column {name!r}; {self._known()}")
        if self.columns[name] == "image":
            raise ConfigError(
                f"{self.topic}.{name} cannot be a feature: images come with the image models; use an image id"
            )
        return self._column(name)

    def __getattr__(self, name: str) -> Expr:
        if name.startswith("_"):
            raise AttributeError(name)
        return self[name]

    def _column(self, name: str) -> Expr:
        raise NotImplementedError

    def __repr__(self) -> str:
        # Contains every setting, because fingerprints are hashes of it.
        values = {name: getattr(self, name) for name in self._settings()}
        if values.get("time_unit") in (None, "ms"):  # the same milliseconds
            values.pop("time_unit", None)
        for name in ("max_age_ms", "max_bytes"):  # so that tables keep the fingerprint that they have
            if values.get(name, 0) is None:
                del values[name]
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in values.items())})"
