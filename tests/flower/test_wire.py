"""What travels, there and back, and what is no message of ours."""

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, RecordDict

from fedsaddle.flower.evaluations import pack, unpack
from fedsaddle.flower.wire import SMALL, Parcel, Unreadable, from_records, parcel, to_records
from fedsaddle.metrics import evaluate_site


@pytest.mark.parametrize("length", [0, 3, SMALL])
def test_a_parcel_survives_flower(length):
    vectors = {"z": torch.randn(1, length), "count": torch.arange(3, dtype=torch.int64)}
    sent = parcel({"kind": "phase", "round": 2}, vectors)
    back = from_records(to_records(sent))
    assert back == sent
    assert back.lengths() == {"z": length, "count": 3}
    for name, vector in back.vectors().items():
        assert torch.equal(vector, vectors[name])


def test_two_names_may_share_one_vector():
    z = torch.zeros(4)
    assert set(parcel({}, {"z": z, "at_step": z}).vectors()) == {"z", "at_step"}


@pytest.mark.parametrize(
    "record", [{}, {"json": "{"}, {"json": "[]", "safetensors": b""}, {"json": "{}"}]
)
def test_strangers_are_unreadable(record):
    with pytest.raises(Unreadable):
        from_records(RecordDict({"parcel": ConfigRecord(record)}))
    with pytest.raises(Unreadable):
        from_records(RecordDict())
    with pytest.raises(Unreadable, match="safetensors"):
        Parcel({}, b"\x80\x04pickle").vectors()


@pytest.mark.parametrize(
    "site",
    [
        evaluate_site("Ulm", [-1.0, 2.0, 0.5], [0, 1, 0], loss=0.3, binned=True),
        evaluate_site("Ulm", None, [0, 1], loss=float("nan")),
        evaluate_site("Ulm", [[0.1, 0.2, 0.0]], [1], loss=0.3),
        evaluate_site("Ulm", [[0.1, 2.0]], [[1, -1]], 0.3, binned=True, findings=["a", "b"]),
    ],
)
def test_an_evaluation_survives(site):
    header, vectors = pack(site, "test")
    back = unpack("Ulm", header, vectors, "test")
    assert (back.rows, back.correct, back.task) == (site.rows, site.correct, site.task)
    assert back.loss == pytest.approx(site.loss, nan_ok=True)
    if site.counts is not None:
        assert {n: v.tolist() for n, v in vars(back.counts).items()} == {
            n: v.tolist() for n, v in vars(site.counts).items()
        }
    if site.findings is not None:
        assert list(back.findings) == list(site.findings)
