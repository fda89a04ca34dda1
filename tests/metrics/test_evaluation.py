"""Site reports and their summary against sums over all rows."""

import dataclasses
import json
import math

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, average_precision_score, roc_auc_score

from fedsaddle.errors import UserError
from fedsaddle.metrics import (
    ScoreCounts,
    SiteEvaluation,
    auc,
    delong_interval,
    evaluate_site,
    higher_is_better,
    metric_names,
    summarise,
)

SITE_KEYS = {"auc", "auc_low", "auc_high", "n_positive", "n_negative", "accuracy", "rows"}


@pytest.fixture(scope="module")
def binary_rows():
    rng = np.random.default_rng(0)
    rows = {}
    for name, size, shift in (("Bonn", 60, 2.0), ("Jena", 90, 0.5), ("Ulm", 30, 1.0)):
        labels = (rng.random(size) < 0.3).astype(int)
        rows[name] = (rng.normal(size=size) + shift * labels - 0.5, labels)
    rows["Hof"] = (rng.normal(size=8), np.zeros(8, dtype=int))  # one class
    rows["Ems"] = (np.empty(0), np.empty(0, dtype=int))  # no row
    return rows


@pytest.fixture(scope="module")
def binary_sites(binary_rows):
    return [
        evaluate_site(name, logits, labels, loss=0.1 * len(name) if len(labels) else math.nan)
        for name, (logits, labels) in binary_rows.items()
    ]


def class_sites(accuracies, rows=20):
    return [
        SiteEvaluation(f"s{i}", rows, loss=0.0, correct=round(accuracy * rows))
        for i, accuracy in enumerate(accuracies)
    ]


class TestEvaluateSite:
    def test_binary(self, binary_rows):
        logits, labels = binary_rows["Jena"]
        site = evaluate_site("Jena", logits, labels, loss=0.7)
        assert (site.name, site.rows, site.loss, site.task) == ("Jena", 90, 0.7, "binary")
        assert site.correct == accuracy_score(labels, logits > 0, normalize=False)
        assert auc(site.counts) == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)

    def test_binned_reports_bin_centres_only(self, binary_rows):
        logits, labels = binary_rows["Jena"]
        site = evaluate_site("Jena", logits, labels, loss=0.7, binned=True)
        bins = (site.counts.values + 20) * 4096 / 40 - 0.5
        np.testing.assert_array_equal(bins, bins.round())
        assert site.correct == accuracy_score(labels, logits > 0, normalize=False)

    def test_a_logit_of_exactly_0_predicts_negative(self):
        assert evaluate_site("Ulm", [0.0, 0.0, 0.0], [0, 1, 1], 0.0).correct == 1

    def test_multiclass(self):
        outputs = np.array([[2.0, 1.0, 0.0], [0.0, 1.0, 5.0], [0.0, 1.0, 0.0]])
        site = evaluate_site("Ulm", outputs, [0, 2, 2], loss=0.4)
        assert (site.task, site.correct, site.counts) == ("multiclass", 2, None)

    def test_without_predictions(self):
        site = evaluate_site("Ulm", None, np.zeros(5), loss=0.4)
        assert site == SiteEvaluation("Ulm", 5, 0.4, None, None)
        assert site.task == "none"

    def test_holds_no_array_of_rows(self):
        labels = np.arange(10_000) % 2
        site = evaluate_site("Ulm", np.linspace(-1, 1, 10_000), labels, loss=0.4, binned=True)
        sizes = [np.size(array) for array in vars(site.counts).values()]
        assert max(sizes) <= 2 / (40 / 4096) + 2  # bins that [-1, 1] touches
        others = {f.name for f in dataclasses.fields(site)} - {"counts"}
        assert all(np.ndim(getattr(site, name)) == 0 for name in others)

    @pytest.mark.parametrize(
        ("outputs", "labels", "message"),
        [
            ([0.0, math.nan], [0, 1], "1 of 2 logits are not finite"),
            ([0.0, 1.0], [0, 2], "must be 0"),
            ([0.0, 1.0], [0], "shape"),
            ([[0.0], [1.0]], [0, 1], r"give \(n,\) for a binary task"),
            (np.zeros((2, 2, 2)), [0, 1], r"\(2, 2, 2\)"),
            ([[0.0, 1.0]], [2], "class numbers from 0 to 1"),
            ([[0.0, 1.0]], [-1], "class numbers from 0 to 1"),
            ([[0.0, 1.0]], [0, 1], "1 rows of outputs"),
            ([[0.0, math.inf]], [1], "not finite"),
        ],
    )
    def test_bad_rows_are_refused_with_the_name_of_the_site(self, outputs, labels, message):
        with pytest.raises(ValueError, match=f"^site 'Ulm': .*{message}"):
            evaluate_site("Ulm", outputs, labels, loss=0.0)


class TestBinarySummary:
    def test_pooled_values_are_those_of_all_rows(self, binary_rows, binary_sites):
        logits = np.concatenate([rows[0] for rows in binary_rows.values()])
        labels = np.concatenate([rows[1] for rows in binary_rows.values()])
        summary = summarise("test", binary_sites)
        assert summary["test/rows"] == 188
        assert summary["test/auc"] == pytest.approx(roc_auc_score(labels, logits), abs=1e-12)
        assert summary["test/average_precision"] == pytest.approx(
            average_precision_score(labels, logits), abs=1e-12
        )
        assert summary["test/accuracy"] == pytest.approx(accuracy_score(labels, logits > 0))
        low, high = delong_interval(ScoreCounts.exact(logits, labels))
        assert (summary["test/auc_low"], summary["test/auc_high"]) == pytest.approx((low, high))
        # 0.1 per letter of the name, weighted by rows; the empty site's nan does not count.
        assert summary["test/loss"] == pytest.approx((0.4 * 150 + 0.3 * 38) / 188)

    def test_worst_site_and_undefined_sites(self, binary_rows, binary_sites):
        aucs = {n: roc_auc_score(*binary_rows[n][::-1]) for n in ("Bonn", "Jena", "Ulm")}
        summary = summarise("test", binary_sites)
        assert summary["test/worst_site"] == min(aucs, key=aucs.get)
        assert summary["test/worst_auc"] == pytest.approx(min(aucs.values()), abs=1e-12)
        assert summary["test/undefined_sites"] == 1

    def test_every_site_is_listed(self, binary_rows, binary_sites):
        summary = summarise("test", binary_sites)
        for name, (logits, labels) in binary_rows.items():
            entries = {key: summary[f"site/{name}/{key}"] for key in SITE_KEYS}
            assert entries["rows"] == labels.size
            if labels.size:
                assert entries["n_positive"] == labels.sum()
                assert entries["n_negative"] == (1 - labels).sum()
                assert entries["accuracy"] == pytest.approx(accuracy_score(labels, logits > 0))
        assert summary["site/Ulm/auc"] == pytest.approx(roc_auc_score(*binary_rows["Ulm"][::-1]))
        assert 0 < summary["site/Ulm/auc_low"] < summary["site/Ulm/auc"]
        assert summary["site/Ulm/auc"] < summary["site/Ulm/auc_high"] < 1

    def test_one_class_and_no_rows_are_undefined(self, binary_sites):
        summary = summarise("test", binary_sites)
        assert [summary[f"site/Hof/{key}"] for key in ("auc", "auc_low", "auc_high")] == [None] * 3
        assert {summary[f"site/Ems/{key}"] for key in SITE_KEYS - {"rows"}} == {None}

    def test_site_prefix_depends_on_the_split(self, binary_sites):
        names = set(summarise("train", binary_sites)) - set(metric_names("binary", "train"))
        assert names == {f"train/site/{s.name}/{key}" for s in binary_sites for key in SITE_KEYS}
        assert set(summarise("train", binary_sites, list_sites=False)) == set(
            metric_names("binary", "train")
        )

    def test_is_plain_json(self, binary_sites):
        summary = summarise("test", binary_sites)
        assert json.loads(json.dumps(summary, allow_nan=False)) == summary
        assert {type(value) for value in summary.values()} == {int, float, str, type(None)}

    def test_bins_change_little(self, binary_rows, binary_sites):
        sites = [evaluate_site(n, *rows, loss=0.0, binned=True) for n, rows in binary_rows.items()]
        binned, exact = summarise("test", sites), summarise("test", binary_sites)
        for name in ("auc", "auc_low", "auc_high", "worst_auc", "average_precision", "ece"):
            assert binned[f"test/{name}"] == pytest.approx(exact[f"test/{name}"], abs=0.01)
        assert binned["test/accuracy"] == exact["test/accuracy"]

    def test_calibration_error_of_all_rows(self):
        sites = [evaluate_site("a", [0.0] * 4, [0, 0, 0, 1], 0.0)]
        sites += [evaluate_site("b", [0.0] * 4, [1, 1, 1, 1], 0.0)]
        # All probabilities are ½, 5 of 8 rows are positive.
        assert summarise("test", sites)["test/ece"] == pytest.approx(0.125)

    def test_only_one_class_anywhere(self):
        sites = [evaluate_site(name, [0.3, 0.2], [1, 1], loss=0.5) for name in "ab"]
        summary = summarise("test", sites)
        for name in ("auc", "auc_low", "auc_high", "worst_auc", "worst_site", "average_precision"):
            assert summary[f"test/{name}"] is None
        assert summary["test/undefined_sites"] == 2
        assert summary["test/accuracy"] == 1.0

    def test_sites_of_one_row_give_an_auc_together(self):
        sites = [
            evaluate_site(f"patient {i}", [logit], [label], loss=0.5)
            for i, (logit, label) in enumerate([(0.3, 1), (0.1, 0), (0.2, 0), (0.15, 1)])
        ]
        summary = summarise("test", sites, list_sites=False)
        assert summary["test/auc"] == 0.75
        assert summary["test/undefined_sites"] == 4
        assert summary["test/worst_auc"] is None

    def test_a_diverged_loss_is_undefined_not_hidden(self):
        sites = [evaluate_site("a", [0.3], [1], math.inf), evaluate_site("b", [0.3], [1], 0.5)]
        assert summarise("test", sites)["test/loss"] is None


class TestMulticlassSummary:
    def test_spread_and_tenths(self):
        accuracies = np.linspace(0.0, 1.0, 21)[np.random.default_rng(0).permutation(21)]
        summary = summarise("test", class_sites(accuracies), list_sites=False)
        assert summary["test/accuracy"] == pytest.approx(0.5)
        assert summary["test/worst_accuracy"] == 0.0
        assert summary["test/worst10_accuracy"] == pytest.approx((0.0 + 0.05) / 2)  # 21 // 10 sites
        assert summary["test/best10_accuracy"] == pytest.approx((1.0 + 0.95) / 2)
        # Variance of 0, 1, ..., N − 1 is (N² − 1) / 12.
        assert summary["test/std_accuracy"] == pytest.approx(0.05 * math.sqrt((21**2 - 1) / 12))

    def test_tenth_of_few_sites_is_one_site(self):
        summary = summarise("test", class_sites([0.2, 0.9, 0.5]))
        assert summary["test/worst10_accuracy"] == summary["test/worst_accuracy"] == 0.2
        assert summary["test/best10_accuracy"] == 0.9
        assert summary["site/s1/accuracy"] == 0.9
        assert "site/s1/auc" not in summary

    def test_accuracy_weighs_rows_and_sites_without_rows_do_not_count(self):
        sites = [
            *class_sites([0.5], rows=30),
            SiteEvaluation("big", 90, 0.0, correct=90),
            SiteEvaluation("empty", 0, math.nan, correct=0),
        ]
        summary = summarise("test", sites)
        assert summary["test/accuracy"] == (15 + 90) / 120
        assert summary["test/worst_accuracy"] == 0.5
        assert summary["test/std_accuracy"] == pytest.approx(0.25)
        assert (summary["site/empty/rows"], summary["site/empty/accuracy"]) == (0, None)


class TestFindings:
    NAMES = ("edema", "mass", "hernia")

    @pytest.fixture
    def rows(self):
        random = np.random.default_rng(5)
        labels = {site: random.integers(-1, 2, (n, 3)) for site, n in (("Bonn", 90), ("Ulm", 60))}
        labels["Ulm"][:, 1] = np.where(labels["Ulm"][:, 1] == 1, -1, 0)
        labels["Bonn"][:, 2] = labels["Ulm"][:, 2] = -1
        return {site: (random.normal(size=y.shape) + 0.7 * y, y) for site, y in labels.items()}

    def sites(self, rows, **options):
        return [
            evaluate_site(n, *r, loss=0.0, findings=self.NAMES, **options) for n, r in rows.items()
        ]

    def test_aucs_are_those_of_scikit_learn_where_labels_are_known(self, rows):
        summary = summarise("test", self.sites(rows))
        everywhere = [np.concatenate(part) for part in zip(*rows.values(), strict=True)]
        for prefix, (scores, labels) in {
            "test": everywhere,
            **{f"site/{site}": part for site, part in rows.items()},
        }.items():
            defined = []
            for k, name in enumerate(self.NAMES):
                known = labels[:, k] >= 0
                value = summary[f"{prefix}/auc_{name}"]
                if len(set(labels[known, k])) < 2:
                    assert value is None
                    continue
                defined.append(roc_auc_score(labels[known, k], scores[known, k]))
                assert value == pytest.approx(defined[-1], abs=1e-12)
                low, high = (summary[f"{prefix}/auc_{name}_{end}"] for end in ("low", "high"))
                assert low < value < high
            assert summary[f"{prefix}/mean_auc"] == pytest.approx(np.mean(defined), abs=1e-12)
        assert summary["site/Ulm/n_positive_mass"] == 0
        assert summary["site/Ulm/n_negative_mass"] == (rows["Ulm"][1][:, 1] == 0).sum()
        assert summary["site/Bonn/n_positive_hernia"] == 0

    def test_the_interval_of_the_mean_is_wide_enough_for_equal_findings(self, rows):
        scores, labels = rows["Bonn"]
        same = [np.repeat(part[:, :1], 3, axis=1) for part in (scores, labels)]
        alike = summarise("test", self.sites({"Bonn": same}))
        for end in ("", "_low", "_high"):
            assert alike[f"test/mean_auc{end}"] == pytest.approx(alike[f"test/auc_edema{end}"])

    def test_a_single_positive_bounds_nothing(self):
        site = evaluate_site("a", [[1.0], [2.0], [0.0]], [[0], [1], [0]], 0.0, findings=["edema"])
        summary = summarise("test", [site])
        assert summary["test/auc_edema_low"] is None
        ends = [summary[f"test/mean_auc{end}"] for end in ("", "_low", "_high")]
        assert ends == [1.0, 0.0, 1.0]

    def test_bins_change_little_and_an_empty_site_is_listed(self, rows):
        rows["Jena"] = (np.zeros((0, 3)), np.zeros((0, 3), int))
        exact, binned = (summarise("test", self.sites(rows, binned=b)) for b in (False, True))
        assert binned["test/mean_auc"] == pytest.approx(exact["test/mean_auc"], abs=2e-3)
        assert exact["site/Jena/auc_edema"] is None
        assert exact["site/Jena/rows"] == 0

    def test_names_are_known_beforehand(self, rows):
        names = metric_names("multilabel", "test", self.NAMES)
        assert set(names) == set(summarise("test", self.sites(rows), list_sites=False))
        assert all(higher_is_better(name) for name in names if "auc" in name)


class TestOddFederations:
    @pytest.mark.parametrize("sites", [[], [SiteEvaluation("a", 0, math.nan)]])
    def test_nothing_to_summarise(self, sites):
        summary = summarise("test", sites, list_sites=False)
        assert summary == {"test/rows": 0, "test/loss": None}

    def test_binary_site_without_rows_only(self):
        summary = summarise("test", [evaluate_site("a", [], [], loss=math.nan)], list_sites=False)
        assert summary.pop("test/rows") == summary.pop("test/undefined_sites") == 0
        assert set(summary.values()) == {None}

    def test_a_site_without_rows_need_not_know_the_task(self):
        sites = [evaluate_site("a", [0.0, 1.0], [0, 1], 0.0), SiteEvaluation("b", 0, math.nan)]
        summary = summarise("test", sites)
        assert summary["test/auc"] == 1.0
        assert summary["site/b/auc"] is None

    def test_different_tasks_are_refused(self):
        sites = [SiteEvaluation("a", 3, 0.0, correct=2), SiteEvaluation("b", 3, 0.0)]
        with pytest.raises(ValueError, match="different tasks: multiclass, none"):
            summarise("test", sites)

    def test_repeated_names_are_refused(self):
        with pytest.raises(ValueError, match="two sites are named 's0'"):
            summarise("test", class_sites([0.5]) * 2)


class TestNames:
    @pytest.mark.parametrize(
        ("task", "sites"),
        [
            ("binary", [evaluate_site("a", [0.0, 1.0], [0, 1], 0.0)]),
            ("multiclass", [evaluate_site("a", [[0.0, 1.0]], [1], 0.0)]),
            ("none", [evaluate_site("a", None, [0], 0.0)]),
        ],
    )
    def test_are_those_of_the_summary(self, task, sites):
        assert metric_names(task, "val") == tuple(summarise("val", sites, list_sites=False))

    def test_are_the_documented_ones(self):
        accuracy = {"accuracy", "worst_accuracy", "std_accuracy"} | {
            "best10_accuracy",
            "worst10_accuracy",
        }
        ranking = {"auc", "auc_low", "auc_high", "worst_auc", "worst_site", "undefined_sites"}
        expected = {"rows", "loss", "average_precision", "ece"} | accuracy | ranking
        assert set(metric_names("binary", "v")) == {f"v/{name}" for name in expected}
        assert set(metric_names("multiclass", "v")) == {
            f"v/{name}" for name in accuracy | {"rows", "loss"}
        }

    def test_unknown_task_is_refused(self):
        with pytest.raises(ValueError, match="not 'ranking'"):
            metric_names("ranking", "test")

    def test_every_metric_has_a_direction_or_says_it_has_none(self):
        directions = {}
        for name in metric_names("binary", "test"):
            try:
                directions[name.removeprefix("test/")] = higher_is_better(name)
            except UserError:
                directions[name.removeprefix("test/")] = None
        lower = {name for name, higher in directions.items() if higher is False}
        assert lower == {"loss", "ece", "std_accuracy"}
        none = {name for name, higher in directions.items() if higher is None}
        assert none == {"rows", "worst_site", "undefined_sites"}

    def test_direction_of_a_site_metric(self):
        assert higher_is_better("site/St. Mary/ward 3/auc")
        assert not higher_is_better("train/site/Ulm/loss")

    def test_unknown_metric_gets_a_hint(self):
        with pytest.raises(UserError, match=r"'test/worst_auk' .* did you mean 'worst_auc'"):
            higher_is_better("test/worst_auk")
