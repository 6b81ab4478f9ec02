"""Make the models of this folder again: build each net with random weights, export it, record what onnxruntime says.

    python3.11 -m venv /tmp/remake && /tmp/remake/bin/pip install torch==2.13.0 transformers==5.24.0 onnx==1.23.2 \
        onnxscript==0.7.2 onnxruntime==1.32.0
    /tmp/remake/bin/python tests/models/remake.py FOLDER [NAME ...]

CPU only; nothing is downloaded beyond the packages. Each net is compared with torch before its numbers are saved.
With these versions the same weights come out again, so the numbers do too, to the last bits of a float.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import transformers
from torch import Tensor, nn

SEED = 20260
SEQUENCE = 16
VOCABULARY = 512


@dataclass(frozen=True)
class Export:
    """A net with its example inputs, by graph name in `forward` order, and the names of its outputs."""

    net: nn.Module
    inputs: dict[str, Tensor]
    outputs: list[str]
    dynamo: bool = False
    dynamic_axes: dict[str, dict[int, str]] = field(default_factory=dict)

    @property
    def opset(self) -> int:
        """The opset each exporter writes without converting down from a later one."""
        return 18 if self.dynamo else 17


class LanguageModel(nn.Module):
    """Token ids to logits, without a KV cache. The TorchScript exporter fails where transformers makes the causal
    mask without a padding mask, so `padded` gives it one of ones."""

    def __init__(self, model: nn.Module, padded: bool) -> None:
        super().__init__()
        self.lm = model
        self.padded = padded

    def forward(self, input_ids: Tensor) -> Tensor:
        mask = torch.ones_like(input_ids) if self.padded else None
        return self.lm(input_ids=input_ids, attention_mask=mask, use_cache=False, return_dict=True).logits


class SentenceEncoder(nn.Module):
    """BERT, then the mean over the tokens that are not padding, at unit length."""

    def __init__(self, bert: nn.Module) -> None:
        super().__init__()
        self.bert = bert

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.bert(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids, return_dict=True
        ).last_hidden_state
        kept = attention_mask.unsqueeze(-1).to(hidden.dtype)
        mean = (hidden * kept).sum(1) / kept.sum(1).clamp(min=1e-9)
        return hidden, nn.functional.normalize(mean, p=2.0, dim=1)


class OneOutput(nn.Module):
    """A transformers model reduced to one field of its result."""

    def __init__(self, model: nn.Module, result: str) -> None:
        super().__init__()
        self.model = model
        self.result = result

    def forward(self, features: Tensor) -> Tensor:
        return getattr(self.model(features, return_dict=True), self.result)


def randomised(net: nn.Module, std: float = 0.08) -> nn.Module:
    """`net` with every parameter drawn anew. Norm scales lie around 1; fresh ones and zero biases would hide errors."""
    draw = torch.Generator().manual_seed(SEED)
    for name, value in [*net.named_parameters(), *net.named_buffers()]:
        if not value.is_floating_point() or "inv_freq" in name:
            continue
        noise = torch.randn(value.shape, generator=draw)
        is_norm_scale = value.ndim <= 1 and name.endswith("weight") and ("norm" in name.lower() or "ln" in name.lower())
        value.copy_(1 + 0.2 * noise if is_norm_scale else std * noise)
    return net.eval()


def tokens(batch: int = 1) -> Tensor:
    """Token ids, int64 [batch, SEQUENCE]; the first three ids are left to special tokens."""
    draw = torch.Generator().manual_seed(SEED + 1)
    return torch.randint(3, VOCABULARY, (batch, SEQUENCE), generator=draw)


def noise(*shape: int) -> Tensor:
    """Standard normal input, float32."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(SEED + 2))


def llama(dynamo: bool) -> Export:
    """Llama 3 at hidden size 64: 4 layers, 8 query heads over 4 key-value heads."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=172,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=512,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    net = LanguageModel(transformers.LlamaForCausalLM(config), padded=not dynamo)
    return Export(randomised(net), {"input_ids": tokens()}, ["logits"], dynamo)


def gpt2() -> Export:
    """GPT-2 at width 96: 2 layers of 6 heads."""
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=64, n_embd=96, n_layer=2, n_head=6, attn_implementation="eager"
    )
    net = LanguageModel(transformers.GPT2LMHeadModel(config), padded=True)
    return Export(randomised(net), {"input_ids": tokens()}, ["logits"])


def minilm() -> Export:
    """MiniLM-L6 at hidden size 48: 6 layers of 12 heads; the second row of the batch ends in padding."""
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=48,
        num_hidden_layers=6,
        num_attention_heads=12,
        intermediate_size=192,
        max_position_embeddings=64,
        hidden_act="gelu",
        attn_implementation="eager",
    )
    ids = tokens(batch=2)
    mask = torch.ones_like(ids)
    mask[-1, -5:] = 0
    net = SentenceEncoder(transformers.BertModel(config, add_pooling_layer=False))
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": torch.zeros_like(ids)}
    return Export(randomised(net), inputs, ["last_hidden_state", "sentence_embedding"])


def vit() -> Export:
    """ViT on 32x32 images in 8x8 patches: 4 layers of 4 heads, ten classes."""
    config = transformers.ViTConfig(
        hidden_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=128,
        image_size=32,
        patch_size=8,
        num_labels=10,
        attn_implementation="eager",
    )
    net = OneOutput(transformers.ViTForImageClassification(config), "logits")
    return Export(randomised(net), {"pixel_values": noise(1, 3, 32, 32)}, ["logits"])


def whisper() -> Export:
    """Whisper's encoder at width 64: 2 layers of 4 heads on 100 frames of 80 mel bins."""
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = transformers.WhisperConfig(
        d_model=64,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=128,
        num_mel_bins=80,
        max_source_positions=50,
        decoder_layers=1,
        vocab_size=VOCABULARY,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        attn_implementation="eager",
    )
    net = OneOutput(WhisperEncoder(config), "last_hidden_state")
    return Export(randomised(net), {"input_features": noise(1, 80, 100)}, ["last_hidden_state"])


def mlp(dynamic_axes: dict[str, dict[int, str]]) -> Export:
    """Four linear layers with a different activation behind each."""
    net = nn.Sequential(
        nn.Linear(32, 128),
        nn.ReLU(),
        nn.Linear(128, 64),
        nn.GELU(),
        nn.Linear(64, 64),
        nn.Tanh(),
        nn.Linear(64, 10),
        nn.Softmax(-1),
    )
    return Export(randomised(net, std=0.2), {"x": noise(4, 32)}, ["probs"], dynamic_axes=dynamic_axes)


MODELS: dict[str, Callable[[], Export]] = {
    "llama3_tiny_4l_ts17": lambda: llama(dynamo=False),
    "llama3_tiny_4l_dynamo": lambda: llama(dynamo=True),
    "minilm_6l_ts17": minilm,
    "gpt2_tiny_2l_ts17": gpt2,
    "vit_tiny_4l_ts17": vit,
    "whisper_encoder_tiny_2l_ts17": whisper,
    "mlp_ts17": lambda: mlp({}),
    "mlp_dynbatch_ts17": lambda: mlp({"x": {0: "batch"}}),
}


def write_graph(export: Export, path: Path) -> None:
    """Export to `path`, without the stack traces and source paths that the exporters leave in the file."""
    arguments = tuple(export.inputs.values())
    names = {"input_names": list(export.inputs), "output_names": export.outputs, "opset_version": export.opset}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if export.dynamo:
            torch.onnx.export(export.net, arguments, dynamo=True, verbose=False, **names).save(path)
        else:
            axes = export.dynamic_axes or None
            torch.onnx.export(export.net, arguments, str(path), dynamo=False, dynamic_axes=axes, **names)
    model = onnx.load(path)
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.input, *graph.output, *graph.value_info, *graph.initializer):
        part.ClearField("doc_string")
        part.ClearField("metadata_props")
    onnx.save(model, path)


def write_numbers(export: Export, path: Path) -> float:
    """Run the graph at `path` and save NAME.npz beside it. Returns the largest difference from torch.

    Raises AssertionError where an output differs by more than 1e-4 of its largest value."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    feed = {name: value.numpy() for name, value in export.inputs.items()}
    results = dict(zip(export.outputs, session.run(export.outputs, feed), strict=True))

    from_torch = export.net(*export.inputs.values())
    worst = 0.0
    for result, reference in zip(
        results.values(), [from_torch] if isinstance(from_torch, Tensor) else from_torch, strict=True
    ):
        difference = np.abs(result - reference.numpy()).max()
        assert difference <= 1e-4 * np.abs(result).max(), f"{path.stem} differs from torch by {difference}"
        worst = max(worst, float(difference))
    sides = {f"in_{k}": v for k, v in feed.items()} | {f"out_{k}": v for k, v in results.items()}
    np.savez_compressed(path.with_suffix(".npz"), **sides)
    return worst


def main() -> None:
    """Write the named models, or all of them, to the folder given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MODELS))
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MODELS):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    for name in arguments.names or MODELS:
        torch.manual_seed(SEED)
        export = MODELS[name]()
        path = arguments.folder / f"{name}.onnx"
        write_graph(export, path)
        difference = write_numbers(export, path)
        print(f"{name}: {path.stat().st_size:,} bytes, within {difference:.1e} of torch")


if __name__ == "__main__":
    main()
