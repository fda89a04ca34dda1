"""Small problems in double precision, each with its own loss written a second time by hand.

A `Case` holds the library's problem and data, and beside them what a naive method needs: the loss
of some rows at a flat point `z = (x, y)` in plain torch, its saddle gradient, and the projection.
Nothing on that side calls the library's problems, layout or oracle.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from fedsaddle.data import FederatedData, Rows
from fedsaddle.problems import AUC, Ball, Batch, CompositionalAUC, Problem, RatioLoss, Risk

DX, DY = 3, 2
PARTS = {"A": (DX, DX), "B": (DX, DY), "C": (DY, DY), "p": (DX,), "q": (DY,)}
WIDTH = sum(int(np.prod(shape)) for shape in PARTS.values())


def forms(matrices: Tensor, vectors: Tensor) -> Tensor:
    """The mean of `vᵀMv` over rows."""
    return ((matrices * vectors.unsqueeze(-2)).sum(-1) * vectors).sum(-1).mean()


class Quadratic(Problem):
    """`½(x−p)ᵀA(x−p) + xᵀBy − ½(y−q)ᵀC(y−q)`, one set of (A, B, C, p, q) in every data row."""

    name: ClassVar[str] = "test-quadratic"

    def start(self, generator: torch.Generator) -> tuple[dict, dict]:
        return {"x": torch.full((DX,), 0.5)}, {"y": torch.full((DY,), -0.25)}

    def loss(self, x: dict, y: dict, batch: Batch) -> Tensor:
        A, B, C, p, q = torch.split(
            batch.inputs, [int(np.prod(shape)) for shape in PARTS.values()], dim=-1
        )
        b = batch.inputs.shape[0]
        cross = (x["x"] @ B.mean(0).reshape(DX, DY)) @ y["y"]
        pull = forms(A.reshape(b, DX, DX), x["x"] - p)
        return pull / 2 + cross - forms(C.reshape(b, DY, DY), y["y"] - q) / 2


class BallQuadratic(Quadratic):
    """The same with `‖y‖ ≤ 0.3`: the constraint is active at the solution."""

    name: ClassVar[str] = "test-ball-quadratic"
    radius: float = 0.3

    def projections(self) -> dict:
        return {"y": Ball(self.radius)}


class Bilinear(Problem):
    """`xᵀBy + pᵀx − qᵀy`, one set of (B, p, q) in every data row (the rest of a row is unused)."""

    name: ClassVar[str] = "test-bilinear"

    def start(self, generator: torch.Generator) -> tuple[dict, dict]:
        return {"x": torch.full((DX,), 0.5)}, {"y": torch.full((DY,), -0.25)}

    def loss(self, x: dict, y: dict, batch: Batch) -> Tensor:
        row = batch.inputs.mean(0)
        _, B, _, p, q = torch.split(row, [int(np.prod(shape)) for shape in PARTS.values()])
        return x["x"] @ (B.reshape(DX, DY) @ y["y"]) + p @ x["x"] - q @ y["y"]


class Bowl(Problem):
    """`½(x−p)ᵀA(x−p) + ½`: the quadratic's primal half, a plain risk, never below ½."""

    name: ClassVar[str] = "test-bowl"
    kind: ClassVar = "risk"

    def start(self, generator: torch.Generator) -> tuple[dict, dict]:
        return {"x": torch.full((DX,), 0.5)}, {}

    def loss(self, x: dict, y: dict, batch: Batch) -> Tensor:
        A, p = batch.inputs[:, : DX * DX], batch.inputs[:, -DX - DY : -DY]
        return forms(A.reshape(A.shape[0], DX, DX), x["x"] - p) / 2 + 0.5


@dataclass(frozen=True)
class Case:
    """A problem twice: as the library takes it, and by hand."""

    name: str
    kind: str
    problem: Problem
    data: FederatedData
    z0: Tensor
    dx: int
    loss: Callable[[Tensor, np.ndarray], Tensor]
    gradient: Callable[[Tensor, np.ndarray], Tensor]
    project: Callable[[Tensor], Tensor] = lambda z: z
    margin: float | None = None
    inner: Callable[[Tensor, np.ndarray], Tensor] | None = None
    """`g(x; ξ)` of a compositional problem; `outer(h, y, ζ)` is f."""
    outer: Callable[[Tensor, Tensor, np.ndarray], Tensor] | None = None
    class_weights: Callable[[Tensor, list[int], Tensor], Tensor] | None = None
    """New weights of the ratio loss at z, from these clients' rows and the weights so far."""
    weighted: Callable[[Tensor], Callable[[Tensor, np.ndarray], Tensor]] | None = None
    """The saddle gradient of the loss with given class weights."""

    @property
    def n_clients(self) -> int:
        return self.data.n_clients

    def rows(self, client: int) -> np.ndarray:
        return self.data.train[client]

    def full_gradient(self, client: int, z: Tensor) -> Tensor:
        return self.gradient(z, self.rows(client))

    def full_loss(self, client: int, z: Tensor) -> Tensor:
        return self.loss(z, self.rows(client))


def saddle_gradient(
    loss: Callable[[Tensor, np.ndarray], Tensor], dx: int
) -> Callable[[Tensor, np.ndarray], Tensor]:
    """`(∇x f, −∇y f)` by autograd on a hand-written loss."""

    def gradient(z: Tensor, rows: np.ndarray) -> Tensor:
        leaf = z.detach().clone().requires_grad_()
        (g,) = torch.autograd.grad(loss(leaf, rows), leaf)
        return torch.cat([g[:dx], -g[dx:]])

    return gradient


# --- quadratics -----------------------------------------------------------------------------------


def _spd(random: np.random.Generator, size: int, low: float, high: float) -> np.ndarray:
    basis, _ = np.linalg.qr(random.normal(size=(size, size)))
    return basis @ np.diag(random.uniform(low, high, size)) @ basis.T


def quadratic_rows(n_rows: tuple[int, ...], seed: int = 0, noise: float = 0.3) -> list[np.ndarray]:
    """Every client's rows: its own (A, B, C, p, q), and noise on each row."""
    random = np.random.default_rng(seed)
    clients = []
    for count in n_rows:
        base = {"A": _spd(random, DX, 0.5, 2.0), "C": _spd(random, DY, 0.5, 2.0)}
        base |= {name: random.normal(size=PARTS[name]) for name in ("B", "p", "q")}
        rows = []
        for _ in range(count):
            own = {"A": base["A"] + _spd(random, DX, 0, noise)}
            own |= {"C": base["C"] + _spd(random, DY, 0, noise)}
            own |= {k: base[k] + noise * random.normal(size=PARTS[k]) for k in ("B", "p", "q")}
            rows.append(np.concatenate([own[name].ravel() for name in PARTS]))
        clients.append(np.array(rows))
    return clients


def _unpack(row: np.ndarray) -> dict[str, Tensor]:
    parts, start = {}, 0
    for name, shape in PARTS.items():
        stop = start + int(np.prod(shape))
        parts[name] = torch.from_numpy(row[start:stop].reshape(shape))
        start = stop
    return parts


def _without_labels(clients: list[np.ndarray]) -> FederatedData:
    return FederatedData.from_clients(
        [torch.from_numpy(rows) for rows in clients], test=0, validation=0
    )


def _row_mean(
    table: list[dict[str, Tensor]], rows: np.ndarray, of_row: Callable[[dict[str, Tensor]], Tensor]
) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        total = total + of_row(table[row])
    return total / len(rows)


SIZES = (6, 4, 5, 6, 3)


def quadratic(sizes: tuple[int, ...] = SIZES, ball: bool = False, noise: float = 0.3) -> Case:
    """Strongly convex, strongly concave, different at every client; closed-form gradients."""
    data = _without_labels(quadratic_rows(sizes, noise=noise))
    table = [_unpack(row) for row in data.inputs.numpy()]

    def loss(z: Tensor, rows: np.ndarray) -> Tensor:
        x, y = z[:DX], z[DX:]

        def one(r: dict[str, Tensor]) -> Tensor:
            u, v = x - r["p"], y - r["q"]
            return u @ r["A"] @ u / 2 + x @ r["B"] @ y - v @ r["C"] @ v / 2

        return _row_mean(table, rows, one)

    def gradient(z: Tensor, rows: np.ndarray) -> Tensor:
        x, y = z[:DX], z[DX:]

        def one(r: dict[str, Tensor]) -> Tensor:
            on_x = r["A"] @ (x - r["p"]) + r["B"] @ y
            on_y = r["B"].T @ x - r["C"] @ (y - r["q"])
            return torch.cat([on_x, -on_y])

        return _row_mean(table, rows, one)

    problem: Problem = BallQuadratic() if ball else Quadratic()

    def project(z: Tensor) -> Tensor:
        norm = z[DX:].norm()
        return torch.cat([z[:DX], z[DX:] * 0.3 / norm]) if ball and norm > 0.3 else z

    z0 = torch.tensor([0.5] * DX + [-0.25] * DY, dtype=torch.float64)
    name = "ball" if ball else "quadratic"
    return Case(name, "minimax", problem, data, z0, DX, loss, gradient, project)


def bilinear(sizes: tuple[int, ...] = SIZES, seed: int = 1) -> Case:
    data = _without_labels(quadratic_rows(sizes, seed=seed))
    table = [_unpack(row) for row in data.inputs.numpy()]

    def loss(z: Tensor, rows: np.ndarray) -> Tensor:
        x, y = z[:DX], z[DX:]
        return _row_mean(table, rows, lambda r: x @ r["B"] @ y + r["p"] @ x - r["q"] @ y)

    def gradient(z: Tensor, rows: np.ndarray) -> Tensor:
        x, y = z[:DX], z[DX:]
        one = lambda r: torch.cat([r["B"] @ y + r["p"], r["q"] - r["B"].T @ x])  # noqa: E731
        return _row_mean(table, rows, one)

    z0 = torch.tensor([0.5] * DX + [-0.25] * DY, dtype=torch.float64)
    return Case("bilinear", "minimax", Bilinear(), data, z0, DX, loss, gradient)


def bowl(sizes: tuple[int, ...] = SIZES, noise: float = 0.3) -> Case:
    """A plain risk: no dual variable."""
    data = _without_labels(quadratic_rows(sizes, seed=2, noise=noise))
    table = [_unpack(row) for row in data.inputs.numpy()]

    def loss(z: Tensor, rows: np.ndarray) -> Tensor:
        pull = _row_mean(table, rows, lambda r: (z - r["p"]) @ r["A"] @ (z - r["p"]) / 2)
        return pull + 0.5

    def gradient(z: Tensor, rows: np.ndarray) -> Tensor:
        return _row_mean(table, rows, lambda r: r["A"] @ (z - r["p"]))

    z0 = torch.full((DX,), 0.5, dtype=torch.float64)
    return Case("bowl", "risk", Bowl(), data, z0, DX, loss, gradient)


def solution(case: Case, weights: np.ndarray | None = None) -> Tensor:
    """Where the mean saddle gradient of a quadratic (or bowl) vanishes, by one linear solve."""
    weights = np.full(case.n_clients, 1 / case.n_clients) if weights is None else weights
    d = len(case.z0)

    def g(z: Tensor) -> Tensor:
        return sum(w * case.full_gradient(i, z) for i, w in enumerate(weights))

    g0 = g(torch.zeros(d, dtype=torch.float64))
    matrix = torch.stack([g(e) - g0 for e in torch.eye(d, dtype=torch.float64)], dim=1)
    return torch.linalg.solve(matrix, -g0)


# --- classification -------------------------------------------------------------------------------

FEATURES = 3


def linear_network(outputs: int = 1) -> nn.Linear:
    network = nn.Linear(FEATURES, outputs)
    with torch.no_grad():
        values = torch.linspace(-0.5, 0.5, FEATURES * outputs)
        network.weight.copy_(values.reshape(outputs, FEATURES))
        network.bias.copy_(torch.linspace(0.1, 0.2, outputs))
    return network


def labelled(one_class: bool = True) -> FederatedData:
    """Four clients of different size and prevalence; the last has one class only."""
    random = np.random.default_rng(5)
    labels = [[1, 0, 0, 1, 0, 0], [1, 1, 0, 1], [0, 1, 0, 0, 0], [0, 0, 0, int(not one_class)]]
    centres = random.normal(size=(len(labels), 2, FEATURES))
    inputs = [
        np.array([centres[i, y] + random.normal(size=FEATURES) for y in own])
        for i, own in enumerate(labels)
    ]
    flat = np.concatenate([np.array(own) for own in labels])
    starts = np.cumsum([0] + [len(own) for own in labels])
    rows = Rows(np.arange(len(flat)), starts)
    nothing = Rows.empty(len(labels))
    names = tuple(f"client-{i}" for i in range(len(labels)))
    return FederatedData(
        torch.from_numpy(np.concatenate(inputs)),
        torch.from_numpy(flat),
        rows,
        nothing,
        nothing,
        names,
        ("no", "yes"),
    )


def _flat_network(extra: tuple[float, ...] = ()) -> Tensor:
    network = linear_network()
    parts = [network.weight.detach().reshape(-1), network.bias.detach(), torch.tensor(extra)]
    return torch.cat(parts).double()


def auc_loss(
    data: FederatedData, p: float, margin: float | None = None
) -> Callable[[Tensor, np.ndarray], Tensor]:
    """CODASCA eq. (2) (or AUCM) row by row; `z = (weights, bias, a, b, α)`."""

    def loss(z: Tensor, rows: np.ndarray) -> Tensor:
        w, bias, a, b, alpha = z[:FEATURES], z[-4], z[-3], z[-2], z[-1]
        total = torch.zeros((), dtype=torch.float64)
        for row in rows:
            h = 1 / (1 + torch.exp(-(w @ data.inputs[row] + bias)))
            if int(data.labels[row]) == 1:
                value, gap = (1 - p) * (h - a) ** 2, -(1 - p) * h
            else:
                value, gap = p * (h - b) ** 2, p * h
            if margin is None:
                value = value + 2 * (1 + alpha) * gap
            else:
                value = value + 2 * alpha * (p * (1 - p) * margin + gap)
            total = total + value - p * (1 - p) * alpha**2
        return total / len(rows)

    return loss


def cross_entropy(data: FederatedData) -> Callable[[Tensor, np.ndarray], Tensor]:
    """Binary cross-entropy row by row; `z` starts with (weights, bias)."""

    def loss(z: Tensor, rows: np.ndarray) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        for row in rows:
            score = 1 / (1 + torch.exp(-(z[:FEATURES] @ data.inputs[row] + z[FEATURES])))
            chance = score if int(data.labels[row]) == 1 else 1 - score
            total = total - torch.log(chance)
        return total / len(rows)

    return loss


def auc(margin: float | None = None) -> Case:
    data = labelled()
    p = float(np.mean(data.labels.numpy() == 1))
    loss = auc_loss(data, p, margin)
    z0 = _flat_network((0.5, 0.5, 0.0))
    problem = (
        AUC(model=linear_network())
        if margin is None
        else AUC(model=linear_network(), surrogate="margin", margin=margin)
    )

    def project(z: Tensor) -> Tensor:
        return z if margin is None else torch.cat([z[:-1], torch.clamp(z[-1:], min=0.0)])

    name = "auc" if margin is None else "auc-margin"
    gradient = saddle_gradient(loss, len(z0) - 1)
    prepared = problem.prepare(data)
    return Case(name, "auc", prepared, data, z0, len(z0) - 1, loss, gradient, project, margin)


def risk() -> Case:
    data = labelled()
    loss = cross_entropy(data)
    z0 = _flat_network()
    gradient = saddle_gradient(loss, len(z0))
    return Case("risk", "risk", Risk(model=linear_network()), data, z0, len(z0), loss, gradient)


def compositional(rho: float = 0.3) -> Case:
    """AUC one cross-entropy step ahead: `g(x) = x − ρ[∇_w L_CE(w); 0; 0]`."""
    data = labelled()
    outer_loss = auc_loss(data, float(np.mean(data.labels.numpy() == 1)))
    entropy = cross_entropy(data)
    z0 = _flat_network((0.5, 0.5, 0.0))

    def inner(x: Tensor, rows: np.ndarray) -> Tensor:
        x = x if x.requires_grad else x.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(entropy(x, rows), x, create_graph=True)
        return x - rho * slope

    def outer(h: Tensor, y: Tensor, rows: np.ndarray) -> Tensor:
        return outer_loss(torch.cat([h, y]), rows)

    problem = CompositionalAUC(model=linear_network(), inner_step=rho).prepare(data)
    gradient = saddle_gradient(outer_loss, len(z0) - 1)
    return Case(
        "compositional",
        "compositional",
        problem,
        data,
        z0,
        len(z0) - 1,
        outer_loss,
        gradient,
        inner=inner,
        outer=outer,
    )


def ratio(strength: float = 0.1, max_ratio: float = 8.0, auxiliary_rows: int = 3) -> Case:
    """Cross-entropy with class weights `1 + β r_c`, r_c from the last layer's updates."""
    data = labelled()
    z0 = _flat_network()

    def weighted_loss(weights: Tensor) -> Callable[[Tensor, np.ndarray], Tensor]:
        plain = cross_entropy(data)

        def loss(z: Tensor, rows: np.ndarray) -> Tensor:
            parts = [weights[int(data.labels[row])] * plain(z, np.array([row])) for row in rows]
            return sum(parts) / len(rows)

        return loss

    def auxiliary(client: int, j: int) -> list[int]:
        """The first few rows of class j that this client has."""
        own = [int(row) for row in data.train[client] if int(data.labels[row]) == j]
        return own[:auxiliary_rows]

    def class_weights(z: Tensor, clients: list[int], weights: Tensor) -> Tensor:
        """By autograd on a two-output network whose first output is 0 and has weights all the same:
        every class's own update of them, from its rows at all clients."""
        updates = []
        for j in (0, 1):
            own = [row for client in clients for row in auxiliary(client, j)]
            if not own:
                return weights
            matrix = torch.stack([torch.zeros_like(z[:FEATURES]), z[:FEATURES]]).detach()
            matrix.requires_grad_()
            total = torch.zeros((), dtype=torch.float64)
            for row in own:
                logits = matrix @ data.inputs[row] + torch.stack(
                    [torch.zeros_like(z[0]), z[FEATURES]]
                )
                total = total - torch.log_softmax(logits, 0)[j] / len(own)
            (slope,) = torch.autograd.grad(total, matrix)
            updates.append(-slope)
        new = []
        for c in (0, 1):
            pairs = [
                (float(updates[c][c][k]), float(updates[1 - c][c][k])) for k in range(FEATURES)
            ]
            clear = [(own, other) for own, other in pairs if abs(other) <= 0.8 * abs(own)] or pairs
            r = sum(abs(own) for own, _ in clear) / sum(abs(other) for _, other in clear)
            new.append(1 + strength * min(r, max_ratio))
        return torch.tensor(new, dtype=torch.float64)

    ones = torch.ones(2, dtype=torch.float64)
    problem = RatioLoss(
        model=linear_network(),
        strength=strength,
        max_ratio=max_ratio,
        auxiliary_rows=auxiliary_rows,
    )
    return Case(
        "ratio",
        "ratio",
        problem.prepare(data),
        data,
        z0,
        len(z0),
        weighted_loss(ones),
        saddle_gradient(weighted_loss(ones), len(z0)),
        class_weights=class_weights,
        weighted=lambda weights: saddle_gradient(weighted_loss(weights), len(z0)),
    )


CASES: dict[str, Callable[[], Case]] = {
    "quadratic": quadratic,
    "ball": lambda: quadratic(ball=True),
    "bilinear": bilinear,
    "bowl": bowl,
    "auc": auc,
    "auc-margin": lambda: auc(margin=0.8),
    "risk": risk,
    "compositional": compositional,
    "ratio": ratio,
}
