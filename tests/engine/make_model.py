"""Write a tiny Llama without weights (vLLM draws them at load time) and a tokenizer trained on the standard library.

usage: make_model.py DIR

Four layers of width 256 decode about 200 tokens/s a stream on one core: fast enough for a test, slow enough to batch.
Run by install.sh, with the Python it installed.
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 8000
CONTEXT = 4096
BEGIN, END = "<s>", "</s>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[BEGIN, END, *ROLES],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    sources = sorted(str(path) for path in Path(sysconfig.get_path("stdlib")).glob("*.py"))
    tokenizer.train(sources, trainer)
    return tokenizer


def write_model(directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN,
        "eos_token": END,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "bfloat16",
        "hidden_act": "silu",
        "hidden_size": 256,
        "intermediate_size": 688,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "bos_token_id": tokenizer.token_to_id(BEGIN),
        "eos_token_id": tokenizer.token_to_id(END),
        "tie_word_embeddings": True,
    }
    for name, content in (("tokenizer_config.json", tokenizer_config), ("config.json", config)):
        (directory / name).write_text(json.dumps(content, indent=2))


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
