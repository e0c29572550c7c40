"""The YAML of a decoder: the figures of a language model's architecture.

`configs/models/llama3-8b.yaml` is an example; `configs/models/train.py` trains such a model.
"""

from pathlib import Path
from typing import Annotated

from pydantic import BeforeValidator

from simrank.config.locate import locate
from simrank.config.model import Model, validate
from simrank.config.quantity import Count, CountOrZero, Flag, Text, number_in
from simrank.config.yaml_source import read_yaml
from simrank.errors import ConfigError

_MAX_BASE = 1e12  # Assumed: of rotary embeddings; the largest in use are 1e7.


class DecoderConfig(Model):
    """A decoder with grouped-query attention, rotary embeddings and gated MLPs or experts.

    Attributes:
        source: Where the figures come from.
        licence: Of the model.
        layers: Number of blocks.
        hidden: Width of activations between blocks.
        ffn: Width inside an MLP.
        heads: Heads of queries.
        kv_heads: Heads of keys and of values.
        head_dim: Width of a head.
        vocab: Size of the vocabulary.
        rope_theta: Base of the rotary embeddings.
        seq: Length of a training sequence, in tokens.
        qk_norm: Whether queries and keys are normalised.
        experts: Experts of a block; 0: it has an MLP.
        top_k: Experts of a token.
        expert_ffn: Width inside an expert.
        tied: Whether embedding and head share their weights.
    """

    source: Text
    licence: Text
    layers: Count
    hidden: Count
    ffn: Count
    heads: Count
    kv_heads: Count
    head_dim: Count
    vocab: Count
    rope_theta: Annotated[float, BeforeValidator(number_in(0, _MAX_BASE, "a number above 0"))]
    seq: Count
    qk_norm: Flag = False
    experts: CountOrZero = 0
    top_k: CountOrZero = 0
    expert_ffn: CountOrZero = 0
    tied: Flag = False

    @property
    def block_parameters(self) -> int:
        """Parameters of a block, without those of experts."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        attention = 2 * self.hidden * (queries + keys) + 2 * self.hidden
        own = self.hidden * self.experts if self.experts else 3 * self.hidden * self.ffn
        return attention + own + 2 * self.head_dim * self.qk_norm

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        return 3 * self.hidden * self.expert_ffn

    @property
    def num_parameters(self) -> int:
        """Parameters of the model."""
        blocks = self.block_parameters + self.experts * self.expert_parameters
        ends = (1 if self.tied else 2) * self.vocab * self.hidden + self.hidden
        return self.layers * blocks + ends


def load_decoder(word: str | Path) -> DecoderConfig:
    """Read and check a model.

    Args:
        word: A built-in name, or the path of a YAML file.

    Raises:
        ConfigError: It is neither, with the list of names; or the file is wrong.
    """
    source = read_yaml(locate("models", str(word)))
    model = validate(DecoderConfig, source)
    if model.heads % model.kv_heads:
        expected = f"a divisor of heads, {model.heads}"
        raise ConfigError(source.problem(("kv_heads",), expected, str(model.kv_heads)))
    if model.experts and not (0 < model.top_k <= model.experts and model.expert_ffn):
        expected = f"top_k of 1 to {model.experts} and expert_ffn from 1"
        got = f"top_k {model.top_k}, expert_ffn {model.expert_ffn}"
        raise ConfigError(source.problem(("experts",), expected, got))
    return model
