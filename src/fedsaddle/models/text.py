"""A recurrent network over characters."""

import torch
from torch import Tensor, nn

from fedsaddle.errors import UserError


class CharGRU(nn.Module):
    """Next character by an embedding, a GRU of 50 units and a linear layer (DRFA, Fig. 6).

    Deng, Kamani and Mahdavi, NeurIPS 2020, section 5: 86 characters are embedded in 50 dimensions.
    The same function as `nn.GRU`, which `torch.vmap` cannot run, written with linear layers; the
    gates are in its order: reset, update, new.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        outputs: int,
        vocabulary: int = 86,
        embedding: int = 50,
        hidden: int = 50,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise UserError(
                "model.name: 'char-gru' takes rows of tokens, (length,); "
                f"the rows of this data have shape {tuple(input_shape)}."
            )
        self.embedding = nn.Embedding(vocabulary, embedding)
        self.from_input = nn.Linear(embedding, 3 * hidden)
        self.from_hidden = nn.Linear(hidden, 3 * hidden)
        self.head = nn.Linear(hidden, outputs)
        for weights in (*self.from_input.parameters(), *self.from_hidden.parameters()):
            nn.init.uniform_(weights, -(hidden**-0.5), hidden**-0.5)  # as nn.GRU

    def forward(self, tokens: Tensor) -> Tensor:
        gates = self.from_input(self.embedding(tokens.long()))
        h = gates.new_zeros(len(tokens), self.from_hidden.in_features)
        for step in gates.unbind(1):
            reset_in, update_in, new_in = step.chunk(3, dim=1)
            reset_h, update_h, new_h = self.from_hidden(h).chunk(3, dim=1)
            update = torch.sigmoid(update_in + update_h)
            new = torch.tanh(new_in + torch.sigmoid(reset_in + reset_h) * new_h)
            h = new + update * (h - new)
        logits: Tensor = self.head(h)
        return logits
