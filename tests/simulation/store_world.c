/* SPDX-License-Identifier: MIT */
#include "tests/simulation/store_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "cache/expert_cache.h"
#include "runtime/device/cards.h"
#include "runtime/model/gguf.h"
#include "tests/simulation/virtual_memory.h"

#define N_FILES     2u
#define FILE_BYTES  ((uint64_t)2 << 20)
#define MOST_DRIVES 3u

const char *const sim_fault_names[] = {"short",  "transient", "slow",     "soft", "hard", "flip",
                                       "hang",   "twice",     "refused",  "copy", "save", "deaf",
                                       "memory", "cancel",    "spurious", "leap"};
const uint32_t sim_n_faults = W_FAULTS;
_Static_assert(sizeof sim_fault_names / sizeof sim_fault_names[0] == W_FAULTS, "names of faults");

static world the_world;

/* ---- Files: all models have the same bytes, and their experts in other places ---- */

struct moe_gguf {
    moe_gguf_file files[N_FILES];
};

static uint8_t *file_bytes[N_FILES];
static moe_gguf drives[MOST_DRIVES];
static moe_byte_source sources[MOST_DRIVES][N_FILES];

static int64_t no_read(const moe_byte_source *source, void *dst, size_t size, uint64_t offset,
                       unsigned flags)
{
    (void)dst;
    (void)size;
    (void)flags;
    sim_fail("%s is read at %llu, and not by the engine", source->name, (unsigned long long)offset);
}

static bool identify(const moe_byte_source *source, bool by_name, moe_byte_identity *identity)
{
    (void)by_name;
    *identity = source->opened;
    return true;
}

static void no_close(moe_byte_source *source)
{
    sim_fail("%s is closed", source->name);
}

static const moe_byte_source_ops source_ops = {no_read, identify, no_close};

size_t moe_gguf_n_files(const moe_gguf *gguf)
{
    (void)gguf;
    return N_FILES;
}

const moe_gguf_file *moe_gguf_file_at(const moe_gguf *gguf, size_t index)
{
    return &gguf->files[index];
}

/* What all models' files hold. */
void sim_world_prepare(void)
{
    static char paths[MOST_DRIVES][N_FILES][8] = {
        {"a1.gguf", "a2.gguf"}, {"b1.gguf", "b2.gguf"}, {"c1.gguf", "c2.gguf"}};
    sim_dice dice = sim_dice_of(1, 10);
    for (uint32_t f = 0; f < N_FILES; f++) {
        file_bytes[f] = malloc(FILE_BYTES);
        if (file_bytes[f] == NULL) {
            abort();
        }
        for (uint64_t at = 0; at < FILE_BYTES; at += 8) {
            uint64_t number = sim_roll(&dice);
            memcpy(file_bytes[f] + at, &number, 8);
        }
        for (uint32_t d = 0; d < MOST_DRIVES; d++) {
            moe_byte_source *source = &sources[d][f];
            *source = (moe_byte_source){.ops = &source_ops,
                                        .name = paths[d][f],
                                        .size = FILE_BYTES,
                                        .opened = {.size = FILE_BYTES},
                                        .direct_alignment = 4096,
                                        .fd = -1,
                                        .direct_fd = -1};
            atomic_init(&source->n_holders, 1);
            drives[d].files[f] =
                (moe_gguf_file){.path = source->name, .size = FILE_BYTES, .source = source};
        }
    }
}

/* ---- The model ---- */

static void place_part(moe_tensor_ref *part, uint64_t *end, uint32_t file, uint32_t size,
                       uint32_t alignment, sim_dice *dice)
{
    uint64_t at = *end + (sim_below(dice, 4) == 0 ? sim_below(dice, 3000) : 0);
    at = (at + alignment - 1) / alignment * alignment;
    *part = (moe_tensor_ref){.type = MOE_DTYPE_F32,
                             .file_index = file,
                             .offset = at,
                             .size = size,
                             .n_in = size / 4,
                             .n_out = 1};
    *end = at + size;
    if (*end > FILE_BYTES) {
        sim_fail("the files are too small for this model");
    }
}

static void choose_model(world *w, sim_dice *dice)
{
    uint32_t sizes[2][MOE_EXPERT_PARTS];
    uint64_t end[N_FILES] = {sim_below(dice, 5000), sim_below(dice, 5000)};
    uint32_t n_files = 1 + sim_below(dice, N_FILES);
    uint32_t alignment = sim_below(dice, 2) == 0 ? 16 : 4;
    bool gate = sim_below(dice, 4) != 0;
    w->map = (moe_tensor_map){.n_layer = 1 + sim_below(dice, W_MAX_LAYERS),
                              .n_expert = 3 + sim_below(dice, W_MAX_EXPERTS - 2),
                              .layers = w->layers};
    w->n_classes = 1 + (sim_below(dice, 3) == 0);
    uint32_t most = sim_below(dice, 4) == 0 ? 2200 : 300;
    for (uint32_t c = 0; c < 2; c++) {
        for (uint32_t p = 0; p < MOE_EXPERT_PARTS; p++) {
            sizes[c][p] = 4 * (1 + sim_below(dice, most));
        }
        sizes[c][MOE_EXPERT_GATE] = gate ? sizes[c][MOE_EXPERT_GATE] : 0;
    }
    for (uint32_t l = 0; l < w->map.n_layer; l++) {
        uint32_t class = w->n_classes == 1 ? 0 : sim_below(dice, 2);
        if (l + 1 < w->map.n_layer && sim_below(dice, 8) == 0) {
            continue; /* a dense layer */
        }
        w->layers[l].experts = &w->experts[l * w->map.n_expert];
        w->routed[w->n_routed++] = l;
        for (uint32_t e = 0; e < w->map.n_expert; e++) {
            uint32_t file = sim_below(dice, n_files);
            for (uint32_t p = 0; p < MOE_EXPERT_PARTS; p++) {
                moe_tensor_ref *part = &w->layers[l].experts[e].parts[p];
                if (sizes[class][p] > 0) {
                    place_part(part, &end[file], file, sizes[class][p], alignment, dice);
                }
                w->map.expert_bytes += part->size;
            }
        }
    }
}

/* Checksums: none; known; or made when experts are first read. */
static void choose_checksums(world *w, sim_dice *dice)
{
    uint32_t how = sim_below(dice, 6);
    if (how >= 3) {
        return;
    }
    w->sums = (moe_weight_sums){.n = W_MAX_KEYS * MOE_EXPERT_PARTS,
                                .n_of_experts = W_MAX_KEYS * MOE_EXPERT_PARTS,
                                .of = w->known,
                                .n_reads = w->n_reads,
                                .each_time = how < 2};
    w->options.sums = &w->sums;
    w->is_checked = how < 2;
    for (uint32_t i = 0; i < w->n_routed; i++) {
        for (uint32_t e = 0; e < w->map.n_expert; e++) {
            uint32_t key = world_key(w, w->routed[i], e);
            for (uint32_t p = 0; p < MOE_EXPERT_PARTS; p++) {
                const moe_tensor_ref *part = &w->experts[key].parts[p];
                w->known[key * MOE_EXPERT_PARTS + p] =
                    w->is_checked
                        ? XXH3_64bits(file_bytes[part->file_index] + part->offset, part->size)
                        : 0;
            }
        }
    }
}

/* ---- Faults ---- */

/* Never, seldom or often, in thousandths. */
static uint32_t rate(const world *w, sim_dice *dice, w_fault fault, uint32_t often)
{
    uint32_t how = sim_below(dice, 6);
    uint32_t seldom = often >= 10 ? often / 10 : 1;
    uint32_t drawn = how >= 2 ? 0 : how == 0 ? 1 + sim_below(dice, seldom) : sim_below(dice, often);
    return (w->plan->without >> fault & 1) != 0 ? 0 : drawn;
}

static vd_faults choose_drive(const world *w, sim_dice *dice)
{
    return (vd_faults){.short_read = rate(w, dice, W_FAULT_SHORT, 400),
                       .transient = rate(w, dice, W_FAULT_TRANSIENT, 300),
                       .slow = rate(w, dice, W_FAULT_SLOW, 300),
                       .soft_error = rate(w, dice, W_FAULT_SOFT, 300),
                       .hard_error = rate(w, dice, W_FAULT_HARD, 950),
                       .flip = w->is_checked ? rate(w, dice, W_FAULT_FLIP, 500) : 0,
                       .hang = rate(w, dice, W_FAULT_HANG, 60),
                       .twice = rate(w, dice, W_FAULT_TWICE, 200),
                       .refused = rate(w, dice, W_FAULT_REFUSED, 200)};
}

static vc_faults choose_link(const world *w, sim_dice *dice, w_fault fault)
{
    return (vc_faults){.refused = rate(w, dice, fault, 300),
                       .fails = rate(w, dice, fault, 300),
                       .slow = rate(w, dice, W_FAULT_SLOW, 300),
                       .hangs = rate(w, dice, W_FAULT_HANG, 60)};
}

static void choose_faults(world *w, sim_dice *dice)
{
    virtual_disk *d = &w->disk;
    virtual_card *c = &w->card;
    bool any = sim_below(dice, 5) != 0;
    uint64_t timeout = w->options.io_timeout_ns;
    for (uint32_t i = 0; i < d->n_drives && any; i++) {
        d->faults[i] = choose_drive(w, dice);
    }
    if (any) {
        c->copies = choose_link(w, dice, W_FAULT_COPY);
        c->saves = choose_link(w, dice, W_FAULT_SAVE);
        c->deaf_per_mille = rate(w, dice, W_FAULT_DEAF, 500);
        c->give_up_refused = rate(w, dice, W_FAULT_REFUSED, 300);
    }
    c->unreadable_per_mille = sim_below(dice, 3) == 0 ? 300 : 0;
    d->read_ns = 1000u << sim_below(dice, 8);
    c->copy_ns = 500u << sim_below(dice, 8);
    d->slow_ns = c->slow_ns = timeout / 4;
    d->hang_ns = c->hang_ns = 1 + (timeout << sim_below(dice, 3));
    d->never_per_mille = c->never_per_mille = sim_below(dice, 2) * 200;
    for (uint32_t i = 0; i < d->n_drives; i++) {
        const vd_faults *f = &d->faults[i];
        w->may_fail |= f->hard_error > 0 || f->flip > 0;
        w->may_hang |= f->hang > 0;
        /* Slow answers without bytes, one after the other, are no progress to the mover. */
        w->may_hang |= f->slow > 0 && f->soft_error > 0;
    }
    w->may_fail |= c->copies.fails > 0 || c->copies.refused > 0;
    w->may_hang |= c->copies.hangs > 0 || c->saves.hangs > 0 || c->deaf_per_mille > 0;
}

static sim_settings settings_of(const sim_plan *plan)
{
    sim_dice dice = sim_dice_of(plan->seed, 20);
    bool spurious = sim_below(&dice, 4) == 0 && (plan->without >> W_FAULT_SPURIOUS & 1) == 0;
    bool leaps = sim_below(&dice, 10) == 0 && (plan->without >> W_FAULT_LEAP & 1) == 0;
    return (sim_settings){.seed = plan->schedule,
                          .max_events = 4000000,
                          .patience_ns = 100000000u,
                          .spurious_per_mille = spurious ? 20 : 0,
                          .leap_per_mille = leaps ? 5 : 0,
                          .trace = plan->trace,
                          .calm = plan->calm,
                          .look = world_look,
                          .user = &the_world};
}

sim_settings sim_world_begin(const sim_plan *plan)
{
    the_world.plan = plan;
    the_world.store = NULL;
    the_world.between_calls = false;
    return settings_of(plan);
}

uint32_t sim_world_op(void)
{
    return the_world.op;
}

uint64_t sim_world_checks(void)
{
    return the_world.n_checks;
}

void world_heal(world *w)
{
    memset(w->disk.faults, 0, sizeof w->disk.faults);
    virtual_card *cards[] = {&w->card, &w->second_card};
    for (uint32_t k = 0; k < 2; k++) {
        cards[k]->copies = cards[k]->saves = (vc_faults){.refused = 0};
        cards[k]->deaf_per_mille = cards[k]->give_up_refused = cards[k]->alloc_refused = 0;
    }
    w->is_healed = true;
}

/* ---- The store's options ---- */

static void tell(const char *line, void *user)
{
    world *w = user;
    sim_trace("log: %s", line);
    w->told_left |= strstr(line, "stays allocated") != NULL;
}

static const moe_policy *choose_policy(const world *w, sim_dice *dice)
{
    for (;;) {
        const moe_policy *policy = moe_policy_at(sim_below(dice, 12));
        unsigned missing = MOE_POLICY_NEEDS_FUTURE |
                           (w->options.hotness == NULL ? (unsigned)MOE_POLICY_NEEDS_HOTNESS : 0u);
        if (policy != NULL && (policy->needs & missing) == 0) {
            return policy;
        }
    }
}

/* Mostly few slots. */
static uint64_t choose_budget(sim_dice *dice, uint64_t full, uint64_t slot, uint32_t n_classes)
{
    uint64_t floor = n_classes * slot < full ? n_classes * slot : full;
    switch (sim_below(dice, 8)) {
    case 0:
        return full;
    case 1:
    case 2:
        return floor + sim_roll(dice) % (full - floor + 1);
    default:
        return floor + slot * sim_below(dice, 10);
    }
}

static void choose_options(world *w, sim_dice *dice)
{
    static const moe_gguf *copies[MOST_DRIVES - 1] = {&drives[1], &drives[2]};
    moe_expert_slot_sizes sizes;
    moe_error error;
    moe_expert_store_options *o = &w->options;
    if (moe_expert_store_sizes(&w->map, w->has_link, &sizes, &error) != MOE_OK) {
        sim_fail("sizes: %s", error.message);
    }
    o->device = &w->card.base;
    o->gguf = &drives[0];
    o->copies = copies;
    o->n_copies = sim_below(dice, 3) == 0 ? 1 + sim_below(dice, MOST_DRIVES - 1) : 0;
    o->map = &w->map;
    o->n_expert_used = 1 + sim_below(dice, w->map.n_expert < 4 ? w->map.n_expert : 4);
    w->n_cards = w->has_link && sim_below(dice, 8) == 0 ? 2 : 1;
    for (uint32_t k = 0; k < 2; k++) {
        w->card_bytes[k] = choose_budget(dice, sizes.full_bytes, sizes.slot_bytes, 2);
    }
    o->card_bytes = w->card_bytes;
    o->budget_bytes = choose_budget(dice, sizes.full_bytes, sizes.slot_bytes, sizes.n_classes);
    o->host_budget_bytes =
        choose_budget(dice, sizes.host_full_bytes, sizes.host_slot_bytes, sizes.n_classes);
    w->uses_host = sim_below(dice, 3) != 0;
    o->per_layer = sim_below(dice, 4) == 0;
    o->keep_nothing = sim_below(dice, 8) == 0;
    for (uint32_t key = 0; key < W_MAX_KEYS; key++) {
        w->hotness[key] = (float)sim_below(dice, 1000) / 1000.0f;
    }
    o->hotness = sim_below(dice, 2) == 0 ? w->hotness : NULL;
    o->policy = choose_policy(w, dice);
    o->buffered_io = sim_below(dice, 4) != 0;
    o->io_block_bytes = sim_below(dice, 2) == 0 ? 4096 : 0;
    o->io_depth = 1 + sim_below(dice, 16);
    o->io_timeout_ns = (uint64_t)200000000u << sim_below(dice, 4);
    o->io_engine = &virtual_disk_ops;
    o->io_context = &w->disk;
    o->seed = sim_roll(dice);
    o->log = tell;
    o->user = w;
    choose_checksums(w, dice);
    if (sim_below(dice, 8) == 0) {
        for (uint32_t key = 0; key < w->map.n_layer * w->map.n_expert && o->n_kept < 3; key++) {
            if (w->layers[key / w->map.n_expert].experts != NULL && sim_below(dice, 8) == 0) {
                w->kept[o->n_kept++] = key;
            }
        }
        o->kept = w->kept;
    }
}

static void open_cards(world *w)
{
    virtual_card_open(&w->card, w->has_link);
    if (w->n_cards < 2) {
        return;
    }
    moe_error error = {""};
    moe_device *second = &w->second_card.base;
    w->second_card = w->card;
    w->second_card.number = 1;
    virtual_card_open(&w->second_card, true);
    if (moe_cards_join(&w->card.base, &second, 1, &error) != MOE_OK) {
        w->n_cards = 1;
    }
}

void world_close_cards(world *w)
{
    w->card.base.ops->close(&w->card.base);
}

void world_choose(world *w, const sim_plan *plan)
{
    sim_dice dice = sim_dice_of(plan->seed, 30);
    memset(w, 0, sizeof *w);
    w->plan = plan;
    vm_reset();
    w->has_link = sim_below(&dice, 5) < 3;
    choose_model(w, &dice);
    choose_options(w, &dice);
    w->disk.n_files = N_FILES;
    w->disk.n_drives = 1 + w->options.n_copies;
    for (uint32_t f = 0; f < N_FILES; f++) {
        w->disk.bytes[f] = file_bytes[f];
        w->disk.sizes[f] = FILE_BYTES;
    }
    w->disk.seed = w->card.seed = plan->schedule;
    w->disk.blocks = sim_below(&dice, 8) == 0;
    w->disk.no_direct = !w->options.buffered_io && sim_below(&dice, 2) == 0;
    choose_faults(w, &dice);
    w->may_hang |= settings_of(plan).leap_per_mille > 0;
    w->may_hang |= w->disk.blocks; /* many slow reads in a row are no progress to the mover */
    if (sim_below(&dice, 12) == 0 && (plan->without >> W_FAULT_MEMORY & 1) == 0) {
        sim_heap_now()->refuse_at = 1 + sim_below(&dice, 90);
        w->may_fail = true;
    }
    if (w->card.deaf_per_mille > 0) {
        sim_be_patient(w->options.io_timeout_ns);
    }
    open_cards(w);
}

/* ---- Checks ---- */

uint32_t world_key(const world *w, uint32_t layer, uint32_t expert)
{
    return layer * w->map.n_expert + expert;
}

void world_check_parts(const world *w, uint32_t layer, uint32_t expert,
                       const void *const parts[MOE_EXPERT_PARTS], const char *what)
{
    const moe_expert_ref *ref = &w->experts[world_key(w, layer, expert)];
    for (uint32_t p = 0; p < MOE_EXPERT_PARTS; p++) {
        const moe_tensor_ref *part = &ref->parts[p];
        if (part->size == 0) {
            continue;
        }
        if (vm_kind_of(parts[p], part->size) < 0) {
            sim_fail("%s: layer %u, expert %u, part %u is not in memory", what, layer, expert, p);
        }
        if (memcmp(parts[p], file_bytes[part->file_index] + part->offset, part->size) != 0) {
            sim_fail("%s: layer %u, expert %u, part %u: wrong bytes", what, layer, expert, p);
        }
    }
}

static void parts_of_view(const moe_expert_view *view, const void *parts[MOE_EXPERT_PARTS])
{
    for (uint32_t p = 0; p < MOE_EXPERT_PARTS; p++) {
        parts[p] = view->parts[p].data;
    }
}

void world_check_view(const world *w, uint32_t layer, uint32_t expert, const moe_expert_view *view,
                      const char *what)
{
    const void *parts[MOE_EXPERT_PARTS];
    parts_of_view(view, parts);
    world_check_parts(w, layer, expert, parts, what);
}

void world_rely(const world *w, uint32_t layer, uint32_t expert,
                const void *const parts[MOE_EXPERT_PARTS], const char *what)
{
    const moe_expert_ref *ref = &w->experts[world_key(w, layer, expert)];
    for (uint32_t p = 0; p < MOE_EXPERT_PARTS; p++) {
        if (ref->parts[p].size > 0) {
            (void)vm_begin(parts[p], ref->parts[p].size, VM_RELIED, what);
        }
    }
}

void world_look(void *user)
{
    world *w = user;
    if (!w->between_calls || w->store == NULL) {
        return;
    }
    w->n_checks++;
    if (w->has_border ? !moe_memory_border_check(&w->border)
                      : !moe_expert_store_is_sane(w->store)) {
        sim_fail("%s", moe_expert_store_is_sane(w->store) ? "the border does not add up"
                                                          : "the store is not sane");
    }
}
