"""Federated preprocessing equals the centralised one, and tells the server only sums."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedsaddle.data import preprocess
from fedsaddle.data.preprocess import Preprocessing, fit
from fedsaddle.errors import UserError

# Values on a grid: spreads are zero or well above rounding, so both sides agree on "constant".
cells = st.one_of(st.none(), st.integers(-(10**6), 10**6).map(lambda value: value / 100))
words = st.one_of(st.none(), st.sampled_from(["a", "b", "c", "10", "9"]))
sites = st.lists(st.lists(st.tuples(cells, cells, words), max_size=8), min_size=1, max_size=4).map(
    # One sure value per column keeps the fit possible; the site that has it is the first.
    lambda rows: [[(1.0, 0.25, "b"), *rows[0]], *rows[1:]]
)


def frame_of(rows):
    return pd.DataFrame(rows, columns=["u", "v", "w"]).astype({"u": float, "v": float})


@settings(max_examples=40)
@given(sites, st.floats(-1e6, 1e6))
def test_equals_the_centralised_fit(rows, shift):
    frames = [frame_of(site) for site in rows]
    for frame in frames:
        frame["u"] += round(shift, 2)
    pooled = pd.concat(frames)
    federated = fit(frames, categorical=["w"])
    numeric = pooled[["u", "v"]].fillna(pooled[["u", "v"]].mean())
    scaler = StandardScaler().fit(pooled[["u", "v"]])
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore")
    encoder.fit(pooled[["w"]].dropna().astype(str))
    expected = np.hstack([scaler.transform(numeric), encoder.transform(pooled[["w"]].astype(str))])
    assert np.allclose(federated.transform(pooled), expected, atol=1e-5)
    assert federated.feature_names == ("u", "v", *(f"w={c}" for c in encoder.categories_[0]))


@settings(max_examples=25)
@given(sites)
def test_the_order_of_the_sites_does_not_matter(rows):
    frames = [frame_of(site) for site in rows]
    forwards, backwards = (fit(f, categorical=["w"]) for f in (frames, frames[::-1]))
    assert forwards == backwards


def payloads_of(frame):
    """Everything that one site sends."""
    described = preprocess.describe_columns(frame)
    schema = preprocess.merge_columns([described])
    sums = preprocess.site_sums(frame, schema)
    squares = preprocess.site_squares(frame, preprocess.merge_sums([sums]))
    return [described, sums, squares]


def plain(value):
    if isinstance(value, dict):
        return all(type(key) is str and plain(item) for key, item in value.items())
    return type(value) in (int, float, str)


def shape_of(value):
    return {k: shape_of(v) for k, v in value.items()} if isinstance(value, dict) else None


def test_a_site_sends_plain_numbers_whose_amount_does_not_grow_with_its_rows():
    random = np.random.default_rng(0)

    def table(n):
        return pd.DataFrame({"u": random.normal(size=n), "w": np.resize(["x", "y"], n)})

    small, large = payloads_of(table(10)), payloads_of(table(10_000))
    assert all(map(plain, small + large))
    assert json.loads(json.dumps(large)) == large
    assert shape_of(dict(enumerate(small))) == shape_of(dict(enumerate(large)))
    assert large[1]["w"] == {"categories": {"x": 5000, "y": 5000}}
    assert large[0]["w"] == {"count": 10_000, "text": 10_000}


def test_what_a_site_sends_are_its_counts_sums_and_squares():
    frame = pd.DataFrame({"u": ["1", "?", "4"], "w": ["p", "q", "p"]})
    described, sums, squares = payloads_of(frame)
    assert described == {"u": {"count": 2, "text": 0}, "w": {"count": 3, "text": 3}}
    assert sums == {"u": {"count": 2, "sum": 5.0}, "w": {"categories": {"p": 2, "q": 1}}}
    assert squares == {"u": 4.5}  # 1.5² + 1.5² about the mean 2.5


def test_a_far_mean_does_not_cancel_the_variance():
    frames = [pd.DataFrame({"u": [1e9, 1e9 + 1]}), pd.DataFrame({"u": [1e9 + 2]})]
    (column,) = fit(frames).columns
    assert column.scale == pytest.approx(math.sqrt(2 / 3), rel=1e-9)


def test_missing_tokens_in_any_case_and_blank():
    tokens = ["", " ", "?", "NA", "NaN", "null", "None", "none", "nan"]
    frame = pd.DataFrame({"u": [*tokens, "2", "4"], "w": [*tokens, "x", "x"]})
    fitted = fit([frame])
    assert fitted.feature_names == ("u", "w=x")
    features = fitted.transform(frame)
    assert (features[: len(tokens)] == 0).all()
    assert features[-2:].tolist() == [[-1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("dtype", ["int64", "Int64", "float32", "bool", "boolean", object, "str"])
def test_numbers_in_any_dtype(dtype):
    column = pd.Series([0, 1, 1, 0]).astype("bool" if "bool" in str(dtype) else "int64")
    frame = pd.DataFrame({"u": column.astype(dtype)})
    assert fit([frame]).transform(frame).ravel().tolist() == [-1.0, 1.0, 1.0, -1.0]


def test_gaps_of_nullable_and_categorical_dtypes_are_gaps():
    frame = pd.DataFrame(
        {
            "u": pd.array([1, None, 3], dtype="Int64"),
            "w": pd.Categorical(["x", None, "y"]),
        }
    )
    fitted = fit([frame])
    assert fitted.transform(frame)[1].tolist() == [0, 0, 0]
    assert fitted.feature_names == ("u", "w=x", "w=y")


def test_dates_are_categories_not_numbers():
    dates = pd.Series(["2020-01-31", "2021-01-31"])
    for column in (dates, pd.to_datetime(dates), pd.to_datetime(dates).dt.date):
        names = fit([pd.DataFrame({"day": column})]).feature_names
        assert [name[:14] for name in names] == ["day=2020-01-31", "day=2021-01-31"]


def test_a_constant_column_is_zero_even_for_new_values():
    frame = pd.DataFrame({"u": [0.1] * 3, "v": range(3)})
    fitted = fit([frame])
    assert fitted.columns[0].mean != 0.1  # rounding must not pass for a spread
    assert fitted.columns[0].scale == 0
    other = pd.DataFrame({"u": [0.1, 5.0], "v": [0, 1]})
    assert fitted.transform(other)[:, 0].tolist() == [0, 0]


def test_without_standardising_only_gaps_are_filled():
    frame = pd.DataFrame({"u": [1.0, np.nan, 4.0], "v": [7.0, 7.0, np.nan]})
    features = fit([frame], standardise=False).transform(frame)
    assert features.tolist() == [[1, 7], [2.5, 7], [4, 7]]


def test_zero_can_mean_missing_and_still_does_in_a_new_file():
    frame = pd.DataFrame({"chol": ["0", "200", "300"], "age": ["0", "1", "2"]})
    fitted = fit([frame], zero_is_missing=["chol"])
    assert (fitted.columns[0].mean, fitted.columns[0].scale) == (250, 50)
    assert fitted.columns[1].mean == 1
    assert fitted.transform(pd.DataFrame({"chol": [0.0], "age": [1]})).tolist() == [[0, 0]]
    with pytest.raises(UserError, match="zero_is_missing: no column 'col'; did you mean 'chol'"):
        fit([frame], zero_is_missing=["col"])


def test_one_site_writes_1_where_another_writes_1_0():
    fitted = fit(
        [pd.DataFrame({"cp": ["1.0", "2.0"]}), pd.DataFrame({"cp": [1, 3]})], categorical=["cp"]
    )
    assert fitted.feature_names == ("cp=1", "cp=2", "cp=3")
    assert fitted.transform(pd.DataFrame({"cp": [3.0, 2.0]})).tolist() == [[0, 0, 1], [0, 1, 0]]


def test_a_column_with_text_at_one_site_is_categorical_at_all():
    fitted = fit([pd.DataFrame({"w": [1, 2]}), pd.DataFrame({"w": ["x", "?"]})])
    assert fitted.feature_names == ("w=1", "w=2", "w=x")


def test_unseen_and_missing_categories_are_all_zero():
    fitted = fit([pd.DataFrame({"w": ["x", "y"]})])
    assert fitted.transform(pd.DataFrame({"w": ["z", None, "y"]})).tolist() == [
        [0, 0],
        [0, 0],
        [0, 1],
    ]


def test_a_site_may_lack_all_values_of_a_column_or_all_rows():
    full = pd.DataFrame({"u": [1.0, 3.0], "w": ["x", "y"]})
    blank = pd.DataFrame({"u": ["?"], "w": ["?"]})
    assert fit([full, blank, full[:0]]) == fit([full])


def test_extra_columns_are_ignored_and_order_is_free():
    frame = pd.DataFrame({"u": [1.0, 2.0], "v": [3.0, 5.0]})
    fitted = fit([frame])
    shuffled = frame[["v", "u"]].assign(extra="text")
    assert np.array_equal(fitted.transform(shuffled), fitted.transform(frame))
    assert fitted.transform(frame).dtype == np.float32


def test_json_round_trip():
    frame = pd.DataFrame({"u": [0.1, 0.7], "w": ["x", "ü"]})
    fitted = fit([frame], standardise=False, zero_is_missing=["u"])
    payload = json.loads(json.dumps(fitted.to_json()))
    assert Preprocessing.from_json(payload) == fitted
    assert payload["version"] == 1


def broken(**changes):
    column = {"kind": "numeric", "name": "u", "mean": 0.0, "scale": 1.0}
    return {"version": 1, "standardise": True, "columns": [column]} | changes


@pytest.mark.parametrize(
    "payload",
    [
        broken(version=2),
        broken(extra=1),
        broken(columns=[{"kind": "numeric", "name": "u", "mean": "0", "scale": 1.0}]),
        broken(columns=[{"kind": "numeric", "name": "u", "mean": 0.0, "scale": -1.0}]),
        broken(columns=[{"kind": "numeric", "name": "u", "mean": math.nan, "scale": 1.0}]),
        broken(columns=[{"kind": "vector", "name": "u"}]),
        broken(columns=[{"kind": "categorical", "name": "u"}]),
        broken(columns={1, 2}),
        {"columns": []},
        {},
    ],
)
def test_json_is_read_strictly(payload):
    with pytest.raises(UserError, match="Not a preprocessing description of version 1"):
        Preprocessing.from_json(payload)
    assert Preprocessing.from_json(broken()).feature_names == ("u",)


NUMBERS = pd.DataFrame({"u": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fit([]), "at least one site"),
        (
            lambda: fit([pd.DataFrame({"u": ["?"]}), pd.DataFrame({"u": [None]})]),
            r"Column 'u' has no value at any site; .*data.drop = \[\"u\"\]",
        ),
        (
            lambda: fit(
                [NUMBERS, pd.DataFrame({"u": ["1", "x"]})], ["u"], where=["a.csv", "b.csv"]
            ),
            "b.csv: numeric column 'u' holds the text 'x' in row 1; .*data.categorical",
        ),
        (
            lambda: fit([pd.DataFrame({"u": [1.0, np.inf]})]),
            "site 0: column 'u' is infinite in row 1",
        ),
        (lambda: fit([pd.DataFrame({"u": ["-inf"]})]), "infinite in row 0"),
        (lambda: fit([pd.DataFrame({"u": ["-inf"]})], ["u"]), "infinite in row 0"),
        (
            lambda: fit([pd.DataFrame({"w": list("abc")})], max_categories=2),
            r"site 0: text column 'w' has 3 categories.*identifier.*data.drop = \[\"w\"\]",
        ),
        (
            lambda: fit(
                [pd.DataFrame({"w": list("ab")}), pd.DataFrame({"w": list("bc")})],
                max_categories=2,
            ),
            "all sites together: text column 'w' has 3 categories",
        ),
        (
            lambda: fit([NUMBERS, pd.DataFrame({"v": [1]})], where=["a.csv", "b.csv"]),
            "b.csv: no column 'u', which a.csv has",
        ),
        (
            lambda: fit([NUMBERS, NUMBERS.assign(v=1)], where=["a.csv", "b.csv"]),
            "a.csv: no column 'v', which b.csv has",
        ),
        (
            lambda: fit([pd.DataFrame({"age": [1]})], numeric=["agee"]),
            "data.numeric: no column 'agee'; did you mean 'age'",
        ),
        (lambda: fit([NUMBERS], categorical=["zz"]), "data.categorical: no column 'zz'; known: u"),
        (lambda: fit([NUMBERS], ["u"], ["u"]), "in both data.numeric and data.categorical"),
        (lambda: fit([pd.DataFrame({"u": [1e200, -1e200]})]), "'u' holds numbers too large"),
        (lambda: fit([pd.DataFrame({"u": [1e308]})] * 3), "'u' holds numbers too large"),
        (lambda: fit([pd.DataFrame({"u": [1e308] * 3})]), "'u' holds numbers too large"),
        (
            lambda: fit([pd.DataFrame({"age": [1.0]})]).transform(
                pd.DataFrame({"ag": [1]}), "n.csv"
            ),
            "n.csv: no column 'age', which the model needs; did you mean 'ag'",
        ),
        (
            lambda: fit([NUMBERS]).transform(pd.DataFrame({"u": ["1", "old"]}, [7, 8]), "n.csv"),
            "n.csv: numeric column 'u' holds the text 'old' in row 8",
        ),
        (
            lambda: fit([NUMBERS]).transform(pd.DataFrame({"u": [np.inf]}), "n.csv"),
            "n.csv: column 'u' is infinite in row 0",
        ),
    ],
)
def test_errors_name_the_place_and_the_remedy(call, message):
    with pytest.raises(UserError, match=message):
        call()
