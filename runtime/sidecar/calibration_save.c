/* SPDX-License-Identifier: MIT */
#include "runtime/base/error.h"
#include "runtime/model/gguf_writer.h"
#include "runtime/sidecar/calibration_tables.h"

static void write_integrity(moe_gguf_writer *w, const moe_calibration *c)
{
    const uint64_t samples[3] = {c->n_samples, 1, 1};
    const uint64_t tensors[3] = {c->n_tensors, 1, 1};
    moe_gguf_writer_u64(w, "moe-cal.model.header", c->header);
    moe_gguf_writer_u64(w, "moe-cal.integrity.checksum", moe_calibration_mix_integrity(c));
    moe_gguf_writer_tensor(w, "model.samples", MOE_GGUF_TYPE_I64, 1, samples, c->samples,
                           samples[0] * sizeof *c->samples);
    moe_gguf_writer_tensor(w, "tensor.checksums", MOE_GGUF_TYPE_I64, 1, tensors,
                           c->tensor_checksums, tensors[0] * sizeof *c->tensor_checksums);
}

static void write_drafts(moe_gguf_writer *w, moe_calibration *c)
{
    moe_calibration_table t = moe_calibration_drafts_table(c);
    moe_gguf_writer_u64(w, "moe-cal.drafts.checksum",
                        moe_calibration_mix_table(c->shape.fingerprint, &t));
    moe_gguf_writer_tensor(w, t.name, t.type, t.n_dims, t.dims, *t.memory, t.bytes);
}

int moe_calibration_save(const moe_calibration *calibration, const char *path, moe_error *err)
{
    moe_calibration copy = *calibration; /* the list needs pointers that it may write to */
    moe_calibration_table tables[MOE_CALIBRATION_TABLES_CHECKED + 1];
    moe_calibration_list_tables(&copy, tables);
    uint32_t n_checked = moe_calibration_has_tables(&copy) ? MOE_CALIBRATION_TABLES_CHECKED : 1;
    uint32_t n_tables = n_checked + (copy.gram != NULL);
    uint64_t checksum = copy.shape.fingerprint;
    for (uint32_t i = 0; i < n_checked; i++) {
        checksum = moe_calibration_mix_table(checksum, &tables[i]);
    }
    moe_gguf_writer *w = moe_gguf_writer_create();
    if (w == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory to write %s", path);
    }
    moe_gguf_writer_string(w, "general.architecture", "moe-calibration");
    moe_gguf_writer_u32(w, "moe-cal.version", MOE_CALIBRATION_VERSION);
    moe_gguf_writer_u32(w, "moe-cal.tables", n_checked);
    moe_gguf_writer_u64(w, "moe-cal.model.fingerprint", copy.shape.fingerprint);
    moe_gguf_writer_u32(w, "moe-cal.n_layer", copy.shape.n_layer);
    moe_gguf_writer_u32(w, "moe-cal.n_expert", copy.shape.n_expert);
    moe_gguf_writer_u32(w, "moe-cal.n_expert_used", copy.shape.n_expert_used);
    moe_gguf_writer_u32(w, "moe-cal.n_embd", copy.shape.n_embd);
    moe_gguf_writer_string(w, "moe-cal.text.name", copy.text_name);
    moe_gguf_writer_u64(w, "moe-cal.text.tokens", copy.n_tokens);
    moe_gguf_writer_u64(w, "moe-cal.learned.tokens", copy.n_learned);
    moe_gguf_writer_u64(w, "moe-cal.checksum", checksum);
    if (copy.gram != NULL) {
        moe_gguf_writer_u64(
            w, "moe-cal.gram.checksum",
            moe_calibration_mix_table(copy.shape.fingerprint, &tables[MOE_CALIBRATION_TABLE_GRAM]));
    }
    for (uint32_t i = 0; i < n_tables; i++) {
        const moe_calibration_table *t = &tables[i];
        moe_gguf_writer_tensor(w, t->name, t->type, t->n_dims, t->dims, *t->memory, t->bytes);
    }
    if (copy.tensor_checksums != NULL) {
        write_integrity(w, &copy);
    }
    if (copy.drafts != NULL) {
        write_drafts(w, &copy);
    }
    int status = moe_gguf_writer_save(w, path, err);
    moe_gguf_writer_free(&w);
    return status;
}
