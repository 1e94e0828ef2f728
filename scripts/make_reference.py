#!/usr/bin/env python3
"""Writes tests/data/reference_{gpt2,llama,qwen2}.{json,safetensors}: small decoders of Hugging Face
transformers with random weights, and what PyTorch computes with them in fp32 on the CPU.

Each file holds the weights under their Hugging Face names, `tokens` [B, S+1] (inputs are columns
0..S-1, targets 1..S), `logits` [B, S, V], the mean cross-entropy `loss` [1] and, as
`gradient.NAME`, its gradient by every parameter. The .json is the model's config.json.

    pip install torch transformers safetensors numpy && scripts/make_reference.py
"""

import json
import pathlib

import torch
import transformers
from safetensors.torch import save_file

SEQUENCES, LENGTH, VOCAB = 2, 12, 97
EPSILON = 1e-3  # far from the usual values, so that ignoring it shows
DATA = pathlib.Path(__file__).resolve().parent.parent / "tests" / "data"


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=VOCAB, n_positions=16, n_embd=40, n_layer=2, n_head=4,
        layer_norm_epsilon=EPSILON, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0)
    config.architectures = ["GPT2LMHeadModel"]
    config._attn_implementation = "eager"
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=48, intermediate_size=80, num_hidden_layers=2,
        num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=16,
        rms_norm_eps=EPSILON, rope_theta=500.0, tie_word_embeddings=False,
        bos_token_id=0, eos_token_id=0, pad_token_id=0)
    config.architectures = ["LlamaForCausalLM"]
    config._attn_implementation = "eager"
    return transformers.LlamaForCausalLM(config)


def qwen2():  # llama with a bias on q, k and v, and here with tied embeddings
    config = transformers.Qwen2Config(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=56, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=16,
        rms_norm_eps=EPSILON, rope_theta=500.0, tie_word_embeddings=True,
        bos_token_id=0, eos_token_id=0)
    config.architectures = ["Qwen2ForCausalLM"]
    config._attn_implementation = "eager"
    return transformers.Qwen2ForCausalLM(config)


def randomise(model):
    """Weights large enough that attention is far from uniform and every gradient matters: with
    the usual 0.02 a wrong mask or rotation would hardly show."""
    for name, parameter in model.named_parameters():
        noise = 0.2 * torch.randn(parameter.shape)
        is_norm_weight = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.copy_(noise + 1.0 if is_norm_weight else noise)


def write(name, model):
    torch.manual_seed(1)
    model.eval()
    randomise(model)
    tokens = torch.randint(0, VOCAB, (SEQUENCES, LENGTH + 1))
    logits = model(input_ids=tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
    loss.backward()
    tensors = {"tokens": tokens.to(torch.int32), "logits": logits.detach(),
               "loss": loss.detach().reshape(1)}
    for parameter_name, parameter in model.named_parameters():
        tensors[parameter_name] = parameter.detach()
        tensors["gradient." + parameter_name] = parameter.grad
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    metadata = {"torch": torch.__version__, "transformers": transformers.__version__}
    path = DATA / f"reference_{name}.safetensors"
    save_file(tensors, path, metadata=metadata)
    path.chmod(0o644)
    config = json.dumps(model.config.to_diff_dict(), indent=2, sort_keys=True)
    (DATA / f"reference_{name}.json").write_text(config + "\n")
    count = sum(p.numel() for p in model.parameters())
    print(f"{name}: {count} parameters, loss {loss.item():.6f}")


if __name__ == "__main__":
    DATA.mkdir(parents=True, exist_ok=True)
    write("gpt2", gpt2())
    write("llama", llama())
    write("qwen2", qwen2())
