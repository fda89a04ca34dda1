"""Agnostic learning: the best model for the worst mixture of the clients.

Mohri, Sivek and Suresh, "Agnostic Federated Learning", ICML 2019; Deng, Kamani and Mahdavi,
"Distributionally Robust Federated Averaging", NeurIPS 2020, eq. (2):

    min_w max_{λ ∈ simplex} Σ_i λ_i f_i(w),   f_i the mean cross-entropy of client i

λ weighs clients, or named groups of clients (of the data, or `federation.groups`). It never reaches
a client: the methods for this kind of problem keep it on the server.
"""

from typing import ClassVar

from fedsaddle.problems.base import Kind
from fedsaddle.problems.risk import Risk


class Agnostic(Risk):
    """Cross-entropy of the worst mixture of clients or groups.

    The best model is the one whose worst client's accuracy is highest.

    >>> Agnostic.kind, Agnostic.best_metric
    ('agnostic', 'validation/worst_accuracy')
    """

    name: ClassVar[str] = "agnostic"
    kind: ClassVar[Kind] = "agnostic"
    best_metric: ClassVar[str | None] = "validation/worst_accuracy"
