"""Counts and pictures of a partition."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsaddle.data import DataOptions, FederatedData, load
from fedsaddle.data.describe import class_counts, describe, sample, segments, write_page


@pytest.fixture(scope="module")
def digits():
    return load(DataOptions(source="digits", clients=5, alpha=0.2), binary=False)


def test_counts_are_those_of_the_labels(digits):
    counts = class_counts(digits)
    assert counts.sum(axis=0).tolist() == np.bincount(digits.labels.numpy()).tolist()
    for client in range(5):
        rows = np.concatenate([part[client] for part in (digits.train, digits.test)])
        rows = np.concatenate([rows, digits.validation[client]])
        assert counts[client].tolist() == np.bincount(digits.labels[rows], minlength=10).tolist()


def test_facts_are_plain_and_add_up(digits):
    facts = json.loads(json.dumps(describe(digits)))
    assert facts["task"] == "multiclass"
    assert facts["rows"] == sum(client["rows"] for client in facts["clients"]) == 1797
    assert facts["train_rows"] == sum(client["train_rows"] for client in facts["clients"])
    assert facts["quantiles"]["rows"]["1"] == max(c["rows"] for c in facts["clients"])
    assert "positives" not in facts
    assert "clients" not in describe(digits, most=4)


def test_awkward_clients():
    data = FederatedData.from_clients([([[0.0]], [1]), (np.empty((0, 1)), np.empty(0))], test=0)
    facts = describe(data)
    assert facts["clients"][1]["rows"] == 0
    assert facts["quantiles"]["positive_share"]["0.5"] == 1.0
    assert facts["positives"] == 1
    unlabelled = describe(FederatedData.from_clients([[[0.0], [1.0]]], test=0))
    assert unlabelled["clients"][0]["class_rows"] == [2]


def test_a_row_with_several_findings_counts_for_each():
    site = np.zeros((3, 2)), np.array([[1, 1], [0, 1], [-1, 0]])
    data = FederatedData.from_clients([site, site], test=0, findings=("effusion", "mass"))
    assert class_counts(data).tolist() == [[1, 2], [1, 2]]
    assert describe(data)["rows"] == 6
    assert describe(data)["clients"][0]["rows"] == 3


def test_groups_are_told():
    data = load(DataOptions(partition="iid", clients=2))
    assert "groups" not in describe(data)
    data = FederatedData(
        data.inputs, data.labels, data.train, data.validation, data.test,
        names=data.names, classes=data.classes, groups=("east", "west"),
    )  # fmt: skip
    assert describe(data)["groups"] == ["east", "west"]
    assert describe(data)["clients"][1]["group"] == "west"


@given(st.lists(st.integers(0, 500), min_size=1, max_size=12), st.integers(1, 60))
def test_segments_fill_the_bar(counts, width):
    total = sum(counts)
    parts = segments(np.array(counts), max(total, 1) * 2, width)
    assert sum(parts) == (max(1, round(width / 2)) if total else 0)
    assert all(part >= 0 for part in parts)
    assert all(part == 0 for part, count in zip(parts, counts, strict=True) if not count)


@given(st.lists(st.integers(0, 100), min_size=1, max_size=50), st.integers(2, 20))
def test_a_sample_spans_largest_to_smallest(rows, most):
    chosen = sample(np.array(rows), most)
    assert len(set(chosen)) == len(chosen) == min(most, len(rows))
    sizes = [rows[client] for client in chosen]
    assert (max(sizes), min(sizes)) == (max(rows), min(rows))


def test_the_page_names_clients_and_classes(digits, tmp_path):
    write_page(digits, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert all(name in page for name in (*digits.names, "stack"))
    assert "https://cdn" not in page.split("<body>")[-1][:2000]
