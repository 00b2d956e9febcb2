/* SPDX-License-Identifier: MIT */
/* Separates what a model writes into reasoning and answer, by their marks. */
#ifndef MOE_MODEL_CHAT_REPLY_H
#define MOE_MODEL_CHAT_REPLY_H

#include "runtime/model/chat_template.h"

typedef struct moe_reply_text {
    char *data; /* ends with a 0 byte once text has been added */
    size_t size, capacity;
} moe_reply_text;

typedef enum moe_reply_part {
    MOE_REPLY_CONTENT,
    MOE_REPLY_REASONING,
    MOE_REPLY_HEADER
} moe_reply_part;

typedef struct moe_reply_reader {
    const moe_tokenizer *tokenizer;
    moe_chat_marks marks;
    moe_text_stream stream;
    char *streamed; /* room for moe_text_stream_max() bytes */
    moe_reply_part part;
    moe_reply_text header; /* the header of a message with channels */
    moe_reply_text held;   /* text that may be the beginning of a mark */
    moe_reply_text spaces; /* white space that may belong to the end of the reasoning */
    bool skips_space;      /* drops white space at the start of reasoning, and right after it */
    bool starts;           /* no text has come yet */
    bool keeps_markup; /* writes control tokens as text, and messages to tools with their header */
    bool to_tool;      /* with channels: the message is for a tool */
    /* With channels and markup kept: no token of a message's frame has come yet. */
    bool is_bare;
    bool no_memory;
    moe_reply_text out[2]; /* [moe_reply_part]: content and reasoning */
} moe_reply_reader;

int moe_reply_open(moe_reply_reader *reader, const moe_tokenizer *tokenizer,
                   const moe_chat_marks *marks, bool in_reasoning, moe_error *err);
void moe_reply_close(moe_reply_reader *reader);
/* Adds a token. Afterwards reader->out[] holds the text that the token completed. If memory is
 * short, text is lost, and reader->no_memory says so. */
void moe_reply_push(moe_reply_reader *reader, int32_t token);
void moe_reply_finish(moe_reply_reader *reader);
/* Drops an incomplete character at the end, because the text was cut off there. */
void moe_reply_cut_off(moe_reply_reader *reader);

#endif
