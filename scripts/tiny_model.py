"""The config.json of the models that the scripts train which attack a run: two layers of 32."""

CONFIG = """{"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 64,
"vocab_size": 256, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
"tie_word_embeddings": true, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"""

# Four experts, of which a token passes two.
EXPERTS_CONFIG = """{"model_type": "mixtral", "hidden_size": 32, "num_attention_heads": 2,
"num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 2, "intermediate_size": 32,
"max_position_embeddings": 64, "vocab_size": 256, "hidden_act": "silu", "rms_norm_eps": 1e-5,
"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": false,
"rope_theta": 10000, "router_aux_loss_coef": 0, "sliding_window": null}"""
