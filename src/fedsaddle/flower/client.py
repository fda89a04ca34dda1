"""The Flower client app: hands each request to the site's worker and returns its reply."""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedsaddle.errors import UserError
from fedsaddle.flower.node import Node
from fedsaddle.flower.wire import KINDS, Parcel, Unreadable, from_records, to_records
from fedsaddle.flower.worker import ask_worker

app = ClientApp()


def answer(message: Message, context: Context) -> Message:
    """The reply to one message."""
    try:
        node = Node.read(context.node_config)
        request = from_records(message.content)
        request.header["run"] = str(context.run_id)
        reply = ask_worker(node, request) if node.resident else _alone(node, request)
    except (UserError, Unreadable) as error:
        reply = Parcel({"status": "refused", "reason": str(error)})
    return Message(to_records(reply), reply_to=message)


def _alone(node: Node, request: Parcel) -> Parcel:
    """Without a worker: load everything for this one request."""
    from fedsaddle.flower.site import Site

    return Site(node).answer(request)


_REGISTER = {"query": app.query, "train": app.train, "evaluate": app.evaluate}
for _kind in KINDS.values():
    _category, _, _action = _kind.partition(".")
    _REGISTER[_category](_action)(answer)
