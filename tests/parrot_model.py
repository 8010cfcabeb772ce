"""A real model that says what a test wants: it thinks, then answers, in words known beforehand.

One layer that does nothing, and weights by which each token of the script is the likeliest after the one before it. So
vLLM's own parsers and samplers work on it as on any model. It has the tokens `<think>` and `</think>`.
"""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine import embedded_model
from tests.tiny_model import TOKENIZER_FILES

WIDTH = 128

# Every token of these is there once, or the model would not know where it is. It starts at the end of a chat's prompt.
REASONING = "Let me see: two plus three makes five."
ANSWER = "It equals 5\u00e9t\u00e9!"

# What its script can be made to call, by a grammar.
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

PROMPT_END = "\n"
EOS = "<|im_end|>"


# How to serve it, as "parrot", with all that it can do.
FLAGS = (
    "--served-model-name", "parrot", "--max-model-len", "2048", "--kv-cache-memory-bytes", "256M",
    "--reasoning-parser", "deepseek_r1", "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
    "--enable-lora", "--max-lora-rank", "8",
)  # fmt: skip


def build(folder: Path) -> Path:
    """Write the model into `folder`, the same one every time."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    source = embedded_model.prepare()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.save_pretrained(folder)
    for name in TOKENIZER_FILES:
        if not (folder / name).exists():
            (folder / name).write_bytes((source / name).read_bytes())

    config = LlamaConfig.from_pretrained(source)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = WIDTH, 128, 1
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4, 2, 32
    config.vocab_size = len(tokenizer)
    config.tie_word_embeddings = False
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    script = PROMPT_END + REASONING + "</think>" + ANSWER + EOS
    ids = tokenizer.encode(script, add_special_tokens=False)
    assert len(set(ids)) == len(ids), "a token comes twice"
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embeddings = torch.randn(config.vocab_size, WIDTH)
        model.model.embed_tokens.weight.copy_(embeddings)
        # What is not in the script is said at random, and seldom ends.
        head = torch.randn(config.vocab_size, WIDTH) * 0.05
        head[ids[-1]] = 0
        for here, there in pairwise(ids):
            head[there] = embeddings[here]
        model.lm_head.weight.copy_(head)
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def build_adapter(folder: Path) -> Path:
    """A LoRA adapter for the model, which changes nothing; there to be listed and chosen."""
    import torch
    from safetensors.torch import save_file

    rank = 8
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "parrot",
        "r": rank,
        "lora_alpha": 16,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj"],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = {f"{name}.lora_A.weight": torch.zeros(rank, WIDTH), f"{name}.lora_B.weight": torch.zeros(WIDTH, rank)}
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder
