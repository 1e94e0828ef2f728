"""The config.json of the model that the scripts train which attack a run: two layers of 32."""

CONFIG = """{"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "n_positions": 64,
"vocab_size": 256, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
"tie_word_embeddings": true, "attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}"""
