#!/usr/bin/env python3
"""Writes tests/data/reference_NAME.{json,safetensors}: small decoders of Hugging Face transformers
with random weights, and what PyTorch computes with them in fp32 on the CPU.

Each file holds the weights under the names of checkpoints on the Hub, `tokens` [B, S+1] (inputs are
columns 0..S-1, targets 1..S), `logits` [B, S, V], the mean cross-entropy `loss` [1] (with what
balances experts, where the configuration asks for it) and, as `gradient.NAME`, its gradient by
every parameter. The .json is the model's config.json.

    pip install torch transformers safetensors numpy && scripts/make_reference.py [NAME ...]
"""

import json
import pathlib
import re
import sys

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


# What the families beyond llama have in common here.
SMALL = dict(
    vocab_size=VOCAB, hidden_size=24, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=16, rms_norm_eps=EPSILON, bos_token_id=0, eos_token_id=0,
    pad_token_id=None, rope_parameters={"rope_theta": 500.0, "rope_type": "default"})


def causal(name, config):
    config.architectures = [name]
    config._attn_implementation = "eager"
    config._experts_implementation = "eager"
    return getattr(transformers, name)(config)


def qwen3():  # a norm of each head's q and k, whose size is given
    return causal("Qwen3ForCausalLM", transformers.Qwen3Config(
        **SMALL, intermediate_size=40, num_hidden_layers=2, head_dim=8, tie_word_embeddings=False))


def mixtral():  # and the loss that balances experts
    return causal("MixtralForCausalLM", transformers.MixtralConfig(
        **SMALL, intermediate_size=20, num_hidden_layers=2, num_local_experts=5,
        num_experts_per_tok=2, output_router_logits=True, router_aux_loss_coef=0.3,
        sliding_window=None))


def qwen3_moe():  # a dense layer first, and weights that do not sum to one
    return causal("Qwen3MoeForCausalLM", transformers.Qwen3MoeConfig(
        **SMALL, intermediate_size=40, moe_intermediate_size=12, num_hidden_layers=3, head_dim=8,
        num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, mlp_only_layers=[0],
        tie_word_embeddings=False))


def deepseek_v3():  # latent attention, shared experts, groups of experts; layer 0 is dense
    small = {**SMALL, "num_key_value_heads": 4}
    return causal("DeepseekV3ForCausalLM", transformers.DeepseekV3Config(
        **small, intermediate_size=40, moe_intermediate_size=12, num_hidden_layers=2,
        n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2,
        routed_scaling_factor=1.7, norm_topk_prob=True, first_k_dense_replace=1, kv_lora_rank=10,
        q_lora_rank=14, qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5,
        tie_word_embeddings=False))


def gpt_oss():  # windows in turns, sinks, biased experts, a clamped activation
    return causal("GptOssForCausalLM", transformers.GptOssConfig(
        **SMALL, intermediate_size=14, num_hidden_layers=2, head_dim=8, num_local_experts=5,
        num_experts_per_tok=2, sliding_window=5, tie_word_embeddings=False))


# The spelling of checkpoints, in which transformers 5 saves a model whose experts it stacks:
# (what a parameter is called while it is computed with, the spelling of the family).
SPELLING = {
    "mixtral": ("block_sparse_moe", {"gate": "w1", "up": "w3", "down": "w2"}),
    "qwen3_moe": ("mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
    "deepseek_v3": ("mlp", {"gate": "gate_proj", "up": "up_proj", "down": "down_proj"}),
}


def as_in_checkpoints(family, name, tensor):
    """Yields (name, tensor): one, or those of each expert of a stacked one."""
    if family not in SPELLING:
        yield name, tensor
        return
    block, words = SPELLING[family]
    name = re.sub(r"\.mlp\.(gate|experts)\b", rf".{block}.\1", name)
    stacked = re.fullmatch(r"(.*\.experts)\.(gate_up_proj|down_proj)", name)
    if not stacked:
        yield name, tensor
        return
    for expert, matrix in enumerate(tensor):
        if stacked[2] == "down_proj":
            yield f"{stacked[1]}.{expert}.{words['down']}.weight", matrix
            continue
        gate, up = matrix.chunk(2, dim=0)
        yield f"{stacked[1]}.{expert}.{words['gate']}.weight", gate
        yield f"{stacked[1]}.{expert}.{words['up']}.weight", up


def randomise(model):
    """Weights large enough that attention is far from uniform and every gradient matters: with
    the usual 0.02 a wrong mask or rotation would hardly show."""
    for name, parameter in model.named_parameters():
        noise = 0.2 * torch.randn(parameter.shape)
        is_norm_weight = parameter.dim() == 1 and name.endswith("weight")
        parameter.data.copy_(noise + 1.0 if is_norm_weight else noise)
        if name.endswith("router.weight") or name.endswith("mlp.gate.weight"):
            parameter.data.mul_(3)  # choices that are clear, so that no rounding turns one
        if name.endswith("gate_up_proj_bias"):
            parameter.data.mul_(20)  # some values beyond where they are clamped
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(0.2 * torch.randn(buffer.shape))


def write(name, model):
    torch.manual_seed(1)
    model.eval()
    randomise(model)
    tokens = torch.randint(0, VOCAB, (SEQUENCES, LENGTH + 1))
    output = model(input_ids=tokens[:, :-1])
    logits = output.logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))
    if getattr(model.config, "output_router_logits", False):
        loss = loss + model.config.router_aux_loss_coef * output.aux_loss
    loss.backward()
    tensors = {"tokens": tokens.to(torch.int32), "logits": logits.detach(),
               "loss": loss.detach().reshape(1)}
    family = model.config.model_type
    for parameter_name, parameter in model.named_parameters():
        for key, value in as_in_checkpoints(family, parameter_name, parameter.detach()):
            tensors[key] = value
        for key, value in as_in_checkpoints(family, parameter_name, parameter.grad):
            tensors["gradient." + key] = value
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("e_score_correction_bias"):  # no gradient reaches it
            tensors[buffer_name] = buffer
            tensors["gradient." + buffer_name] = torch.zeros_like(buffer)
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
    makers = [gpt2, llama, qwen2, qwen3, mixtral, qwen3_moe, deepseek_v3, gpt_oss]
    for make in makers:
        if len(sys.argv) == 1 or make.__name__ in sys.argv[1:]:
            write(make.__name__, make())
