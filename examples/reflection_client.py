r"""A client that knows nothing but the server's address: it learns the services and messages by reflection.

    python examples/reflection_client.py 127.0.0.1:50051
    python examples/reflection_client.py 127.0.0.1:50051 \
        '{"context": {"user_id": 7}, "candidates": {"ad_id": [1, 2]}}'

No generated module is imported. Without a request it prints what the server needs.
"""

from __future__ import annotations

import json
import sys
from itertools import accumulate
from typing import Any

import grpc
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.json_format import MessageToDict
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

PACKED = {"int": "ints", "float": "doubles", "bool": "bools", "string": "strings", "binary": "bytes"}


class ReflectedServer:
    """Calls unary methods of a server whose descriptors are fetched from itself."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)
        self._database = ProtoReflectionDescriptorDatabase(self._channel)
        self._pool = DescriptorPool(self._database)

    def services(self) -> list[str]:
        """Full names of the services."""
        return list(self._database.get_services())

    def call(self, service: str, method: str, fields: dict[str, Any]) -> Any:
        """The response message to a request with these fields. Raises grpc.RpcError."""
        descriptor = self._pool.FindServiceByName(service).FindMethodByName(method)
        request_class, response_class = map(GetMessageClass, (descriptor.input_type, descriptor.output_type))
        call = self._channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=request_class.SerializeToString,
            response_deserializer=response_class.FromString,
        )
        return call(request_class(**fields), timeout=5.0)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


def columns(values: dict[str, list[Any]], dtypes: dict[str, str]) -> list[dict[str, Any]]:
    """Column messages as dictionaries, packed by the types that Describe gave."""
    packed = []
    for name, column in values.items():
        dtype = dtypes.get(name, "string")
        message: dict[str, Any] = {"name": name}
        if dtype.startswith("list<"):
            message["offsets"] = list(accumulate(map(len, column), initial=0))
            column = [item for row in column for item in row]
            dtype = dtype[len("list<") : -1]
        packed.append(message | {PACKED[dtype.rstrip("0123456789")]: {"values": column}})
    return packed


def query(server: ReflectedServer, request: dict[str, Any]) -> dict[str, Any]:
    """Ranks (or pre-ranks) with a request of plain values; the response as a dictionary."""
    described = server.call("livectr.v1.Model", "Describe", {})
    dtypes = {column.name: column.dtype for column in described.columns}
    fields: dict[str, Any] = {
        "context": columns({name: [value] for name, value in request.get("context", {}).items()}, dtypes)
    }
    if described.role == "rank":
        fields |= {"candidates": columns(request["candidates"], dtypes), "bids": request.get("bids", [])}
        response = server.call("livectr.v1.Rank", "Rank", fields)
    else:
        fields |= {"ids": {"values": request["ids"]}, "top_k": request.get("top_k", 10)}
        response = server.call("livectr.v1.PreRank", "PreRank", fields)
    answer: dict[str, Any] = MessageToDict(response, preserving_proto_field_name=True)
    return answer


def main() -> None:
    """Print the reply to the command line's request, or the services without one."""
    server = ReflectedServer(sys.argv[1])
    try:
        if len(sys.argv) > 2:
            print(json.dumps(query(server, json.loads(sys.argv[2])), indent=2))
        else:
            print("services:", ", ".join(server.services()))
            print(server.call("livectr.v1.Model", "Describe", {}))
    finally:
        server.close()


if __name__ == "__main__":
    main()
