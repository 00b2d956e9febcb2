/* SPDX-License-Identifier: MIT */
/* Streaming decoding. The output does not depend on how the bytes were spread over tokens: it is
 * the whole text with each maximal bad stretch replaced by U+FFFD, as Unicode recommends. */
#include "runtime/model/tokenizer_state.h"

#include <string.h>

#include "runtime/model/utf8_text.h"

static const char replacement[] = "\xEF\xBF\xBD";

size_t moe_text_stream_max(const moe_tokenizer *tokenizer)
{
    /* Each bad byte can become a U+FFFD, of three bytes. */
    return 3 * (tokenizer->vocab.max_size + sizeof((moe_text_stream *)0)->pending);
}

static size_t put(char *out, const void *data, size_t size)
{
    memcpy(out, data, size);
    return size;
}

size_t moe_text_stream_push(moe_text_stream *stream, const moe_tokenizer *tokenizer, int32_t token,
                            char *out)
{
    moe_string_view piece = moe_tokenizer_piece(tokenizer, token, false);
    if (!stream->started && piece.size > 0) {
        stream->started = true;
        if (tokenizer->is_spm && tokenizer->add_space_prefix && piece.data[0] == ' ') {
            piece.data++;
            piece.size--;
        }
    }
    size_t written = 0;
    size_t at = 0;
    size_t bad;
    int open;
    /* First completes the character that earlier tokens began. */
    while (stream->n_pending > 0 && at < piece.size) {
        stream->pending[stream->n_pending++] = (uint8_t)piece.data[at++];
        size_t step = moe_utf8_step(stream->pending, stream->n_pending, &bad, &open);
        if (step > 0) {
            written += put(out + written, stream->pending, step);
            stream->n_pending = 0;
        } else if (!open) {
            /* The byte just added did not fit, so it begins a new character. */
            written += put(out + written, replacement, 3);
            stream->n_pending = 0;
            at--;
        }
    }
    while (at < piece.size) {
        const uint8_t *bytes = (const uint8_t *)piece.data + at;
        size_t step = moe_utf8_step(bytes, piece.size - at, &bad, &open);
        if (step > 0) {
            written += put(out + written, bytes, step);
            at += step;
        } else if (open) {
            stream->n_pending = (uint8_t)(piece.size - at);
            memcpy(stream->pending, bytes, piece.size - at);
            at = piece.size;
        } else {
            written += put(out + written, replacement, 3);
            at += bad;
        }
    }
    return written;
}

size_t moe_text_stream_finish(moe_text_stream *stream, char *out)
{
    size_t written = stream->n_pending > 0 ? put(out, replacement, 3) : 0;
    stream->n_pending = 0;
    return written;
}
