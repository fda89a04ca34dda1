"""The exchanges of a federated set-up against `load` with all files on one machine."""

import json

import numpy as np
import pandas as pd
import pytest
import torch

from fedsaddle.data import DataOptions, load
from fedsaddle.data.facts import SPLITS, facts_of
from fedsaddle.data.site import (
    Agreement,
    SiteRows,
    agree,
    check_remote,
    combine,
    gathered_facts,
    settle,
)
from fedsaddle.errors import UserError


def over_the_wire(payload):
    return json.loads(json.dumps(payload, allow_nan=False))


def set_up(files, options, binary=True, seed=3):
    """What every site and the coordinator end with; all that travels goes through JSON."""
    sites = {
        path.stem: SiteRows(
            options.model_copy(update={"source": str(path)}), path.stem, binary, seed
        )
        for path in files
    }
    looks = {name: over_the_wire(site.look()) for name, site in sites.items()}
    agreed = agree(looks, options, binary)
    agreed = Agreement.model_validate_json(agreed.model_dump_json())
    counts = {name: over_the_wire(site.agree(agreed).count()) for name, site in sites.items()}
    totals = over_the_wire(combine(counts, agreed, options))
    squares = {name: over_the_wire(site.squares(totals)) for name, site in sites.items()}
    fitted = settle(totals, squares, agreed, options)
    facts = gathered_facts(agreed, looks, counts, fitted, options)
    return {name: site.data(fitted) for name, site in sites.items()}, facts


def check_same(files, options, binary=True):
    data = load(
        options.model_copy(update={"source": [str(path) for path in files]}), seed=3, binary=binary
    )
    sites, facts = set_up(files, options, binary)
    expected = facts_of(data)
    for name in ("names", "classes", "task", "input_shape", "preprocessing", "positive", "images"):
        assert getattr(facts, name) == getattr(expected, name), name
    assert np.array_equal(facts.positives, expected.positives)
    assert np.array_equal(facts.known, expected.known)
    np.testing.assert_equal(facts.positive_ratio, expected.positive_ratio)
    for client, name in enumerate(data.names):
        for split in SPLITS:
            assert np.array_equal(facts.rows[split], expected.rows[split])
            here, there = getattr(sites[name], split), getattr(data, split)
            assert here.counts.sum() == there.counts[client]
            rows, same = torch.from_numpy(here[client]), torch.from_numpy(there[client])
            assert torch.equal(sites[name].take(rows), data.take(same))
            assert torch.equal(sites[name].labels[rows], data.labels[same])
    return data


@pytest.fixture
def tables(tmp_path):
    random = np.random.default_rng(0)
    files = []
    for site, rows in (("north", 60), ("east", 31), ("site2", 17), ("site10", 45)):
        frame = pd.DataFrame(
            {
                "age": random.normal(60, 10, rows).round(2),
                "dose": random.integers(0, 4, rows),
                "ward": random.choice(["a", "b", "c"], rows),
                "died": random.choice(["no", "yes"], rows, p=[0.8, 0.2]),
                "edema": random.choice(["1", "0", ""], rows),
                "mass": random.choice(["1", "0"], rows, p=[0.1, 0.9]),
            }
        )
        frame.loc[::7, "age"] = np.nan
        files.append(tmp_path / f"{site}.csv")
        frame.to_csv(files[-1], index=False)
    return files


def test_tables_with_gaps_categories_and_zeros(tables):
    options = DataOptions(
        label="died", drop=["edema", "mass"], zero_is_missing=["dose"], categorical=["ward"]
    )
    data = check_same(tables, options)
    assert data.names == ("east", "north", "site2", "site10")


def test_some_sites_only_test_and_the_split_has_a_seed_of_its_own(tables):
    options = DataOptions(label="died", drop=["edema"], train_on=["north", "site2"], seed=11)
    data = check_same(tables, options)
    assert data.train.counts[0] == 0 < data.test.counts[0]


def test_several_findings_are_split_by_the_rarest_of_all_sites(tables):
    data = check_same(tables, DataOptions(label=["edema", "mass"], drop=["died"]), binary=False)
    assert data.task == "multilabel"


def test_a_label_with_many_values_and_one_site_without_some(tables):
    frame = pd.read_csv(tables[0])
    frame[frame.ward != "c"].to_csv(tables[0], index=False)
    options = DataOptions(label="ward", drop=["edema", "mass", "died"])
    assert check_same(tables, options, binary=False).classes == ("a", "b", "c")
    positive = options.model_copy(update={"positive": "c"})
    assert check_same(tables, positive).classes == ("not c", "c")


def test_arrays_of_images(tmp_path):
    random = np.random.default_rng(0)
    files = []
    for site in ("a", "b"):
        images = random.integers(0, 255, (20, 1, 4, 4), dtype=np.uint8)
        files.append(tmp_path / f"{site}.npz")
        np.savez(files[-1], X=images, y=random.integers(0, 2, 20))
    assert check_same(files, DataOptions()).input_shape == (1, 4, 4)


def test_sites_with_other_columns_are_told_apart(tables):
    pd.read_csv(tables[1]).drop(columns="dose").to_csv(tables[1], index=False)
    with pytest.raises(UserError, match=r"site 'east': no column 'dose', which site 'north' has"):
        set_up(tables, DataOptions(label="died"))


@pytest.mark.parametrize(
    "options",
    [{"partition": "iid"}, {"positive_ratio": 0.1}, {"feature": "sex"}, {"min_rows": 5}],
)
def test_what_needs_all_rows_in_one_place_is_refused(options):
    with pytest.raises(UserError, match=r"data\."):
        check_remote(DataOptions(**options))
