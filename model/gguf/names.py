"""What GGUF calls the parameters of `TextModel` (llama.cpp's architecture `diffusion-gemma`)."""

from __future__ import annotations

ROPE_FREQS = "rope_freqs.weight"
"""Divisors of the full layers' frequencies; a parameter of no module."""

GATE_UP = "ffn_gate_up_exps.weight"
GATE, UP = "ffn_gate_exps.weight", "ffn_up_exps.weight"
"""The experts' first matrices, in one tensor or in two."""

_TOP = {
    "embed_tokens.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "self_conditioning.pre_norm.weight": "self_cond_pre_norm.weight",
    "self_conditioning.gate_proj.weight": "self_cond_gate.weight",
    "self_conditioning.up_proj.weight": "self_cond_up.weight",
    "self_conditioning.down_proj.weight": "self_cond_down.weight",
}

_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "post_attention_layernorm.weight": "post_attention_norm.weight",
    "pre_feedforward_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "post_feedforward_layernorm_1.weight": "post_ffw_norm_1.weight",
    "pre_feedforward_layernorm_2.weight": "pre_ffw_norm_2.weight",
    "post_feedforward_layernorm_2.weight": "post_ffw_norm_2.weight",
    "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
    "router.proj.weight": "ffn_gate_inp.weight",
    "router.scale": "ffn_gate_inp.scale",
    "experts.gate_up_proj": GATE_UP,
    "experts.down_proj": "ffn_down_exps.weight",
    "router.per_expert_scale": "ffn_down_exps.scale",
    "layer_scalar": "layer_output_scale.weight",
    "encoder_layer_scalar": "enc_layer_output_scale.weight",
}


def gguf_name(name: str) -> str:
    """GGUF's name of a parameter of `TextModel`; the experts' fused one for gate and up."""
    if name in _TOP:
        return _TOP[name]
    _, number, rest = name.split(".", 2)
    return f"blk.{number}.{_LAYER[rest]}"
