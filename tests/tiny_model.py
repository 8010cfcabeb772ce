"""A model so small that its engine is cheap: one random layer of width 64 under the embedded model's tokenizer."""

import shutil
from pathlib import Path

from engine import embedded_model

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


def build(folder: Path) -> Path:
    """Write the model into `folder`, the same one every time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    source = embedded_model.prepare()
    config = LlamaConfig.from_pretrained(source)
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 64, 128, 1
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 32
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in TOKENIZER_FILES:
        shutil.copy(source / name, folder / name)
    return folder
