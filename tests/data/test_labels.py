"""Which label value is positive."""

import numpy as np
import pytest

from fedsaddle.data.labels import encode, match
from fedsaddle.errors import UserError


@pytest.mark.parametrize(
    ("values", "positive", "classes"),
    [
        ("0 1 1 1", None, ("0", "1")),
        ("-1 1 1 1", None, ("-1", "1")),
        ("No Yes Yes Yes", None, ("No", "Yes")),
        ("True False True True", None, ("False", "True")),
        ("0 1 1 1", "0", ("1", "0")),
        ("0 1 1 1", "1.0", ("0", "1")),
        ("ill well well", None, ("well", "ill")),  # the rarer
        ("well ill ill", None, ("ill", "well")),
        ("b a a b", None, ("a", "b")),  # as many of each: the later in order
        ("1 2 2", None, ("2", "1")),
        ("a b c c", "c", ("not c", "c")),
    ],
)
def test_the_positive_value(values, positive, classes):
    values = values.split()
    labels, found = encode(np.array(values, dtype=object), positive, True, "a.csv")
    assert found == classes
    assert labels.tolist() == [int(value == classes[1]) for value in values]


def test_several_values_stay_when_the_problem_allows():
    labels, classes = encode(np.array(["10", "9", "-1", "9"]), None, False, "a.csv")
    assert classes == ("-1", "9", "10")
    assert labels.tolist() == [2, 1, 0, 1]
    assert encode(np.array(["c2", "c10", "c1"]), None, False, "")[1] == ("c1", "c2", "c10")
    assert encode(np.array(["a", "b", "c"]), "b", False, "")[1] == ("not b", "b")
    assert encode(np.array(["yes", "no"]), None, False, "")[1] == ("no", "yes")


@pytest.mark.parametrize(
    ("values", "positive", "message"),
    [
        (
            "a b c",
            None,
            r"f.csv: the label has 3 values \(a, b, c\) but the problem needs two; "
            r'set data.positive = "c" .* or choose problem risk',
        ),
        (" ".join(map(str, range(12))), None, r"12 values \(0, 1, .*9, …\)"),
        ("a a", None, "f.csv: every label is 'a'; two classes are needed"),
        ("sick well", "sik", "data.positive: f.csv has no label 'sik'; did you mean 'sick'"),
    ],
)
def test_unusable_labels(values, positive, message):
    with pytest.raises(UserError, match=message):
        encode(np.array(values.split()), positive, True, "f.csv")


def test_matching_a_new_files_values_to_known_classes():
    assert match(np.array(["b", "a"]), ("a", "b"), "n.csv").tolist() == [1, 0]
    assert match(np.array(["3", "8", "0"]), ("not 8", "8"), "n.csv").tolist() == [0, 1, 0]
    assert match(np.array(["3", "0", "not 0"]), ("0", "not 0"), "n.csv").tolist() == [1, 0, 1]
    with pytest.raises(UserError, match=r"n.csv: unknown label 'c' in row 2; known: a, b"):
        match(np.array(["a", "c"]), ("a", "b"), "n.csv")
