/* SPDX-License-Identifier: MIT */
#include "hub_sum.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <openssl/evp.h>

#define BLOCK (1u << 20)

struct hub_sum {
    /* Set at the start. */
    int fd;
    uint64_t size;
    char wanted[HUB_SUM_SIZE];
    EVP_MD_CTX *context;
    pthread_t thread;
    unsigned char *block;
    /* Under the mutex. */
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t there;
    uint64_t seen;
    bool ended; /* the thread must stop, or the file cannot be read */
};

/* Adds `size` bytes from `at` to the sum. False: the file cannot be read. */
static bool take(hub_sum *sum, uint64_t at, size_t size)
{
    size_t n = 0;
    while (n < size) {
        ssize_t got = pread(sum->fd, sum->block + n, size - n, (off_t)(at + n));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return false;
        }
        n += (size_t)got;
    }
    return EVP_DigestUpdate(sum->context, sum->block, size) == 1;
}

static void *follow(void *user)
{
    hub_sum *sum = user;
    pthread_mutex_lock(&sum->mutex);
    while (!sum->ended && sum->seen < sum->size) {
        uint64_t at = sum->seen;
        uint64_t n = sum->there - at;
        if (n == 0) {
            pthread_cond_wait(&sum->changed, &sum->mutex);
            continue;
        }
        pthread_mutex_unlock(&sum->mutex);
        n = n < BLOCK ? n : BLOCK;
        bool taken = take(sum, at, (size_t)n);
        pthread_mutex_lock(&sum->mutex);
        sum->seen += taken ? n : 0;
        sum->ended |= !taken;
    }
    pthread_mutex_unlock(&sum->mutex);
    return NULL;
}

/* Begins the sum. Git's SHA-1 covers "blob SIZE", a zero byte, and the file. */
static bool begin(hub_sum *sum)
{
    char head[40];
    bool is_git = strlen(sum->wanted) == 40;
    int n = snprintf(head, sizeof head, "blob %" PRIu64, sum->size);
    return EVP_DigestInit_ex(sum->context, is_git ? EVP_sha1() : EVP_sha256(), NULL) == 1 &&
           (!is_git || EVP_DigestUpdate(sum->context, head, (size_t)n + 1) == 1);
}

hub_sum *hub_sum_start(int fd, uint64_t size, const char *wanted)
{
    hub_sum *sum = calloc(1, sizeof *sum);
    if (sum == NULL) {
        return NULL;
    }
    sum->fd = fd;
    sum->size = size;
    snprintf(sum->wanted, sizeof sum->wanted, "%s", wanted);
    sum->context = EVP_MD_CTX_new();
    sum->block = malloc(BLOCK);
    pthread_mutex_init(&sum->mutex, NULL);
    pthread_cond_init(&sum->changed, NULL);
    if (sum->context == NULL || sum->block == NULL || !begin(sum) ||
        pthread_create(&sum->thread, NULL, follow, sum) != 0) {
        EVP_MD_CTX_free(sum->context);
        free(sum->block);
        free(sum);
        return NULL;
    }
    return sum;
}

void hub_sum_advance(hub_sum *sum, uint64_t bytes)
{
    pthread_mutex_lock(&sum->mutex);
    sum->there = bytes > sum->there ? bytes : sum->there;
    pthread_cond_signal(&sum->changed);
    pthread_mutex_unlock(&sum->mutex);
}

bool hub_sum_is_done(hub_sum *sum, uint64_t *bytes)
{
    pthread_mutex_lock(&sum->mutex);
    bool done = sum->ended || sum->seen == sum->size;
    *bytes = sum->seen;
    pthread_mutex_unlock(&sum->mutex);
    return done;
}

static bool is_wanted(const hub_sum *sum)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char digits[2 * EVP_MAX_MD_SIZE + 1] = "";
    unsigned n = 0;
    if (sum->seen != sum->size || EVP_DigestFinal_ex(sum->context, digest, &n) != 1) {
        return false;
    }
    for (unsigned i = 0; i < n; i++) {
        snprintf(digits + 2 * i, 3, "%02x", digest[i]);
    }
    return strcmp(digits, sum->wanted) == 0;
}

bool hub_sum_end(hub_sum **sum_at)
{
    hub_sum *sum = *sum_at;
    *sum_at = NULL;
    pthread_mutex_lock(&sum->mutex);
    sum->ended = true;
    pthread_cond_signal(&sum->changed);
    pthread_mutex_unlock(&sum->mutex);
    pthread_join(sum->thread, NULL);
    bool wanted = is_wanted(sum);
    EVP_MD_CTX_free(sum->context);
    free(sum->block);
    pthread_mutex_destroy(&sum->mutex);
    pthread_cond_destroy(&sum->changed);
    free(sum);
    return wanted;
}
