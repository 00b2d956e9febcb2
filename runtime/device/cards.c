/* SPDX-License-Identifier: MIT */
#include "runtime/device/cards.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/base/alloc.h"
#include "runtime/base/error.h"

/* A card beyond the first. */
typedef struct further_card {
    moe_device *device;
    uint8_t *slots; /* expert slots, in the card's memory; NULL: none */
    size_t slots_bytes;
    float *x, *out; /* in the card's memory: rows that it reads, results that it sends back */
} further_card;

struct moe_cards {
    moe_device *first;
    uint32_t n;                        /* number of cards, the first included */
    further_card cards[MOE_MAX_CARDS]; /* [0] is not used */
    /* The first card's operations, before they were replaced. */
    const moe_device_ops *own_ops;
    const moe_link_ops *own_link;
    moe_device_ops ops;
    moe_link_ops link;
    char name[256];
    moe_device_limits limits;
    float *host_x, *host_out; /* host_alloc() of the first card */
    moe_expert_work *works;
    uint32_t *rows, *places; /* of results: their rows in out; and 0, 1, .. */
    uint32_t max_works, max_rows;
    moe_cards_counts counts;
};

/* ---- Sizes ---- */

static size_t x_bytes(const moe_device_limits *limits)
{
    return (size_t)limits->linear.n_rows * limits->linear.n * sizeof(float);
}

/* How many rows of results a call may have: one for each inner row of a feed-forward network. */
static uint32_t most_results(const moe_device_limits *limits)
{
    uint32_t most = 0;
    for (int i = 0; i < MOE_MAX_FF_LIMITS; i++) {
        most = limits->ff[i].n_rows > most ? limits->ff[i].n_rows : most;
    }
    return most;
}

static size_t out_bytes(const moe_device_limits *limits)
{
    return (size_t)most_results(limits) * limits->linear.n * sizeof(float);
}

/* The limits of a card that runs only experts(): it computes no attention. */
static moe_device_limits limits_of_experts(const moe_device_limits *limits)
{
    moe_device_limits experts = {.linear = limits->linear};
    memcpy(experts.ff, limits->ff, sizeof experts.ff);
    return experts;
}

uint32_t moe_cards_n(const moe_device *device)
{
    return device->cards != NULL ? device->cards->n : 1;
}

uint64_t moe_cards_room(const moe_device *device, uint32_t card, const moe_device_limits *limits,
                        uint64_t most)
{
    const moe_device *other = device->cards->cards[card].device;
    moe_device_limits experts = limits_of_experts(limits);
    uint64_t taken =
        other->ops->scratch_need(other, &experts) + x_bytes(limits) + out_bytes(limits);
    uint64_t memory = other->memory_bytes;
    memory = most != 0 && most < memory ? most : memory;
    return memory > taken ? memory - taken : 0;
}

uint64_t moe_cards_host_bytes(const moe_device *device, const moe_device_limits *limits)
{
    return device->cards != NULL ? x_bytes(limits) + out_bytes(limits) : 0;
}

void moe_cards_count(const moe_device *device, moe_cards_counts *counts)
{
    *counts = device->cards != NULL ? device->cards->counts : (moe_cards_counts){0};
}

/* ---- Slots ---- */

int moe_cards_alloc(moe_device *device, uint32_t card, size_t bytes, void **memory, moe_error *err)
{
    if (card == 0) {
        return device->ops->alloc(device, bytes, memory, err);
    }
    further_card *c = &device->cards->cards[card];
    MOE_TRY(c->device->ops->alloc(c->device, bytes, memory, err));
    c->slots = *memory;
    c->slots_bytes = bytes;
    return MOE_OK;
}

void moe_cards_free(moe_device *device, uint32_t card, void *memory, size_t bytes)
{
    if (card == 0) {
        device->ops->free(device, memory, bytes);
        return;
    }
    further_card *c = &device->cards->cards[card];
    c->device->ops->free(c->device, memory, bytes);
    c->slots = NULL;
    c->slots_bytes = 0;
}

/* Which card's slots contain this memory. */
static uint32_t card_of(const moe_cards *cards, const void *memory)
{
    for (uint32_t k = 1; k < cards->n; k++) {
        const further_card *c = &cards->cards[k];
        if (c->slots != NULL && (uintptr_t)memory - (uintptr_t)c->slots < c->slots_bytes) {
            return k;
        }
    }
    return 0;
}

/* ---- Operations that joined cards replace ---- */

static void cards_close(moe_device *device)
{
    moe_cards *cards = device->cards;
    for (uint32_t k = 1; k < cards->n; k++) {
        further_card *c = &cards->cards[k];
        if (c->device == NULL) {
            continue;
        }
        if (c->x != NULL) {
            c->device->ops->free(c->device, c->x, x_bytes(&cards->limits));
        }
        if (c->out != NULL) {
            c->device->ops->free(c->device, c->out, out_bytes(&cards->limits));
        }
        c->device->ops->close(c->device);
    }
    if (cards->host_x != NULL) {
        cards->own_link->host_free(device, cards->host_x, x_bytes(&cards->limits));
    }
    if (cards->host_out != NULL) {
        cards->own_link->host_free(device, cards->host_out, out_bytes(&cards->limits));
    }
    device->ops = cards->own_ops;
    device->link = cards->own_link;
    device->cards = NULL;
    free(cards->works);
    free(cards->rows);
    free(cards->places);
    free(cards);
    device->ops->close(device);
}

static int reserve_card(further_card *c, const moe_device_limits *limits, moe_error *err)
{
    moe_device_limits experts = limits_of_experts(limits);
    void *memory;
    int status = c->device->ops->reserve(c->device, &experts, err);
    if (status == MOE_OK) {
        status = c->device->ops->alloc(c->device, x_bytes(limits), &memory, err);
        c->x = status == MOE_OK ? memory : NULL;
    }
    if (status == MOE_OK) {
        status = c->device->ops->alloc(c->device, out_bytes(limits), &memory, err);
        c->out = status == MOE_OK ? memory : NULL;
    }
    return status;
}

static int cards_reserve(moe_device *device, const moe_device_limits *limits, moe_error *err)
{
    moe_cards *cards = device->cards;
    void *memory;
    cards->limits = *limits;
    cards->max_rows = most_results(limits);
    cards->rows = moe_calloc(cards->max_rows, sizeof *cards->rows);
    cards->places = moe_calloc(cards->max_rows, sizeof *cards->places);
    if (cards->rows == NULL || cards->places == NULL) {
        return moe_fail(err, MOE_ERR_MEMORY, "no memory for rows between cards");
    }
    for (uint32_t i = 0; i < cards->max_rows; i++) {
        cards->places[i] = i;
    }
    int status = cards->own_ops->reserve(device, limits, err);
    if (status == MOE_OK) {
        status = cards->own_link->host_alloc(device, x_bytes(limits), &memory, err);
        cards->host_x = status == MOE_OK ? memory : NULL;
    }
    if (status == MOE_OK) {
        status = cards->own_link->host_alloc(device, out_bytes(limits), &memory, err);
        cards->host_out = status == MOE_OK ? memory : NULL;
    }
    for (uint32_t k = 1; status == MOE_OK && k < cards->n; k++) {
        status = reserve_card(&cards->cards[k], limits, err);
    }
    return status;
}

/* Copies the works for another card, whose results go to rows 0, 1, .. *n_rows: out, the number of
 * rows of all works. */
static int turn_works(moe_cards *cards, const moe_expert_work *works, uint32_t n_works,
                      uint32_t *n_rows, moe_error *err)
{
    if (n_works > cards->max_works) {
        moe_expert_work *more = moe_realloc_array(cards->works, n_works, sizeof *more);
        if (more == NULL) {
            return moe_fail(err, MOE_ERR_MEMORY, "no memory for the work of %u experts", n_works);
        }
        cards->works = more;
        cards->max_works = n_works;
    }
    uint32_t n = 0;
    for (uint32_t w = 0; w < n_works; w++) {
        if (works[w].n_rows > cards->max_rows - n) {
            return moe_fail(err, MOE_ERR_ARGUMENT, "more than %u rows of experts", cards->max_rows);
        }
        cards->works[w] = works[w];
        cards->works[w].out_index = cards->places + n;
        for (uint32_t i = 0; i < works[w].n_rows; i++) {
            cards->rows[n++] = works[w].out_index != NULL ? works[w].out_index[i] : i;
        }
    }
    *n_rows = n;
    return MOE_OK;
}

int moe_cards_experts(moe_device *device, const float *x, uint32_t n_x_rows, uint32_t n_in,
                      const moe_expert_work *works, uint32_t n_works, float *out, size_t out_stride,
                      moe_error *err)
{
    moe_cards *cards = device->cards;
    uint32_t at = cards != NULL && n_works > 0 ? card_of(cards, works[0].up.data) : 0;
    if (at == 0) {
        return device->ops->experts(device, x, n_x_rows, n_in, works, n_works, out, out_stride,
                                    err);
    }
    const further_card *c = &cards->cards[at];
    uint32_t n_out = works[0].down.n_out;
    size_t there = (size_t)n_x_rows * n_in * sizeof(float);
    uint32_t n_rows = 0;
    if (out_stride != n_out || works[0].gate_bias != NULL || works[0].up_bias != NULL ||
        works[0].down_bias != NULL || there > x_bytes(&cards->limits)) {
        return moe_fail(err, MOE_ERR_UNSUPPORTED, "experts of this form on another card");
    }
    int status = turn_works(cards, works, n_works, &n_rows, err);
    if (status == MOE_OK) {
        status = cards->own_ops->download(device, cards->host_x, x, there, err);
    }
    if (status == MOE_OK) {
        status = c->device->ops->upload(c->device, c->x, cards->host_x, there, err);
    }
    if (status == MOE_OK) {
        status = c->device->ops->experts(c->device, c->x, n_x_rows, n_in, cards->works, n_works,
                                         c->out, n_out, err);
    }
    size_t back = (size_t)n_rows * n_out * sizeof(float);
    if (status == MOE_OK) {
        status = c->device->ops->download(c->device, cards->host_out, c->out, back, err);
    }
    if (status == MOE_OK) {
        status =
            cards->own_ops->scatter(device, cards->host_out, n_out, cards->rows, n_rows, out, err);
    }
    cards->counts.n_calls++;
    cards->counts.n_rows += n_rows;
    cards->counts.bytes_there += there;
    cards->counts.bytes_back += back;
    return status;
}

/* ---- The link: each card has its own ---- */

/* Makes one number of a card's ticket, in a sequence common to all cards, for callers that compare
 * tickets. */
static uint64_t joint_ticket(uint64_t ticket, uint32_t card)
{
    return ticket * MOE_MAX_CARDS + card;
}

static moe_device *device_of_card(moe_device *device, uint32_t card)
{
    return card == 0 ? device : device->cards->cards[card].device;
}

static moe_device *device_of_ticket(moe_device *device, uint64_t ticket)
{
    return device_of_card(device, (uint32_t)(ticket % MOE_MAX_CARDS));
}

static const moe_link_ops *link_of(moe_device *device, const moe_device *owner)
{
    return owner == device ? device->cards->own_link : owner->link;
}

static int cards_copy_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                            uint64_t *ticket, moe_error *err)
{
    uint32_t card = n_ranges > 0 ? card_of(device->cards, ranges[0].dst) : 0;
    moe_device *owner = device_of_card(device, card);
    uint64_t own = 0;
    int status = link_of(device, owner)->copy_begin(owner, ranges, n_ranges, &own, err);
    *ticket = joint_ticket(own, card);
    return status;
}

static int cards_copy_state(moe_device *device, uint64_t ticket)
{
    moe_device *owner = device_of_ticket(device, ticket);
    return link_of(device, owner)->copy_state(owner, ticket / MOE_MAX_CARDS);
}

static int cards_copy_wait(moe_device *device, uint64_t ticket, moe_error *err)
{
    moe_device *owner = device_of_ticket(device, ticket);
    return link_of(device, owner)->copy_wait(owner, ticket / MOE_MAX_CARDS, err);
}

static int cards_save_begin(moe_device *device, const moe_copy_range *ranges, uint32_t n_ranges,
                            uint64_t *ticket, moe_error *err)
{
    uint32_t card = n_ranges > 0 ? card_of(device->cards, ranges[0].src) : 0;
    moe_device *owner = device_of_card(device, card);
    uint64_t own = 0;
    int status = link_of(device, owner)->save_begin(owner, ranges, n_ranges, &own, err);
    *ticket = joint_ticket(own, card);
    return status;
}

static int cards_save_state(moe_device *device, uint64_t ticket)
{
    moe_device *owner = device_of_ticket(device, ticket);
    return link_of(device, owner)->save_state(owner, ticket / MOE_MAX_CARDS);
}

static void cards_copy_notify(moe_device *device, moe_copy_notify_fn fn, void *user)
{
    moe_cards *cards = device->cards;
    cards->own_link->copy_notify(device, fn, user);
    for (uint32_t k = 1; k < cards->n; k++) {
        cards->cards[k].device->link->copy_notify(cards->cards[k].device, fn, user);
    }
}

/* ---- Joining ---- */

int moe_cards_join(moe_device *first, moe_device *const *others, uint32_t n_others, moe_error *err)
{
    moe_cards *cards = moe_calloc(1, sizeof *cards);
    if (cards == NULL || n_others >= MOE_MAX_CARDS) {
        for (uint32_t i = 0; i < n_others; i++) {
            others[i]->ops->close(others[i]);
        }
        free(cards);
        return moe_fail(err, cards == NULL ? MOE_ERR_MEMORY : MOE_ERR_ARGUMENT,
                        "%u cards cannot be joined; %u can", n_others + 1, MOE_MAX_CARDS);
    }
    cards->first = first;
    cards->n = 1 + n_others;
    cards->own_ops = first->ops;
    cards->own_link = first->link;
    cards->ops = *first->ops;
    cards->ops.close = cards_close;
    cards->ops.reserve = cards_reserve;
    cards->link = *first->link;
    cards->link.copy_begin = cards_copy_begin;
    cards->link.copy_state = cards_copy_state;
    cards->link.copy_wait = cards_copy_wait;
    cards->link.save_begin = cards_save_begin;
    cards->link.save_state = cards_save_state;
    cards->link.copy_notify = cards_copy_notify;
    int used = snprintf(cards->name, sizeof cards->name, "%s", first->name);
    for (uint32_t i = 0; i < n_others; i++) {
        cards->cards[i + 1].device = others[i];
        others[i]->link->host_share(others[i], first);
        first->features &= others[i]->features;
        first->forms &= others[i]->forms;
        if (used > 0 && (size_t)used < sizeof cards->name) {
            used += snprintf(cards->name + used, sizeof cards->name - (size_t)used, " + %s",
                             others[i]->name);
        }
    }
    /* Experts' biases are on the first card only; other forms of experts have not been tried on
     * several cards. */
    first->forms &=
        ~(MOE_FORM_BIT(MOE_FORM_EXPERTS_BIASES) | MOE_FORM_BIT(MOE_FORM_EXPERTS_CLAMPED) |
          MOE_FORM_BIT(MOE_FORM_EXPERTS_LIMITED) | MOE_FORM_BIT(MOE_FORM_EXPERTS_GELU) |
          MOE_FORM_BIT(MOE_FORM_EXPERTS_SILU_CLAMPED) | MOE_FORM_BIT(MOE_FORM_EXPERTS_RELU) |
          MOE_FORM_BIT(MOE_FORM_EXPERTS_SITU) | MOE_FORM_BIT(MOE_FORM_EXPERTS_X_SCALES));
    first->name = cards->name;
    first->ops = &cards->ops;
    first->link = &cards->link;
    first->recording = NULL;
    first->cards = cards;
    return MOE_OK;
}
