/* SPDX-License-Identifier: MIT */
/* Reads a sidecar. The file is hostile: everything in it is checked. */
#include <stdio.h>

#include "offload/model_open.h"
#include "runtime/base/error.h"
#include "runtime/sidecar/calibration_tables.h"

#define MAX_HABIT  1e6f                /* the largest number of tokens, or cost, of drafts */
#define MAX_TOKENS (UINT64_C(1) << 53) /* so that sums cannot overflow */

typedef struct sidecar {
    const moe_gguf *gguf;
    moe_model_reader *reader;
    const char *path;
    moe_error *err;
} sidecar;

static int get_number(const sidecar *s, const char *key, uint64_t *value)
{
    const moe_gguf_kv *kv = moe_gguf_find(s->gguf, key);
    if (kv == NULL || (kv->type != MOE_GGUF_U32 && kv->type != MOE_GGUF_U64)) {
        return moe_fail(s->err, MOE_ERR_FORMAT,
                        "%s: %s is missing or no number; it is no calibration, or damaged", s->path,
                        key);
    }
    *value = kv->value.u64;
    return MOE_OK;
}

static int check_number(const sidecar *s, const char *key, uint64_t expected)
{
    uint64_t value = 0;
    MOE_TRY(get_number(s, key, &value));
    if (value != expected) {
        return moe_fail(s->err, MOE_ERR_FORMAT, "%s: %s is %llu, not %llu", s->path, key,
                        (unsigned long long)value, (unsigned long long)expected);
    }
    return MOE_OK;
}

/* Reads the model's fingerprint from the sidecar. It must equal the expected one, unless that is
 * 0. */
static int check_fingerprint(const sidecar *s, uint64_t expected, uint64_t *fingerprint)
{
    uint64_t version = 0;
    int status = get_number(s, "moe-cal.version", &version);
    if (status == MOE_OK && version < MOE_CALIBRATION_VERSION) {
        return moe_fail(s->err, MOE_ERR_MISMATCH,
                        "%s is of an earlier version, which cannot tell whether it was made for "
                        "other weights; run moe-offload calibrate",
                        s->path);
    }
    status =
        status == MOE_OK ? check_number(s, "moe-cal.version", MOE_CALIBRATION_VERSION) : status;
    if (status == MOE_OK) {
        status = get_number(s, "moe-cal.model.fingerprint", fingerprint);
    }
    if (status == MOE_OK && expected != 0 && *fingerprint != expected) {
        return moe_fail(s->err, MOE_ERR_MISMATCH,
                        "%s was made for another model or for other weights (fingerprint %016llx, "
                        "this one is %016llx); run moe-offload calibrate",
                        s->path, (unsigned long long)*fingerprint, (unsigned long long)expected);
    }
    return status;
}

/* Checks the tables' sizes. Compares the fingerprint first, because a sidecar of another model
 * should be reported as such. */
static int check_shape(const sidecar *s, const moe_calibration_shape *expected,
                       uint64_t *fingerprint)
{
    MOE_TRY(check_fingerprint(s, expected->fingerprint, fingerprint));
    const struct {
        const char *key;
        uint32_t value;
    } numbers[] = {{"moe-cal.n_layer", expected->n_layer},
                   {"moe-cal.n_expert", expected->n_expert},
                   {"moe-cal.n_expert_used", expected->n_expert_used},
                   {"moe-cal.n_embd", expected->n_embd}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        MOE_TRY(check_number(s, numbers[i].key, numbers[i].value));
    }
    return MOE_OK;
}

/* Finds the tensor of a table. Checks its type and shape, so that its bytes fit the memory that
 * was allocated. */
static int check_table(const sidecar *s, const moe_calibration_table *t,
                       const moe_gguf_tensor **tensor)
{
    const moe_gguf_tensor *found = moe_gguf_find_tensor(s->gguf, t->name);
    if (found == NULL) {
        return moe_fail(s->err, MOE_ERR_FORMAT, "%s: tensor %s is missing", s->path, t->name);
    }
    bool fits = found->type == t->type && found->dims[3] == 1;
    for (uint32_t i = 0; i < 3; i++) {
        fits &= found->dims[i] == t->dims[i];
    }
    if (!fits) {
        return moe_fail(s->err, MOE_ERR_FORMAT,
                        "%s: tensor %s is not of the type and shape that "
                        "the model calls for",
                        s->path, t->name);
    }
    const moe_gguf_file *file = moe_gguf_file_at(s->gguf, found->file_index);
    if (found->offset > file->size || t->bytes > file->size - found->offset) {
        return moe_fail(s->err, MOE_ERR_FORMAT, "%s: tensor %s ends past the file; it is truncated",
                        s->path, t->name);
    }
    *tensor = found;
    return MOE_OK;
}

static int read_table(const sidecar *s, const moe_calibration_table *t)
{
    const moe_gguf_tensor *tensor = NULL;
    MOE_TRY(check_table(s, t, &tensor));
    moe_model_range range = {tensor->file_index, tensor->offset, t->bytes};
    return moe_model_reader_read(s->reader, &range, *t->memory, s->err);
}

/* Reads n tables, and compares their checksum with the one that the file has under this key. */
static int read_tables(const sidecar *s, const moe_calibration_table *tables, uint32_t n,
                       const char *key, uint64_t seed)
{
    uint64_t checksum = seed;
    uint64_t expected = 0;
    int status = get_number(s, key, &expected);
    for (uint32_t i = 0; i < n && status == MOE_OK; i++) {
        status = read_table(s, &tables[i]);
        checksum = status == MOE_OK ? moe_calibration_mix_table(checksum, &tables[i]) : 0;
    }
    if (status == MOE_OK && checksum != expected) {
        status = moe_fail(s->err, MOE_ERR_FORMAT,
                          "%s: the checksum does not match; it is damaged: run moe-offload "
                          "calibrate again",
                          s->path);
    }
    return status;
}

static bool floats_are_valid(const float *x, size_t n, float greatest)
{
    bool valid = true;
    for (size_t i = 0; i < n; i++) {
        valid &= x[i] >= 0.0f && x[i] <= greatest; /* false for NaN */
    }
    return valid;
}

static bool percentiles_are_valid(const float *x, uint32_t n_layer)
{
    bool valid = floats_are_valid(x, (size_t)n_layer * MOE_PERCENTILES, 1.0f);
    for (size_t i = 1; i < (size_t)n_layer * MOE_PERCENTILES; i++) {
        valid &= i % MOE_PERCENTILES == 0 || x[i] >= x[i - 1];
    }
    return valid;
}

/* Whether each row is a permutation of all experts that begins with the row's own expert. */
static bool affinity_is_valid(const uint16_t *ids, uint64_t n_rows, uint32_t n_expert)
{
    for (uint64_t row = 0; row < n_rows; row++) {
        bool seen[MOE_MAX_EXPERTS] = {false};
        const uint16_t *order = ids + row * n_expert;
        for (uint32_t i = 0; i < n_expert; i++) {
            if (order[i] >= n_expert || seen[order[i]]) {
                return false;
            }
            seen[order[i]] = true;
        }
        if (order[0] != row % n_expert) {
            return false;
        }
    }
    return true;
}

/* Returns the name of a table that holds impossible values, or NULL. Checks all tables except
 * `counts`. */
static const char *find_impossible(const moe_calibration *c)
{
    const moe_calibration_shape *shape = &c->shape;
    size_t n_keys = (size_t)shape->n_layer * shape->n_expert;
    size_t n_pairs = n_keys * shape->n_expert;
    if (!floats_are_valid(c->coactivation, n_pairs, (float)c->n_tokens)) {
        return "coactivation";
    }
    if (!floats_are_valid(c->coactivation_weighted, n_pairs, (float)c->n_tokens)) {
        return "coactivation.weighted";
    }
    if (!percentiles_are_valid(c->tae, shape->n_layer)) {
        return "tae.percentiles";
    }
    if (!percentiles_are_valid(c->margin, shape->n_layer)) {
        return "margin.percentiles";
    }
    for (int kind = 0; kind < MOE_AFFINITY_KINDS; kind++) {
        if (!affinity_is_valid(c->affinity[kind], n_keys, shape->n_expert)) {
            return "affinity";
        }
    }
    return NULL;
}

/* Checks the values: a file with a correct checksum may still hold values that no calibration
 * writes. */
static int check_contents(const sidecar *s, const moe_calibration *c)
{
    const char *wrong = c->n_tokens > MAX_TOKENS || c->n_learned > c->n_tokens ? "counts" : NULL;
    for (size_t i = 0; i < (size_t)c->shape.n_layer * c->shape.n_expert; i++) {
        wrong = c->counts[i] > c->n_tokens ? "counts" : wrong;
    }
    if (wrong == NULL && moe_calibration_has_tables(c)) {
        wrong = find_impossible(c);
    }
    return wrong == NULL ? MOE_OK
                         : moe_fail(s->err, MOE_ERR_FORMAT, "%s: tensor %s holds impossible values",
                                    s->path, wrong);
}

/* Determines which tables to load: those that the file has and the caller wants. */
static int find_extent(const sidecar *s, bool with_gram, moe_calibration_extent *extent)
{
    uint64_t n_tables = 0;
    int status = get_number(s, "moe-cal.tables", &n_tables);
    if (status == MOE_OK && n_tables != 1) {
        status = check_number(s, "moe-cal.tables", MOE_CALIBRATION_TABLES_CHECKED);
    }
    with_gram = with_gram && moe_gguf_find_tensor(s->gguf, "gram") != NULL;
    *extent = n_tables == 1 ? MOE_CALIBRATION_HOTNESS
              : with_gram   ? MOE_CALIBRATION_GRAM
                            : MOE_CALIBRATION_TABLES;
    return status;
}

/* Returns the length of a one-dimensional tensor of numbers; 0: the file lacks it, or it is of
 * another form. */
static uint64_t list_length(const sidecar *s, const char *name)
{
    const moe_gguf_tensor *t = moe_gguf_find_tensor(s->gguf, name);
    return t != NULL && t->type == MOE_GGUF_TYPE_I64 && t->dims[1] == 1 ? t->dims[0] : 0;
}

/* Loads the checksums that find damage. Sidecars of earlier versions have none. */
static int load_integrity(const sidecar *s, moe_calibration *c)
{
    uint64_t n_samples = list_length(s, "model.samples");
    uint64_t n_tensors = list_length(s, "tensor.checksums");
    uint64_t expected = 0;
    if (moe_gguf_find(s->gguf, "moe-cal.integrity.checksum") == NULL) {
        return MOE_OK;
    }
    if (n_samples == 0 || n_samples > MOE_IDENTITY_SAMPLES || n_tensors < n_samples ||
        n_tensors > UINT32_MAX / sizeof *c->tensor_checksums) {
        return moe_fail(s->err, MOE_ERR_FORMAT,
                        "%s: the lists of checksums are damaged: run moe-offload calibrate again",
                        s->path);
    }
    void *samples = c->samples;
    int status = get_number(s, "moe-cal.model.header", &c->header);
    status = status == MOE_OK ? get_number(s, "moe-cal.integrity.checksum", &expected) : status;
    moe_calibration_table of_samples = {"model.samples",   MOE_GGUF_TYPE_I64, 1,
                                        {n_samples, 1, 1}, &samples,          8 * n_samples};
    moe_calibration_table of_tensors = {
        "tensor.checksums", MOE_GGUF_TYPE_I64, 1, {n_tensors, 1, 1}, (void **)&c->tensor_checksums,
        8 * n_tensors};
    const moe_gguf_tensor *found; /* checked before memory is allocated for a hostile file's claims
                                   */
    status = status == MOE_OK ? check_table(s, &of_tensors, &found) : status;
    status =
        status == MOE_OK ? moe_calibration_make_tensors(c, (uint32_t)n_tensors, s->err) : status;
    status = status == MOE_OK ? read_table(s, &of_samples) : status;
    status = status == MOE_OK ? read_table(s, &of_tensors) : status;
    c->n_samples = (uint32_t)n_samples;
    if (status == MOE_OK && moe_calibration_mix_integrity(c) != expected) {
        status = moe_fail(s->err, MOE_ERR_FORMAT,
                          "%s: the checksum of the checksums does not match; it is damaged: run "
                          "moe-offload calibrate again",
                          s->path);
    }
    return status;
}

static bool tallies_are_valid(const moe_draft_tally *tallies, size_t n)
{
    bool valid = true;
    for (size_t i = 0; i < n; i++) {
        valid &= tallies[i].seen <= MAX_HABIT && tallies[i].accepted >= 0.0f &&
                 tallies[i].accepted <= tallies[i].seen; /* false for NaN */
    }
    return valid;
}

static bool habits_are_valid(const moe_draft_habits *habits)
{
    bool valid = true;
    for (uint32_t d = 0; d < MOE_HABIT_DRAFTERS; d++) {
        const moe_draft_habit *h = &habits->of[d];
        valid &= tallies_are_valid(h->cells[0], (size_t)MOE_HABIT_DEPTHS * MOE_HABIT_BUCKETS) &&
                 tallies_are_valid(h->depths, MOE_HABIT_DEPTHS) &&
                 tallies_are_valid(h->buckets, MOE_HABIT_BUCKETS) &&
                 floats_are_valid(&h->costs[0].n, sizeof h->costs / (sizeof(float)), MAX_HABIT);
    }
    return valid;
}

/* Loads what was learnt about drafts. The file lacks it if nothing was drafted, or if nobody
 * saved the results. */
static int load_drafts(const sidecar *s, moe_calibration *c)
{
    static const moe_draft_habits none;
    if (moe_gguf_find(s->gguf, "moe-cal.drafts.checksum") == NULL) {
        return MOE_OK;
    }
    int status = moe_calibration_learn_drafts(c, &none, s->err);
    if (status == MOE_OK) {
        moe_calibration_table table = moe_calibration_drafts_table(c);
        status = read_tables(s, &table, 1, "moe-cal.drafts.checksum", c->shape.fingerprint);
    }
    return status != MOE_OK || habits_are_valid(c->drafts)
               ? status
               : moe_fail(s->err, MOE_ERR_FORMAT, "%s: tensor drafts holds impossible values",
                          s->path);
}

static int load_from(const sidecar *s, moe_calibration **out, const moe_calibration_shape *expected,
                     bool with_gram)
{
    moe_calibration_shape shape = *expected;
    moe_string_view name = {"", 0};
    moe_calibration_extent extent = MOE_CALIBRATION_HOTNESS;
    MOE_TRY(check_shape(s, expected, &shape.fingerprint));
    MOE_TRY(moe_gguf_get_string(s->gguf, "moe-cal.text.name", &name, s->err));
    MOE_TRY(find_extent(s, with_gram, &extent));
    char text_name[256];
    snprintf(text_name, sizeof text_name, "%.*s", (int)(name.size < 255 ? name.size : 255),
             name.data);
    MOE_TRY(moe_calibration_create(out, &shape, text_name, extent, s->err));
    MOE_TRY(get_number(s, "moe-cal.text.tokens", &(*out)->n_tokens));
    MOE_TRY(get_number(s, "moe-cal.learned.tokens", &(*out)->n_learned));
    moe_calibration_table tables[MOE_CALIBRATION_TABLES_CHECKED + 1];
    uint32_t n = extent == MOE_CALIBRATION_HOTNESS ? 1 : MOE_CALIBRATION_TABLES_CHECKED;
    moe_calibration_list_tables(*out, tables);
    MOE_TRY(read_tables(s, tables, n, "moe-cal.checksum", shape.fingerprint));
    if (extent == MOE_CALIBRATION_GRAM) {
        MOE_TRY(read_tables(s, &tables[MOE_CALIBRATION_TABLE_GRAM], 1, "moe-cal.gram.checksum",
                            shape.fingerprint));
    }
    MOE_TRY(load_integrity(s, *out));
    MOE_TRY(load_drafts(s, *out));
    return check_contents(s, *out);
}

int moe_calibration_load(moe_calibration **out, const char *path,
                         const moe_calibration_shape *expected, bool with_gram,
                         const moe_model_reader_options *reading, moe_error *err)
{
    *out = NULL;
    moe_gguf *gguf = NULL;
    moe_model_reader_options options = {0};
    if (reading != NULL) {
        options.io_timeout_ns = reading->io_timeout_ns;
        options.is_cancelled = reading->is_cancelled;
        options.cancel_user = reading->cancel_user;
    }
    int status = moe_model_open(&gguf, path, &options, err);
    if (status == MOE_OK) {
        options.gguf = gguf;
        options.buffered = true;
        sidecar s = {gguf, NULL, path, err};
        status = moe_model_reader_open(&s.reader, &options, err);
        if (status == MOE_OK) {
            status = load_from(&s, out, expected, with_gram);
        }
        moe_model_reader_close(&s.reader);
    }
    if (status != MOE_OK) {
        moe_calibration_free(out);
    }
    moe_gguf_close(&gguf);
    return status;
}
