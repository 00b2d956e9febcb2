# SPDX-License-Identifier: MIT
"""Written by make_layout.py from the headers in moe/. Do not edit."""
from ctypes import *  # noqa: F403

MOE_ACCEPTANCE_EXACT = 0
MOE_ACCEPTANCE_REJECTION = 1
MOE_ANALYSIS_DISTANCES = 8
MOE_ANALYSIS_TOKENS = 16
MOE_DRAFT_KINDS = 3
MOE_DRAFT_POSITIONS = 16
MOE_ERROR_MESSAGE_SIZE = 512
MOE_ERR_ARGUMENT = -1
MOE_ERR_BUDGET = -6
MOE_ERR_CANCELLED = -8
MOE_ERR_CONTEXT_FULL = -7
MOE_ERR_DEVICE = -10
MOE_ERR_FORMAT = -4
MOE_ERR_INTERNAL = -11
MOE_ERR_IO = -3
MOE_ERR_MEMORY = -2
MOE_ERR_MISMATCH = -9
MOE_ERR_UNSUPPORTED = -5
MOE_FLOAT_GEMM_BLAS = 1
MOE_FLOAT_GEMM_EXACT = 0
MOE_FORESIGHT_LAYERS = 128
MOE_IO_AUTO = 0
MOE_IO_SYNC = 3
MOE_IO_THREADS = 2
MOE_IO_URING = 1
MOE_KV_CACHE_F16 = 0
MOE_KV_CACHE_F32 = 1
MOE_KV_CACHE_F8 = 4
MOE_KV_CACHE_Q4_0 = 3
MOE_KV_CACHE_Q8_0 = 2
MOE_LOOKAHEAD_NONE = -1
MOE_LOOKAHEAD_RECORDED = -2
MOE_METADATA_BOOL = 2
MOE_METADATA_FLOAT = 1
MOE_METADATA_INT = 0
MOE_METADATA_TEXT = 3
MOE_MOST_TOP_TOKENS = 20
MOE_OK = 0
MOE_POLICY_ABI = 2
MOE_POLICY_NEEDS_FUTURE = 4
MOE_POLICY_NEEDS_GATES = 2
MOE_POLICY_NEEDS_HOTNESS = 1
MOE_POOLING_LAST = 1
MOE_POOLING_MEAN = 0
MOE_REPORTS_KEPT = 256
MOE_SPECULATE_AUTO = 1
MOE_SPECULATE_MODEL = 4
MOE_SPECULATE_MTP = 5
MOE_SPECULATE_NGRAM = 2
MOE_SPECULATE_OFF = 0
MOE_SPECULATE_SELF = 3
MOE_SWITCH_AUTO = 0
MOE_SWITCH_OFF = 2
MOE_SWITCH_ON = 1
MOE_TIERS_ENGINE = 0
MOE_TIERS_EXCLUSIVE = 2
MOE_TIERS_INCLUSIVE = 1
MOE_TOKENIZE_ADD_SPECIAL = 1
MOE_TOKENIZE_PARSE_SPECIAL = 2
MOE_TOKEN_NONE = -1
MOE_TRACE_AUTO = 0
MOE_TRACE_JSONL = 1
MOE_TRACE_ORACLE_GENERAL = 2

# Members that are enums, and how their constants begin: "f16" is MOE_KV_CACHE_F16.
WORDS = {
    "acceptance": "MOE_ACCEPTANCE_",
    "float_gemm": "MOE_FLOAT_GEMM_",
    "format": "MOE_TRACE_",
    "host_compute": "MOE_SWITCH_",
    "idle_checksums": "MOE_SWITCH_",
    "io": "MOE_IO_",
    "kv_cache": "MOE_KV_CACHE_",
    "prefetch": "MOE_SWITCH_",
    "speculate": "MOE_SPECULATE_",
    "tiers": "MOE_TIERS_",
    "warm_start": "MOE_SWITCH_",
    "worker_compute": "MOE_SWITCH_",
}
# Members that are numbers of bytes.
SIZES = {
    "device_memory",
    "expert_bytes",
    "expert_cache",
    "host_memory",
    "io_block_bytes",
    "program_memory",
    "worker_key_bytes",
}


class moe_error(Structure):
    _fields_ = [
        ("message", c_char * 512),
    ]


class moe_pass_progress(Structure):
    _fields_ = [
        ("layer", c_uint32),
        ("n_layer", c_uint32),
        ("rows_done", c_uint32),
        ("n_rows", c_uint32),
        ("bytes_read", c_uint64),
        ("bytes_expected", c_uint64),
        ("seconds", c_double),
        ("seconds_expected", c_double),
    ]


class moe_metadata_override_value(Union):
    _fields_ = [
        ("integer", c_int64),
        ("real", c_double),
        ("flag", c_bool),
        ("text", c_char_p),
    ]


class moe_metadata_override(Structure):
    _fields_ = [
        ("key", c_char_p),
        ("type", c_int),
        ("value", moe_metadata_override_value),
    ]


class moe_memory_plan(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("budget", c_uint64),
        ("budget_is_default", c_bool),
        ("process", c_uint64),
        ("resident", c_uint64),
        ("kv_cache", c_uint64),
        ("scratch", c_uint64),
        ("floor", c_uint64),
        ("expert_cache", c_uint64),
        ("expert_slots", c_uint64),
        ("experts", c_uint64),
        ("expert_bytes", c_uint64),
        ("total", c_uint64),
        ("context", c_uint32),
        ("has_device_memory", c_bool),
        ("device_budget", c_uint64),
        ("device_scratch", c_uint64),
        ("device_floor", c_uint64),
        ("device_total", c_uint64),
        ("host_cache", c_uint64),
        ("host_slots", c_uint64),
        ("device_in_host", c_uint64),
        ("expected_hit_rate", c_double),
        ("hit_rate_is_calibrated", c_bool),
        ("expected_memory_hit_rate", c_double),
        ("token_expert_bytes", c_uint64),
        ("session_state", c_uint64),
        ("sessions", c_uint64),
        ("sessions_bytes", c_uint64),
        ("sessions_slots", c_uint64),
        ("available", c_uint64),
        ("layer_states", c_uint64),
        ("context_most", c_uint64),
        ("kv_windowed", c_uint64),
        ("program", c_uint64),
        ("experts_in_memory", c_uint64),
        ("low_bit_cache", c_uint64),
        ("low_bit_slots", c_uint64),
        ("cards", c_uint64),
        ("card_cache", c_uint64 * 8),
        ("panel_rows", c_uint64),
        ("row_cache", c_uint64),
        ("row_table", c_uint64),
        ("prefill_chunk", c_uint64),
        ("reserved", c_uint64 * 5),
    ]


class moe_speculation_stats(Structure):
    _fields_ = [
        ("drafted", c_uint64),
        ("accepted", c_uint64),
        ("passes", c_uint64),
        ("emitted", c_uint64),
        ("sequences", c_uint64),
        ("draft_passes", c_uint64),
        ("draft_passes_recorded", c_uint64),
        ("draft_recordings", c_uint64),
        ("draft_moves", c_uint64),
        ("drafted_by", c_uint64 * 3),
        ("accepted_by", c_uint64 * 3),
        ("drafted_at", c_uint64 * 16),
        ("accepted_at", c_uint64 * 16),
        ("draft_ns", c_uint64),
        ("verify_ns", c_uint64),
        ("cut_by_budget", c_uint64),
        ("foresight_asked", c_uint64),
        ("foresight_right", c_uint64),
        ("foresight_all", c_uint64),
        ("foresight_asked_of", c_uint64 * 128),
        ("foresight_right_of", c_uint64 * 128),
        ("foresight_picks_at", c_uint64 * 16),
        ("foresight_right_at", c_uint64 * 16),
        ("verify_bytes_ready", c_uint64),
        ("verify_bytes_loading", c_uint64),
        ("verify_bytes_queued", c_uint64),
        ("verify_bytes_predicted", c_uint64),
        ("verify_bytes_missed", c_uint64),
        ("bytes_foresight", c_uint64),
        ("bytes_disk_foresight", c_uint64),
        ("modelled_cost", c_double),
        ("modelled_plain_cost", c_double),
        ("utility", c_double),
        ("utility_mean", c_double),
        ("utility_worst", c_double),
        ("draft_length", c_uint32),
        ("reserved32", c_uint32),
        ("lookahead_passes", c_uint64),
        ("lookahead_ns", c_uint64),
        ("lookahead_tokens", c_uint64),
        ("lookahead_stood", c_uint64),
        ("lookahead_named", c_uint64),
        ("lookahead_used", c_uint64),
        ("lookahead_hidden_ns", c_uint64),
        ("drafted_by_head", c_uint64),
        ("accepted_by_head", c_uint64),
        ("reserved", c_uint64 * 7),
    ]


class moe_lossy_stats(Structure):
    _fields_ = [
        ("on", c_bool),
        ("picks", c_uint64),
        ("replaced", c_uint64),
        ("dropped", c_uint64),
        ("experts_natural", c_uint64),
        ("experts_used", c_uint64),
        ("mass_kept", c_double),
        ("output_error", c_double),
        ("compared", c_uint64),
        ("agreed", c_uint64),
        ("mean_kl", c_double),
        ("max_kl", c_double),
        ("low_bit_picks", c_uint64),
        ("low_bit_experts", c_uint64),
        ("low_bit_hits", c_uint64),
        ("low_bit_misses", c_uint64),
        ("low_bit_bytes", c_uint64),
        ("low_bit_slots", c_uint64),
        ("low_bit_mass", c_double),
        ("reserved", c_uint64 * 13),
    ]


class moe_engine_stats(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("passes", c_uint64),
        ("prompt_tokens", c_uint64),
        ("decode_tokens", c_uint64),
        ("expert_hits", c_uint64),
        ("expert_misses", c_uint64),
        ("expert_evictions", c_uint64),
        ("prefetches", c_uint64),
        ("prefetches_used", c_uint64),
        ("prefetches_wasted", c_uint64),
        ("prefetches_cancelled", c_uint64),
        ("predicted_experts", c_uint64),
        ("predicted_right", c_uint64),
        ("bytes_demand", c_uint64),
        ("bytes_prefetch", c_uint64),
        ("bytes_read_disk", c_uint64),
        ("expert_wait_ns", c_uint64),
        ("expert_slots", c_uint64),
        ("bytes_moved_link", c_uint64),
        ("resident_bytes_now", c_uint64),
        ("host_hits", c_uint64),
        ("host_misses", c_uint64),
        ("host_computed", c_uint64),
        ("host_slots", c_uint64),
        ("bytes_disk_demand", c_uint64),
        ("bytes_disk_prefetch", c_uint64),
        ("oracle_ns", c_uint64),
        ("speculation", moe_speculation_stats),
        ("lossy", moe_lossy_stats),
        ("disk_retries", c_uint64),
        ("expert_failures", c_uint64),
        ("expert_timeouts", c_uint64),
        ("passes_recorded", c_uint64),
        ("passes_missed", c_uint64),
        ("session_bytes", c_uint64),
        ("expert_slots_lent", c_uint64),
        ("host_slots_lent", c_uint64),
        ("policy_faults", c_uint64),
        ("experts_demoted", c_uint64),
        ("demotions_lost", c_uint64),
        ("demoted_hits", c_uint64),
        ("bytes_demoted", c_uint64),
        ("passes_resumed", c_uint64),
        ("read_in_place", c_uint64),
        ("bytes_in_place", c_uint64),
        ("open_plan_ns", c_uint64),
        ("open_memory_ns", c_uint64),
        ("open_weights_ns", c_uint64),
        ("open_weights_bytes", c_uint64),
        ("rows_taken", c_uint64),
        ("rows_waited", c_uint64),
        ("rows_wait_ns", c_uint64),
        ("rows_read", c_uint64),
        ("rows_bytes_disk", c_uint64),
        ("rows_failed", c_uint64),
        ("workers", c_uint32),
        ("workers_ready", c_uint32),
        ("worker_jobs", c_uint64),
        ("worker_experts", c_uint64),
        ("worker_rows", c_uint64),
        ("worker_bytes_sent", c_uint64),
        ("worker_bytes_received", c_uint64),
        ("worker_wait_ns", c_uint64),
        ("worker_experts_lost", c_uint64),
        ("workers_lost", c_uint64),
    ]


class moe_sampling(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("temperature", c_float),
        ("top_k", c_uint32),
        ("top_p", c_float),
        ("min_p", c_float),
        ("repeat_penalty", c_float),
        ("repeat_last", c_uint32),
        ("seed", c_uint64),
        ("presence_penalty", c_float),
        ("frequency_penalty", c_float),
        ("reserved", c_uint64 * 2),
    ]


class moe_token_bias(Structure):
    _fields_ = [
        ("token", c_int32),
        ("bias", c_float),
    ]


class moe_token_chance(Structure):
    _fields_ = [
        ("token", c_int32),
        ("logprob", c_float),
    ]


class moe_token_report(Structure):
    _fields_ = [
        ("chosen", moe_token_chance),
        ("n_top", c_uint32),
        ("top", moe_token_chance * 20),
    ]


class moe_policy_config(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_layer", c_uint32),
        ("n_expert", c_uint32),
        ("n_expert_used", c_uint32),
        ("n_slots", c_uint32),
        ("n_keys", c_uint32),
        ("hotness", POINTER(c_float)),
        ("fetch_cost", POINTER(c_float)),
        ("seed", c_uint64),
    ]


class moe_policy_access(Structure):
    _fields_ = [
        ("pass", c_uint64),
        ("layer", c_uint32),
        ("n_rows", c_uint32),
        ("gate", c_float),
        ("next_use", c_uint64),
    ]


class moe_policy_forecast(Structure):
    _fields_ = [
        ("key", c_uint32),
        ("chance", c_float),
        ("pass", c_uint64),
    ]


class moe_policy(Structure):
    _fields_ = [
        ("abi", c_uint32),
        ("needs", c_uint32),
        ("name", c_char_p),
        ("create", c_void_p),
        ("destroy", c_void_p),
        ("hit", c_void_p),
        ("insert", c_void_p),
        ("evict", c_void_p),
        ("victim", c_void_p),
        ("end_pass", c_void_p),
        ("lookahead", c_void_p),
    ]


class moe_engine_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("model_path", c_char_p),
        ("device", c_char_p),
        ("n_threads", c_uint32),
        ("context", c_uint32),
        ("prefill_chunk", c_uint32),
        ("panel", c_uint32),
        ("panel_others", c_uint32),
        ("kv_cache", c_int),
        ("float_gemm", c_int),
        ("sessions", c_uint32),
        ("host_memory", c_uint64),
        ("device_memory", c_uint64),
        ("expert_cache", c_uint64),
        ("expert_cache_share", c_double),
        ("overcommit_memory", c_bool),
        ("program_memory", c_uint64),
        ("park_folder", c_char_p),
        ("buffered_io", c_bool),
        ("io", c_int),
        ("io_block_bytes", c_uint32),
        ("io_depth", c_uint32),
        ("io_timeout", c_double),
        ("model_copies", c_void_p),
        ("n_model_copies", c_size_t),
        ("checksums", c_char_p),
        ("idle_checksums", c_int),
        ("calibration", c_char_p),
        ("policy", c_char_p),
        ("warm_start", c_int),
        ("prefetch", c_int),
        ("host_compute", c_int),
        ("workers", c_void_p),
        ("n_workers", c_size_t),
        ("worker_key", POINTER(c_uint8)),
        ("worker_key_bytes", c_size_t),
        ("worker_compute", c_int),
        ("worker_timeout", c_double),
        ("experts_only", c_bool),
        ("speculate", c_int),
        ("draft_model", c_char_p),
        ("draft_max", c_uint32),
        ("tree_nodes", c_uint32),
        ("acceptance", c_int),
        ("lookahead", c_uint32),
        ("vocabulary_only", c_bool),
        ("metadata_overrides", POINTER(moe_metadata_override)),
        ("n_metadata_overrides", c_size_t),
        ("lossy", c_void_p),
        ("lab", c_void_p),
        ("progress", c_void_p),
        ("pass_progress", c_void_p),
        ("log", c_void_p),
        ("user", c_void_p),
        ("read_file", c_void_p),
        ("read_user", c_void_p),
        ("own_policy", POINTER(moe_policy)),
        ("worker_rebalance", c_size_t),
        ("exact_attention", c_bool),
        ("reserved", c_uint8 * 7),
    ]


class moe_engine_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("architecture", c_char_p),
        ("family", c_char_p),
        ("model_name", c_char_p),
        ("device", c_char_p),
        ("device_simulated", c_bool),
        ("kernels", c_char_p),
        ("n_threads", c_uint32),
        ("n_layer", c_uint32),
        ("n_embd", c_uint32),
        ("n_vocab", c_uint32),
        ("n_head", c_uint32),
        ("n_head_kv", c_uint32),
        ("n_expert", c_uint32),
        ("n_expert_used", c_uint32),
        ("context", c_uint32),
        ("context_train", c_uint32),
        ("n_parameters", c_uint64),
        ("n_parameters_active", c_uint64),
        ("resident_bytes", c_uint64),
        ("expert_bytes", c_uint64),
        ("active_bytes", c_uint64),
        ("kv_bytes_per_token", c_uint64),
        ("fingerprint", c_uint64),
        ("has_chat_template", c_bool),
        ("chat_template", c_char_p),
        ("policy", c_char_p),
        ("io", c_char_p),
        ("sidecar", c_char_p),
        ("memory", moe_memory_plan),
    ]


class moe_session_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("sampling", moe_sampling),
        ("evaluate_only", c_bool),
        ("reserved", c_uint8 * 7),
    ]


class moe_chat_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("messages", c_char_p),
        ("tools", c_char_p),
        ("template_name", c_char_p),
        ("template_text", c_char_p),
        ("template_arguments", c_char_p),
        ("thinking", c_int),
        ("add_generation_prompt", c_bool),
        ("continue_final_message", c_bool),
        ("reserved", c_uint8 * 2),
        ("now", c_int64),
    ]


class moe_pool(Structure):
    _fields_ = [
        ("sums", POINTER(c_double)),
        ("n_embd", c_uint32),
        ("pooling", c_int),
        ("n", c_size_t),
    ]


class moe_trace_open_options(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("format", c_int),
        ("n_expert", c_uint32),
        ("n_layer", c_uint32),
        ("reserved", c_uint32),
    ]


class moe_trace_info(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_layer", c_uint32),
        ("n_expert", c_uint32),
        ("n_expert_used", c_uint32),
        ("n_sequences", c_uint32),
        ("n_rows", c_uint64),
        ("n_passes", c_uint64),
        ("n_choices", c_uint64),
        ("n_accesses", c_uint64),
        ("has_gates", c_bool),
        ("has_forecasts", c_bool),
        ("reserved", c_uint8 * 30),
    ]


class moe_trace_generator(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_layer", c_uint32),
        ("n_expert", c_uint32),
        ("n_expert_used", c_uint32),
        ("popular", c_double),
        ("slow", c_double),
        ("slow_rho", c_double),
        ("fast", c_double),
        ("fast_rho", c_double),
        ("noise", c_double),
        ("gate_scale", c_double),
        ("n_sequences", c_uint32),
        ("n_prompts", c_uint32),
        ("prompt_rows", c_uint32),
        ("decode_passes", c_uint32),
        ("seed", c_uint64),
    ]


class moe_simulation(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("policy", c_char_p),
        ("cache_share", c_double),
        ("n_slots", c_uint32),
        ("per_layer", c_bool),
        ("is_sequential", c_bool),
        ("seed", c_uint64),
        ("calibration", c_double),
        ("warm_up", c_uint64),
        ("prefetch_recall", c_double),
        ("expert_bytes", c_uint64),
        ("bytes_per_s", c_double),
        ("latency_s", c_double),
        ("depth", c_uint32),
        ("compute_s", c_double),
        ("lookahead", c_int32),
        ("lookahead_stands", c_double),
        ("lookahead_recall", c_double),
        ("lookahead_recall_wrong", c_double),
        ("own_policy", POINTER(moe_policy)),
        ("host_slots", c_uint32),
        ("tiers", c_int),
        ("link_bytes_per_s", c_double),
        ("link_latency_s", c_double),
    ]


class moe_simulation_result(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("n_slots", c_uint32),
        ("n_tokens", c_uint64),
        ("n_passes", c_uint64),
        ("hits", c_uint64),
        ("misses", c_uint64),
        ("evictions", c_uint64),
        ("prefetches", c_uint64),
        ("prefetches_used", c_uint64),
        ("prefetches_wasted", c_uint64),
        ("extra_waves", c_uint64),
        ("policy_faults", c_uint64),
        ("hit_rate", c_double),
        ("bytes_per_token", c_double),
        ("stall_s", c_double),
        ("total_s", c_double),
        ("host_hits", c_uint64),
        ("host_misses", c_uint64),
        ("demoted", c_uint64),
        ("demoted_hits", c_uint64),
        ("disk_bytes_per_token", c_double),
    ]


class moe_layer_analysis(Structure):
    _fields_ = [
        ("overlap", c_double * 8),
        ("overlap_uniform", c_double),
        ("overlap_independent", c_double),
        ("unique", c_double * 16),
        ("unique_independent", c_double * 16),
        ("unique_uniform", c_double * 16),
        ("skewness", c_double),
        ("concentration", c_double),
    ]


class moe_analysis(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("info", moe_trace_info),
        ("mean", moe_layer_analysis),
        ("layers", POINTER(moe_layer_analysis)),
        ("coverage", POINTER(c_double)),
        ("counts", POINTER(c_uint32)),
        ("pair_layer", c_uint32),
        ("pairs", POINTER(c_uint32)),
    ]
