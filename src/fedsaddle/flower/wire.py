"""What travels: a header of plain JSON and named vectors as safetensors. Nothing is unpickled.

The bytes of the vectors go through Flower, and through a site's client process, as they are.
"""

import json
from collections.abc import Mapping
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flwr.app import RecordDict
    from torch import Tensor

Header = dict[str, Any]

KINDS = {
    "hello": "query.hello",
    "look": "query.look",
    "count": "query.count",
    "squares": "query.squares",
    "prepare": "query.prepare",
    "phase": "train.phase",
    "measure": "evaluate.measure",
    "total": "evaluate.total",
}
"""Every kind of request, and what Flower calls it."""
SMALL = 2**18
"""Vectors of so many bytes travel within the header's record: Flower hands on every record, array
and piece of an array in a request of its own, at each of three hops."""


class Unreadable(ValueError):
    """Bytes that are no message of ours."""


class Parcel(NamedTuple):
    """A request or a reply."""

    header: Header
    payload: bytes = b""

    def lengths(self) -> dict[str, int]:
        """How many numbers each vector of one's own payload has, without reading them."""
        end = 8 + int.from_bytes(self.payload[:8], "little")
        told = json.loads(self.payload[8:end])
        return {name: prod(vector["shape"]) for name, vector in told.items()}

    def vectors(self) -> "dict[str, Tensor]":
        """The named vectors of the payload."""
        if not self.payload:
            return {}
        import safetensors
        import safetensors.torch

        try:
            return safetensors.torch.load(self.payload)
        except (safetensors.SafetensorError, ValueError, KeyError) as error:
            raise Unreadable(f"not vectors in the form of safetensors ({error})") from None


def parcel(header: Header, vectors: "Mapping[str, Tensor] | None" = None) -> Parcel:
    """A header with named vectors."""
    if not vectors:
        return Parcel(header)
    import safetensors.numpy

    arrays = {name: vector.detach().cpu().numpy() for name, vector in vectors.items()}
    return Parcel(header, safetensors.numpy.save(arrays))


def to_records(sent: Parcel) -> "RecordDict":
    """As the content of a Flower message."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    header = ConfigRecord({"json": json.dumps(sent.header, allow_nan=False)})
    if len(sent.payload) <= SMALL:
        header["safetensors"] = sent.payload
        return RecordDict({"parcel": header})
    bulk = Array("uint8", (len(sent.payload),), "safetensors", sent.payload)
    return RecordDict({"parcel": header, "vectors": ArrayRecord({"safetensors": bulk})})


def from_records(content: "RecordDict") -> Parcel:
    """The inverse of `to_records`; a stranger's content is Unreadable."""
    try:
        record = content.config_records["parcel"]
        header, payload = json.loads(str(record["json"])), record.get("safetensors")
        if payload is None:
            payload = content.array_records["vectors"]["safetensors"].data
    except (KeyError, ValueError) as error:
        raise Unreadable(f"not a message of fedsaddle ({error})") from None
    if not isinstance(header, dict) or not isinstance(payload, bytes):
        raise Unreadable("not a message of fedsaddle")
    return Parcel(header, payload)
