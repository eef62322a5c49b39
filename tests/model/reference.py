"""The reference that parity is measured against, with one deliberate mistake that it must notice."""

from __future__ import annotations

import torch

from jev.backends import reference


class Reference(reference.Reference):
    """A checkpoint folder in transformers, with the calls of `jev.model`: prefill, then decode."""

    def swap_layer_scalars(self) -> None:
        """Exchange the encoder's scalars with the decoder's."""
        encoder = self.model.model.encoder.language_model.layers
        decoder = self.model.model.decoder.layers
        with torch.no_grad():
            for one, other in zip(encoder, decoder, strict=True):
                kept = one.layer_scalar.clone()
                one.layer_scalar.copy_(other.layer_scalar)
                other.layer_scalar.copy_(kept)
