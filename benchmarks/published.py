"""What the published DiffusionGemma 26B-A4B checkpoint says of itself, as far as synthetic ones need it."""

from __future__ import annotations

from typing import Any

PUBLISHED: dict[str, Any] = {
    "architectures": ["DiffusionGemmaForBlockDiffusion"],
    "model_type": "diffusion_gemma",
    "canvas_length": 256,
    "dtype": "bfloat16",
    "tie_word_embeddings": True,
    "eos_token_id": [1, 106],
    "vision_soft_tokens_per_image": 280,
    "text_config": {
        "model_type": "diffusion_gemma_text",
        "hidden_size": 2816,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 1024,
        "intermediate_size": 2112,
        "num_experts": 128,
        "top_k_experts": 8,
        "moe_intermediate_size": 704,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "vocab_size": 262144,
        "max_position_embeddings": 262144,
        "use_bidirectional_attention": "vision",
    },
    "vision_config": {
        "model_type": "gemma4_vision",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "head_dim": 72,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": 1e-6,
        "patch_size": 16,
        "pooling_kernel_size": 3,
        "position_embedding_size": 10240,
        "standardize": True,
        "use_clipped_linears": False,
        "rope_parameters": {"rope_theta": 100.0, "rope_type": "default"},
    },
}
"""The published `config.json`, as far as it decides shapes and arithmetic."""

GENERATION = {
    "eos_token_id": [1, 106, 50],
    "pad_token_id": 0,
    "max_denoising_steps": 48,
    "t_min": 0.4,
    "t_max": 0.8,
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
}
IMAGE_TOKENS = {"<|image>": 255999, "<|image|>": 258880, "<image|>": 258882}
"""Their published ids; a smaller vocabulary has them at its end."""

TEMPLATE = (
    "<bos>{% for m in messages %}<|turn>{{ m.role }}\n{{ m.content }}<turn|>\n{% endfor %}<|turn>model\n"
)
