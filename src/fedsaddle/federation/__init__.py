"""Who takes part, who answers, which replies count, and what was sent."""

from fedsaddle.federation.ledger import Ledger
from fedsaddle.federation.options import FederationOptions
from fedsaddle.federation.participation import all_take_part, answering, select
from fedsaddle.federation.screening import Answer, Refusal, screen

__all__ = [
    "Answer",
    "FederationOptions",
    "Ledger",
    "Refusal",
    "all_take_part",
    "answering",
    "screen",
    "select",
]
