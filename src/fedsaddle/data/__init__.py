"""Data of many clients in one store, and the ways to get it."""

from fedsaddle.data.federated import FederatedData, Rows
from fedsaddle.data.loading import load, load_table
from fedsaddle.data.options import DataOptions
from fedsaddle.data.preprocess import Preprocessing

__all__ = ["DataOptions", "FederatedData", "Preprocessing", "Rows", "load", "load_table"]
