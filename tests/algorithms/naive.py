"""Every method once more: the papers' pseudo-code as plain loops over clients and steps.

Each function takes the world (samples, clients, gradients), the hyper-parameters by the library's
field names, and the number of rounds; it yields the server's state after every round. `G` is the
saddle gradient `(∇x f, −∇y f)`, so that descent on x and ascent on y are one subtraction.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from harness import State, World
from torch import Tensor

Naive = Callable[[World, Any, int], Iterator[State]]
NAIVE: dict[str, Naive] = {}


def transcribes(*names: str) -> Callable[[Naive], Naive]:
    def note(function: Naive) -> Naive:
        for name in names:
            NAIVE[name] = function
        return function

    return note


def mean(vectors: list[Tensor], weights: list[float] | None = None) -> Tensor:
    weights = [1.0] * len(vectors) if weights is None else weights
    total = torch.zeros_like(vectors[0])
    for weight, vector in zip(weights, vectors, strict=True):
        total = total + weight * vector
    return total / sum(weights)


def rates(w: World, on_x: float, on_y: float) -> Tensor:
    eta = torch.empty_like(w.z0)
    eta[: w.dx], eta[w.dx :] = on_x, on_y
    return eta


def step_sizes(w: World, m: Any) -> Tensor:
    return rates(w, m.learning_rate, m.learning_rate if m.dual_rate is None else m.dual_rate)


def returned(w: World, rule: str, history: list[Tensor]) -> Tensor:
    """What a method returns after the rounds so far: last, mean, or a uniformly drawn round.

    The draw is made as the rounds go: round r takes the place of the pick with probability 1/r.
    """
    if rule == "last":
        return history[-1]
    if rule == "average":
        return mean(history)
    pick = history[0]
    for r, z in enumerate(history):
        if w.random("output", r).integers(r + 1) == 0:
            pick = z
    return pick


def with_outputs(
    one_round: Callable[[int, State], State], w: World, m: Any, state: State, rounds: int
) -> Iterator[State]:
    history = []
    for t in range(rounds):
        state = one_round(t, state)
        history.append(state["z"])
        yield state | {"output": returned(w, m.output_rule, history)}


# --- local steps and averaging --------------------------------------------------------------------


@transcribes("parallel-sgda")
def parallel_sgda(w: World, m: Any, rounds: int) -> Iterator[State]:
    """NPA: one gradient of every client at the shared point, one step of the server."""

    def one_round(t: int, state: State) -> State:
        z = state["z"]
        gradients = [w.G(z, w.draw(i, t, "gradient", 1)[0]) for i in w.answers("gradient", t)]
        return {"z": w.project(z - step_sizes(w, m) * mean(gradients))}

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


def _local_round(w: World, m: Any, t: int, z: Tensor) -> tuple[list[int], list[Tensor]]:
    clients, points = w.answers("steps", t), []
    for i in clients:
        z_i = z
        for rows in w.draw(i, t, "steps", m.local_steps):
            z_i = w.project(z_i - step_sizes(w, m) * w.G(z_i, rows))
        points.append(z_i)
    return clients, points


@transcribes("local-sgda")
def local_sgda(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Deng and Mahdavi 2021, Algorithm 1; CDMA paper, Algorithm 3 (CDMA-NC)."""

    def one_round(t: int, state: State) -> State:
        return {"z": mean(_local_round(w, m, t, state["z"])[1])}

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


@transcribes("fedavg")
def fedavg(w: World, m: Any, rounds: int) -> Iterator[State]:
    """McMahan et al. 2017, Algorithm 1: weights n_k / n over the round's clients."""

    def one_round(t: int, state: State) -> State:
        clients, points = _local_round(w, m, t, state["z"])
        return {"z": mean(points, [w.n_rows(i) for i in clients])}

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


@transcribes("fedprox")
def fedprox(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Li et al. 2020: local steps on `f_i(x) + μ/2 ‖x − x_t‖²`, mean weighted by sample count."""

    def one_round(t: int, state: State) -> State:
        z, points = state["z"], []
        clients = w.answers("steps", t)
        for i in clients:
            z_i = z
            for rows in w.draw(i, t, "steps", m.local_steps):
                g = w.G(z_i, rows)
                g = torch.cat([w.x(g) + m.prox * (w.x(z_i) - w.x(z)), w.y(g)])
                z_i = w.project(z_i - step_sizes(w, m) * g)
            points.append(z_i)
        return {"z": mean(points, [w.n_rows(i) for i in clients])}

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


@transcribes("local-sgda-plus")
def local_sgda_plus(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Deng and Mahdavi 2021, Algorithm 2: the dual's gradient at the snapshot x̃."""

    def one_round(t: int, state: State) -> State:
        z = state["z"]
        snapshot = w.x(z) if t % m.snapshot_rounds == 0 else state["snapshot"]
        points = []
        for i in w.answers("steps", t):
            z_i = z
            for rows in w.draw(i, t, "steps", m.local_steps):
                on_x = w.x(w.G(z_i, rows))
                on_y = w.y(w.G(torch.cat([snapshot, w.y(z_i)]), rows))
                z_i = w.project(z_i - step_sizes(w, m) * torch.cat([on_x, on_y]))
            points.append(z_i)
        return {"z": mean(points), "snapshot": snapshot}

    for state in with_outputs(one_round, w, m, {"z": w.z0}, rounds):
        yield {name: state[name] for name in ("z", "output")}


@transcribes("extra-step-local-sgd")
def extra_step_local_sgd(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Beznosikov, Samokhin and Gasnikov 2020: local extra-gradient steps."""

    def one_round(t: int, state: State) -> State:
        eta, points = step_sizes(w, m), []
        for i in w.answers("steps", t):
            z_i = state["z"]
            batches = w.draw(i, t, "steps", 2 * m.local_steps)
            for k in range(m.local_steps):
                half = w.project(z_i - eta * w.G(z_i, batches[2 * k]))
                z_i = w.project(z_i - eta * w.G(half, batches[2 * k + 1]))
            points.append(z_i)
        return {"z": mean(points)}

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


# --- CODA+, CODASCA, CODA -------------------------------------------------------------------------


def stage_lengths(m: Any, rounds: int) -> list[tuple[int, int]]:
    """(stage, position from 1) of every round, and how long each stage is meant to be."""
    places, stage = [], 0
    while len(places) < rounds:
        length = round(m.stage_rounds * m.rounds_growth**stage)
        places += [(stage, position + 1, length) for position in range(length)]
        stage += 1
    return places[:rounds]


def _coda(w: World, m: Any, rounds: int, controlled: bool, batch_dual: bool) -> Iterator[State]:
    z = w.z0
    N = w.n
    for t, (stage, position, length) in enumerate(stage_lengths(m, rounds)):
        eta = m.learning_rate / m.decay**stage
        I = round(m.local_steps * m.steps_growth**stage)  # noqa: E741
        if position == 1:  # DSG+ / DSGSCA+ is called afresh
            if batch_dual and stage > 0:
                z = _dual_of_batches(w, t, z)
            v_0 = w.x(z)
            c = torch.zeros_like(z)
            c_k = {i: torch.zeros_like(z) for i in range(N)}
            iterates: dict[int, list[Tensor]] = {i: [] for i in range(N)}
            picked = z
        clients, points, changes = w.answers("steps", t), [], {}
        for i in clients:
            z_i = z
            for rows in w.draw(i, t, "steps", I):
                prox = torch.cat([m.prox * (w.x(z_i) - v_0), torch.zeros_like(w.y(z_i))])
                g = w.G(z_i, rows) + prox
                if controlled:
                    g = g - c_k[i] + c
                z_i = w.project(z_i - eta * g)
                iterates[i].append(z_i)
            new = c_k[i] - c + (z - z_i) / (I * eta)
            changes[i] = new - c_k[i]
            points.append(z_i)
        if controlled:
            for i in clients:
                c_k[i] = c_k[i] + changes[i]
            c = sum(c_k.values()) / N  # eq. (6); equals c + (1/N) Σ_S Δc_i
            z = w.project(z + m.global_rate * (mean(points) - z))
        else:
            z = mean(points)
        if w.random("stage output", t).integers(position) == 0:
            picked = z  # r̃ uniform on 1..R, drawn as the rounds go
        ends = position == length
        if ends and m.output_rule == "average":
            # (1/K) Σ_k (1/T) Σ_t z_t^k; where some take part, of those that close the stage
            z = mean([mean(iterates[i]) for i in clients])
        elif ends and m.output_rule == "random":
            z = picked
        state = {"z": z, "output": z}  # a run cut short within a stage returns its last iterate
        if controlled:
            state["control"] = torch.zeros_like(c) if ends else c
        yield state


def _dual_of_batches(w: World, t: int, z: Tensor) -> Tensor:
    """CODA: α = mean score of the negatives − mean score of the positives, over fresh batches.

    With the margin surrogate the maximum over α ≥ 0 is at [m + that]₊.
    """
    sums, counts = {0: 0.0, 1: 0.0}, {0: 0, 1: 0}
    for i in w.answers("dual", t, everyone=True):
        for row in w.draw(i, t, "dual", 1)[0]:
            features = w.case.data.inputs[row]
            h = torch.sigmoid(z[: len(features)] @ features + z[len(features)])
            label = int(w.case.data.labels[row])
            sums[label] = sums[label] + h
            counts[label] += 1
    positive = sums[1] / counts[1] if counts[1] else z[-3]  # nobody has one: a stands for it
    negative = sums[0] / counts[0] if counts[0] else z[-2]
    alpha = negative - positive
    if w.case.margin is not None:
        alpha = torch.clamp(w.case.margin + alpha, min=0)
    return torch.cat([z[:-1], alpha.reshape(1)])


@transcribes("coda-plus")
def coda_plus(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Yuan et al. 2021, Algorithms 1 and 2."""
    return _coda(w, m, rounds, controlled=False, batch_dual=False)


@transcribes("codasca")
def codasca(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Yuan et al. 2021, Algorithms 3 and 4."""
    return _coda(w, m, rounds, controlled=True, batch_dual=False)


@transcribes("coda")
def coda(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Guo et al. 2020: CODA+, and α anew at the start of a stage from a batch of every client."""
    return _coda(w, m, rounds, controlled=False, batch_dual=True)


# --- momentum -------------------------------------------------------------------------------------


@transcribes("local-sgdam")
def local_sgdam(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Sharma et al. 2022 in the notation of the LocalSCGDAM paper (Algorithm 1 without g)."""
    eta = m.learning_rate
    move = eta * rates(w, m.primal_rate, m.dual_rate)
    beta = eta * rates(w, m.primal_momentum, m.dual_momentum)

    def one_round(t: int, state: State) -> State:
        points, momenta = [], []
        for i in w.answers("steps", t):
            z_i = state["z"]
            batches = w.draw(i, t, "steps", m.local_steps + (t == 0))
            u_i = w.G(z_i, batches.pop(0)) if t == 0 else state["momentum"]
            for rows in batches:
                z_i = w.project(z_i - move * u_i)
                u_i = (1 - beta) * u_i + beta * w.G(z_i, rows)
            points.append(z_i)
            momenta.append(u_i)
        return {"z": mean(points), "momentum": mean(momenta)}

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


def _momentum_round(w: World, m: Any, t: int, state: State, G: Any) -> State:
    points, momenta = [], []
    for i in w.answers("steps", t):
        z_i, m_i = state["z"], state["momentum"]
        for rows in w.draw(i, t, "steps", m.local_steps):
            m_i = m.momentum * m_i + G(z_i, rows)
            z_i = w.project(z_i - m.learning_rate * m_i)
        points.append(z_i)
        momenta.append(m_i)
    return {"z": mean(points), "momentum": mean(momenta)}


@transcribes("local-sgdm")
def local_sgdm(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Yu, Jin and Yang 2019: local momentum SGD; model and momentum are averaged."""

    def one_round(t: int, state: State) -> State:
        return _momentum_round(w, m, t, state, w.G)

    return with_outputs(one_round, w, m, {"z": w.z0, "momentum": torch.zeros_like(w.z0)}, rounds)


@transcribes("local-sgdm-rl")
def local_sgdm_rl(w: World, m: Any, rounds: int) -> Iterator[State]:
    """LocalSGDM on the ratio loss of Wang et al. 2021; the weights are set before every round."""

    def one_round(t: int, state: State) -> State:
        weights = w.case.class_weights(state["z"], w.answers("refresh", t), state["carried"])
        moved = _momentum_round(w, m, t, state, w.case.weighted(weights))
        return moved | {"carried": weights}

    start = {"momentum": torch.zeros_like(w.z0), "carried": torch.ones(2, dtype=torch.float64)}
    return with_outputs(one_round, w, m, {"z": w.z0, **start}, rounds)


@transcribes("local-scgdam")
def local_scgdam(w: World, m: Any, rounds: int) -> Iterator[State]:
    """LocalSCGDAM paper, Algorithm 1; the case gives `inner(x, ξ)` and `outer(h, y, ζ)`."""
    eta, alpha = m.learning_rate, m.inner_rate
    case = w.case

    def gradients(x: Tensor, h: Tensor, y: Tensor, xi: Any, zeta: Any) -> tuple[Tensor, Tensor]:
        """`∇g(x;ξ)ᵀ ∇_z f(h,y;ζ)` and `∇_y f(h,y;ζ)`."""
        h, y, x = (v.detach().clone().requires_grad_() for v in (h, y, x))
        on_h, on_y = torch.autograd.grad(case.outer(h, y, zeta), (h, y))
        (back,) = torch.autograd.grad(case.inner(x, xi), x, grad_outputs=on_h)
        return back, on_y

    def one_round(t: int, state: State) -> State:
        xs, ys, hs, us, vs = [], [], [], [], []
        for i in w.answers("steps", t):
            x, y = w.x(state["z"]), w.y(state["z"])
            xis = w.draw(i, t, "steps", m.local_steps + (t == 0), "inner")
            zetas = w.draw(i, t, "steps", m.local_steps + (t == 0))
            if t == 0:
                xi, zeta = xis.pop(0), zetas.pop(0)
                h = case.inner(x, xi).detach()
                u, v = gradients(x, h, y, xi, zeta)
            else:
                h, u, v = state["inner"], w.x(state["momentum"]), -w.y(state["momentum"])
            for xi, zeta in zip(xis, zetas, strict=True):
                x = x - m.primal_rate * eta * u
                y = y + m.dual_rate * eta * v
                z = w.project(torch.cat([x, y]))
                x, y = w.x(z), w.y(z)
                h = (1 - alpha * eta) * h + alpha * eta * case.inner(x, xi).detach()
                on_x, on_y = gradients(x, h, y, xi, zeta)
                u = (1 - m.primal_momentum * eta) * u + m.primal_momentum * eta * on_x
                v = (1 - m.dual_momentum * eta) * v + m.dual_momentum * eta * on_y
            for stack, value in zip((xs, ys, hs, us, vs), (x, y, h, u, v), strict=True):
                stack.append(value)
        return {
            "z": torch.cat([mean(xs), mean(ys)]),
            "inner": mean(hs),
            "momentum": torch.cat([mean(us), -mean(vs)]),
        }

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


# --- corrections ----------------------------------------------------------------------------------


def _corrected_steps(w: World, t: int, z: Tensor, u: Tensor, eta: Tensor, K: int) -> Tensor:
    """CDMA's parameter update phase (Algorithm 2, lines 3-11, β = 1) and its mean."""
    points = []
    for i in w.answers("steps", t):
        z_i = z
        for rows in w.draw(i, t, "steps", K):
            z_i = w.project(z_i - eta * (w.G(z_i, rows) + u - w.G(z, rows)))
        points.append(z_i)
    return mean(points)


@transcribes("cdma-one")
def cdma_one(w: World, m: Any, rounds: int) -> Iterator[State]:
    """CDMA paper, Algorithms 1 and 2 with β = 1, α_t ≡ 1."""

    def one_round(t: int, state: State) -> State:
        z = state["z"]
        u = mean([w.case.full_gradient(i, z) for i in w.answers("correction", t)])
        z_next = _corrected_steps(w, t, z, u, step_sizes(w, m), m.local_steps)
        return {"z": z_next, "correction": u}

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


@transcribes("cdma-ada")
def cdma_ada(w: World, m: Any, rounds: int) -> Iterator[State]:
    """CDMA paper, Algorithms 1 and 2 with β = 1 and the step sizes of its appendix D.3."""

    def one_round(t: int, state: State) -> State:
        z, before = state["z"], state["previous"]
        alpha = min(1.0, m.correction_rate / (t + 1) ** (2 * m.power))
        news = []
        for i in w.answers("correction", t):
            g = w.case.full_gradient(i, z)
            if t > 0:
                g = g - (1 - alpha) * w.case.full_gradient(i, before)
            news.append(g)
        u = mean(news)
        if t > 0:
            u = (1 - alpha) * state["correction"] + u
        eta = step_sizes(w, m) / (t + 1) ** m.power
        z_next = _corrected_steps(w, t, z, u, eta, m.local_steps)
        return {"z": z_next, "correction": u, "previous": z}

    return with_outputs(one_round, w, m, {"z": w.z0, "previous": w.z0}, rounds)


@transcribes("catalyst-scaffold-s")
def catalyst_scaffold_s(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Hou et al. 2021 on a part of the clients; the same clients serve both exchanges.

    H_i is the saddle gradient of f_i + θ/2 ‖x − c_x‖² − θ/2 ‖y − c_y‖².
    """
    eta_l = m.learning_rate
    eta_g = eta_l if m.global_rate is None else m.global_rate
    taken = 0

    def one_round(t: int, state: State) -> State:
        nonlocal taken
        z, center = state["z"], state["center"]

        def H(at: Tensor, rows: Any) -> Tensor:  # noqa: N802
            return w.G(at, rows) + m.prox * (at - center)

        clients = w.answers("correction", t)
        u = mean([H(z, w.case.rows(i)) for i in clients])
        steps = int(w.random("local steps", t).geometric(1 / m.local_steps))
        points = []
        for i in clients:
            z_i = z
            for rows in w.draw(i, t, "steps", steps):
                z_i = w.project(z_i - eta_l * (H(z_i, rows) + u - H(z, rows)))
            points.append(z_i)
        z = w.project(z + eta_g / eta_l * (mean(points) - z))
        due = any(k % m.center_steps == 0 for k in range(taken + 1, taken + steps + 1))
        taken += steps
        return {"z": z, "correction": u, "center": z if due else center}

    return with_outputs(one_round, w, m, {"z": w.z0, "center": w.z0}, rounds)


@transcribes("scaffold")
def scaffold(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Karimireddy et al. 2020, Algorithm 1, option II."""
    c_k = {i: torch.zeros_like(w.z0) for i in range(w.n)}

    def one_round(t: int, state: State) -> State:
        x, c = state["z"], state["control"]
        moves, changes = [], []
        for i in w.answers("steps", t):
            y = x
            for rows in w.draw(i, t, "steps", m.local_steps):
                y = w.project(y - m.learning_rate * (w.G(y, rows) - c_k[i] + c))
            new = c_k[i] - c + (x - y) / (m.local_steps * m.learning_rate)
            moves.append(y - x)
            changes.append(new - c_k[i])
            c_k[i] = new
        share = len(changes) / w.n
        return {
            "z": w.project(x + m.global_rate * mean(moves)),
            "control": c + share * mean(changes),
        }

    return with_outputs(one_round, w, m, {"z": w.z0, "control": torch.zeros_like(w.z0)}, rounds)


# --- fairness and distributional robustness -------------------------------------------------------


def simplex(v: Tensor) -> Tensor:
    """The nearest point of the simplex, by bisection on the threshold (no sorting)."""
    low, high = float(v.min()) - 1.0, float(v.max())
    for _ in range(200):
        middle = (low + high) / 2
        if float((v - middle).clamp(min=0).sum()) > 1:
            low = middle
        else:
            high = middle
    return (v - (low + high) / 2).clamp(min=0)


@transcribes("q-fedavg")
def q_fedavg(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Li, Sanjabi, Beirami and Smith 2020, Algorithm 2, with L = 1/η."""

    def one_round(t: int, state: State) -> State:
        z, q, L = state["z"], m.q, 1 / m.learning_rate
        top, bottom = torch.zeros_like(z), 0.0
        for i in w.answers("steps", t):
            F, z_i = float(w.case.full_loss(i, z)), z
            for rows in w.draw(i, t, "steps", m.local_steps):
                z_i = w.project(z_i - m.learning_rate * w.G(z_i, rows))
            delta = L * (z - z_i)
            top = top + F**q * delta
            bottom += q * F ** (q - 1) * float(delta @ delta) + L * F**q
        return {"z": w.project(z - top / bottom)}

    return with_outputs(one_round, w, m, {"z": w.z0}, rounds)


@transcribes("afl")
def afl(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Mohri, Sivek and Suresh 2019: a λ-weighted gradient step, a projected ascent step on λ.

    Where m of N clients answer, (N/m) times their sums stand for the sums over all.
    """

    def one_round(t: int, state: State) -> State:
        z, weights = state["z"], state["lambda"]
        clients = w.answers("gradient", t)
        scale = w.n / len(clients)
        p, share = w.client_weights(weights), w.group_shares()
        g, v = torch.zeros_like(z), torch.zeros_like(weights)
        for i in clients:
            (rows,) = w.draw(i, t, "gradient", 1)
            g = g + scale * p[i] * w.G(z, rows)
            v[w.group(i)] += scale * share[i] * float(w.case.loss(z, rows))
        z = w.project(z - m.learning_rate * g)
        return {"z": z, "lambda": simplex(weights + m.dual_rate * v)}

    return with_outputs(one_round, w, m, {"z": w.z0, "lambda": w.uniform()}, rounds)


def _drfa(
    w: World, m: Any, rounds: int, move: Callable[[Tensor, Tensor], Tensor], exact: bool
) -> Iterator[State]:
    tau = m.local_steps

    def one_round(t: int, state: State) -> State:
        z, weights = state["z"], state["lambda"]
        chosen = w.random("step", t).integers(1, tau, endpoint=True)  # t′, the same for all
        ends, snapshots = [], []
        for i, times in w.asked("steps", t, chances=w.client_weights(weights)):
            z_i = z
            for k, rows in enumerate(w.draw(i, t, "steps", tau), start=1):
                z_i = w.project(z_i - m.learning_rate * w.G(z_i, rows))
                if k == chosen:
                    snapshot = z_i
            ends += [z_i] * times
            snapshots += [snapshot] * times
        v, share = torch.zeros_like(weights), w.group_shares()
        clients = w.answers("losses", t, everyone=exact)
        for i in clients:
            if exact:
                loss = w.case.full_loss(i, z)
            else:
                loss = w.case.loss(mean(snapshots), w.draw(i, t, "losses", 1)[0])
            v[w.group(i)] += w.n / len(clients) * share[i] * float(loss)
        return {"z": mean(ends), "lambda": move(weights, v)}

    return with_outputs(one_round, w, m, {"z": w.z0, "lambda": w.uniform()}, rounds)


@transcribes("drfa")
def drfa(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Deng, Kamani and Mahdavi 2020, Algorithm 1."""

    def move(weights: Tensor, v: Tensor) -> Tensor:
        return simplex(weights + m.local_steps * m.dual_rate * v)

    return _drfa(w, m, rounds, move, exact=False)


@transcribes("drfa-prox")
def drfa_prox(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Algorithm 2: `λ ← argmax_u τ g(u) − ‖λ + τγv − u‖²/(2γ)`, g(u) = −(ρ/2)‖u − 1/N‖².

    The objective's curvature is the same in every direction, so one projected gradient step of the
    inverse of its size lands on the maximum, from anywhere.
    """
    tau, gamma, rho = m.local_steps, m.dual_rate, m.regulariser

    def move(weights: Tensor, v: Tensor) -> Tensor:
        u = weights
        slope = -tau * rho * (u - 1 / len(u)) + (weights + tau * gamma * v - u) / gamma
        return simplex(u + slope / (tau * rho + 1 / gamma))

    return _drfa(w, m, rounds, move, exact=False)


@transcribes("drfa-ga")
def drfa_ga(w: World, m: Any, rounds: int) -> Iterator[State]:
    """Algorithm 3: all clients' losses at the round-start model, no τ in the ascent step."""

    def move(weights: Tensor, v: Tensor) -> Tensor:
        return simplex(weights + m.dual_rate * v)

    return _drfa(w, m, rounds, move, exact=True)
