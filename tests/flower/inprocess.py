"""A federation without processes: a grid that lets sites in this process answer at once."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedsaddle.flower.coordinator import coordinate
from fedsaddle.flower.node import Node
from fedsaddle.flower.site import Site
from fedsaddle.flower.wire import Parcel, from_records, to_records
from fedsaddle.runs.api import train_config
from fedsaddle.runs.config import resolve


class Killed(BaseException):
    """The coordinator's process is gone."""


class Grid:
    """Messages are answered when they are pulled, unless `fate` says otherwise.

    fate(site, header, reply) gives the reply, None for one that never comes, or raises Killed.
    """

    def __init__(self, nodes, fate=lambda site, header, reply: reply):
        self.sites = {number: Site(node) for number, node in enumerate(nodes, start=10)}
        self.names = {number: node.site for number, node in enumerate(nodes, start=10)}
        self.fate, self.waiting, self.count = fate, {}, 0
        self.log = []

    def get_nodes(self):
        return [SimpleNamespace(node_id=node, last_activated_at="") for node in self.sites]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            self.count += 1
            message.metadata.__dict__["_message_id"] = str(self.count)
            self.waiting[str(self.count)] = message
            ids.append(str(self.count))
        return ids

    def pull_messages(self, ids):
        replies = []
        for number in ids:
            message = self.waiting.get(number)
            if message is None:
                continue
            node, request = message.metadata.dst_node_id, from_records(message.content)
            header = request.header
            self.log.append((self.names[node], header["kind"]))
            reply = self.fate(self.names[node], header, self.sites[node].answer(request))
            if reply is None:
                continue
            del self.waiting[number]
            if reply == "lost":
                replies.append(Message(Error(ErrorCode.NODE_UNAVAILABLE, "x"), reply_to=message))
            else:
                replies.append(Message(to_records(reply), reply_to=message))
        return replies


class Rehearsal:
    """Sites with a table each, a configuration, and runs of it in a simulator and over a grid."""

    def __init__(self, folder, rows=(60, 41, 52)):
        self.folder = folder
        random = np.random.default_rng(1)
        self.nodes = []
        direction = random.normal(size=4)
        for site, n in zip(("bonn", "ulm", "jena"), rows, strict=True):
            X = random.normal(size=(n, 4)) + random.normal(size=4) / 2
            y = (X @ direction + random.normal(size=n) > 0.5).astype(int)
            frame = pd.DataFrame(X, columns=list("abcd")).assign(ward=random.choice(list("xy"), n))
            frame.assign(died=y, edema=1 - y).to_csv(folder / f"{site}.csv", index=False)
            self.nodes.append(Node(site, str(folder / f"{site}.csv"), str(folder / "s" / site)))

    def config(
        self, problem="auc", algorithm="codasca", rounds=4, data=None, options=None, **sections
    ):
        files = [node.data for node in self.nodes]
        return resolve(
            {
                "data": {"source": files, "label": "died", "drop": ["edema"], **(data or {})},
                "problem": {"name": problem},
                "algorithm": {"name": algorithm, "batch_size": 16, **(options or {})},
                "evaluation": {"auc": "binned", "every": 2},
                "run": {"rounds": rounds, "checkpoint_every": 2},
                **sections,
                "engine": {
                    "sites": [node.site for node in self.nodes],
                    "poll_seconds": 0.01,
                    "grace_seconds": 0.3,
                    **sections.get("engine", {}),
                },
            }
        )

    def simulate(self, config, out="simulated", **federation):
        sections = config.sections()
        sections["federation"] |= federation
        return train_config(resolve(sections), self.folder / out)

    def run(self, config, out="flower", fate=None, resume=False):
        sections = config.sections()
        sections["engine"]["name"] = "flower"
        grid = Grid(self.nodes, **({} if fate is None else {"fate": fate}))
        return coordinate(grid, resolve(sections), self.folder / out, resume)

    def state(self, site):
        return self.folder / "s" / site


def tampered(reply, change):
    """A reply with its vectors changed."""
    import safetensors.numpy

    vectors = {name: change(v.numpy()) for name, v in reply.vectors().items()}
    return Parcel(reply.header, safetensors.numpy.save(vectors))
