"""Configurations of published models: the fields of their config.json that sizes depend on."""

from __future__ import annotations

_VISION = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16,
           "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 2304}  # fmt: skip
_GDN = {"full_attention_interval": 4, "head_dim": 256, "attn_output_gate": True,
        "linear_num_key_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "vocab_size": 248320,
        "tie_word_embeddings": False, "mtp_num_hidden_layers": 1}  # fmt: skip

QWEN_27B = {
    "model_type": "qwen3_5",
    "text_config": {
        "model_type": "qwen3_5_text", "hidden_size": 5120, "intermediate_size": 17408,
        "num_hidden_layers": 64, "num_attention_heads": 24, "num_key_value_heads": 4,
        "linear_num_value_heads": 48, **_GDN,
    },
    "vision_config": {**_VISION, "out_hidden_size": 5120},
}  # fmt: skip
QWEN_35B = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        "model_type": "qwen3_5_moe_text", "hidden_size": 2048, "num_hidden_layers": 40,
        "num_attention_heads": 16, "num_key_value_heads": 2, "linear_num_value_heads": 32,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512, **_GDN,
    },
    "vision_config": {**_VISION, "out_hidden_size": 2048},
}  # fmt: skip


def _dense(kind, hidden, inner, layers, heads, kv_heads, vocab, **more):
    return {
        "model_type": kind, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "vocab_size": vocab, **more,
    }  # fmt: skip


_DEEPSEEK = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
             "v_head_dim": 128, "moe_layer_freq": 1}  # fmt: skip

CONFIGS = {
    "Qwen3.6-27B": QWEN_27B,
    "Qwen3.6-35B-A3B": QWEN_35B,
    "Llama-3.1-8B": _dense("llama", 4096, 14336, 32, 32, 8, 128256, tie_word_embeddings=False),
    "Llama-3.1-70B": _dense("llama", 8192, 28672, 80, 64, 8, 128256, tie_word_embeddings=False),
    "Qwen2-7B": _dense("qwen2", 3584, 18944, 28, 28, 4, 152064, use_sliding_window=False,
                       sliding_window=131072, tie_word_embeddings=False),
    "Mistral-7B": _dense("mistral", 4096, 14336, 32, 32, 8, 32000, sliding_window=4096),
    "Phi-3-mini": _dense("phi3", 3072, 8192, 32, 32, 32, 32064, sliding_window=2047),
    "Gemma-2-9B": _dense("gemma2", 3584, 14336, 42, 16, 8, 256000, head_dim=256),
    "Gemma-3-27B": _dense("gemma3_text", 5376, 21504, 62, 32, 16, 262144, head_dim=128,
                          sliding_window=1024),
    "MiMo-7B": _dense("mimo", 4096, 11008, 36, 32, 8, 151680, head_dim=128,
                      num_nextn_predict_layers=1, tie_word_embeddings=False),
    "Mixtral-8x7B": _dense("mixtral", 4096, 14336, 32, 32, 8, 32000, num_local_experts=8,
                           num_experts_per_tok=2, sliding_window=None),
    "Qwen3-30B-A3B": _dense("qwen3_moe", 2048, 6144, 48, 32, 4, 151936, head_dim=128,
                            num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768,
                            decoder_sparse_step=1, mlp_only_layers=[],
                            tie_word_embeddings=False),
    "DeepSeek-V3": _dense("deepseek_v3", 7168, 18432, 61, 128, 128, 129280, **_DEEPSEEK,
                          q_lora_rank=1536, first_k_dense_replace=3, n_routed_experts=256,
                          num_experts_per_tok=8, n_shared_experts=1, moe_intermediate_size=2048,
                          num_nextn_predict_layers=1),
    "DeepSeek-V2-Lite": _dense("deepseek_v2", 2048, 10944, 27, 16, 16, 102400, **_DEEPSEEK,
                               q_lora_rank=None, first_k_dense_replace=1, n_routed_experts=64,
                               num_experts_per_tok=6, n_shared_experts=2,
                               moe_intermediate_size=1408),
    "GLM-4.5-Air": _dense("glm4_moe", 4096, 10944, 46, 96, 8, 151552, head_dim=128,
                          attention_bias=True, use_qk_norm=False, first_k_dense_replace=1,
                          n_routed_experts=128, num_experts_per_tok=8, n_shared_experts=1,
                          moe_intermediate_size=1408, num_nextn_predict_layers=1),
    "gpt-oss-120b": _dense("gpt_oss", 2880, 2880, 36, 64, 8, 201088, head_dim=64,
                           num_local_experts=128, num_experts_per_tok=4, sliding_window=128),
    "gpt-oss-20b": _dense("gpt_oss", 2880, 2880, 24, 64, 8, 201088, head_dim=64,
                          num_local_experts=32, num_experts_per_tok=4, sliding_window=128),
}  # fmt: skip
