/* SPDX-License-Identifier: MIT */
/* Reads and writes traces in two formats: JSON lines (trace_jsonl.c; trace_writer.h writes them)
 * and libCacheSim's oracleGeneral (trace_oracle.c). */
#ifndef MOE_CACHE_TRACE_FORMATS_H
#define MOE_CACHE_TRACE_FORMATS_H

#include <moe/trace.h>

int moe_trace_read_jsonl(moe_trace **out, const moe_trace_open_options *options, moe_error *err);
int moe_trace_read_oracle(moe_trace **out, const moe_trace_open_options *options, moe_error *err);
int moe_trace_write_oracle(const moe_trace *trace, const char *path, uint32_t expert_bytes,
                           moe_error *err);

#endif
