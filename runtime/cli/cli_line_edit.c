/* SPDX-License-Identifier: MIT */
/* Editing with libedit. While the conversation lasts the terminal neither echoes nor collects lines
 * by itself (Ctrl-C and Ctrl-Z stay signals): text that is typed or pasted during an answer waits,
 * whole, for the next prompt. Terminals enclose pasted text in two sequences (bracketed paste), so
 * its line ends are text and do not send it. */
#include "cli_line_edit.h"

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>
#include <wchar.h>

#include "cli_interrupt.h"

#define PASTE_BEGINS "\\e[200~"
#define PASTE_ENDS   L"\033[201~"

struct cli_line_edit {
    EditLine *lib;
    History *entries;
    cli_history *history;
    const char *const *words;
    struct termios terminal; /* the terminal's settings before editing */
    struct winsize size;
    bool interrupted; /* the last read ended by Ctrl-C: the next one leaves */
    /* Bytes that were read and are not yet characters. */
    unsigned char bytes[4096];
    size_t n_bytes;
    size_t at;
};

static cli_line_edit *of(EditLine *lib)
{
    void *data = NULL;
    el_get(lib, EL_CLIENTDATA, &data);
    return data;
}

static char *prompt(EditLine *lib)
{
    (void)lib;
    return (char *)"> "; /* libedit does not write to it */
}

/* ---- Characters ---- */

/* Another program, such as the shell after Ctrl-Z, may have changed the terminal or its size. */
static void follow_terminal(cli_line_edit *e)
{
    struct winsize size;
    struct termios now;
    if (ioctl(STDIN_FILENO, TIOCGWINSZ, &size) == 0 &&
        (size.ws_col != e->size.ws_col || size.ws_row != e->size.ws_row)) {
        e->size = size;
        el_resize(e->lib);
    }
    if (tcgetattr(STDIN_FILENO, &now) == 0 && (now.c_lflag & (tcflag_t)ICANON) != 0 &&
        tcgetpgrp(STDIN_FILENO) == getpgrp()) {
        el_set(e->lib, EL_PREP_TERM, 0);
        el_set(e->lib, EL_PREP_TERM, 1);
        el_set(e->lib, EL_REFRESH);
    }
}

/* Returns 1, 0 at the end of input, or -1 if a signal or an error ended the read. Looks at the
 * terminal twice a second, because a signal that reports a change may go to any thread. */
static int read_bytes(cli_line_edit *e)
{
    struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
    for (;;) {
        int ready = poll(&input, 1, 500);
        if (ready > 0) {
            ssize_t n = read(STDIN_FILENO, e->bytes, sizeof e->bytes);
            e->at = 0;
            e->n_bytes = n > 0 ? (size_t)n : 0;
            ready = n >= 0 ? 1 : -1;
        }
        if (ready > 0) {
            follow_terminal(e);
            return e->n_bytes > 0;
        }
        if (cli_interrupted() || (ready < 0 && errno != EINTR)) {
            return -1;
        }
        follow_terminal(e);
    }
}

static int read_byte(cli_line_edit *e, unsigned char *byte)
{
    int got = e->at < e->n_bytes ? 1 : read_bytes(e);
    if (got == 1) {
        *byte = e->bytes[e->at++];
    }
    return got;
}

/* Reads one character of UTF-8, which libedit itself would only do in a UTF-8 locale. Bytes that
 * are not UTF-8 become U+FFFD. */
static int read_character(EditLine *lib, wchar_t *out)
{
    cli_line_edit *e = of(lib);
    unsigned char byte;
    int got = read_byte(e, &byte);
    if (got != 1) {
        return got;
    }
    unsigned n_more = byte < 0xc2 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : byte < 0xf5 ? 3 : 0;
    uint32_t code = byte < 0x80 ? byte : n_more == 0 ? 0xfffd : byte & (0x3fu >> n_more);
    for (unsigned i = 0; i < n_more; i++) {
        got = read_byte(e, &byte);
        if (got != 1) {
            return got;
        }
        if ((byte & 0xc0) != 0x80) {
            e->at--;
            code = 0xfffd;
            break;
        }
        code = code << 6 | (byte & 0x3f);
    }
    bool is_valid = code < 0x110000 && !(code >= 0xd800 && code < 0xe000) &&
                    !(n_more == 2 && code < 0x800) && !(n_more == 3 && code < 0x10000);
    *out = is_valid ? (wchar_t)code : 0xfffd;
    return 1;
}

/* ---- Keys ---- */

static bool ends_paste(const wchar_t *text, size_t n)
{
    size_t size = wcslen(PASTE_ENDS);
    return n >= size && wmemcmp(text + n - size, PASTE_ENDS, size) == 0;
}

/* Turns carriage returns into line feeds, because terminals send carriage returns for line ends. */
static void fix_line_ends(wchar_t *text)
{
    wchar_t *out = text;
    for (const wchar_t *at = text; *at != L'\0'; at++) {
        if (*at == L'\r' && at[1] == L'\n') {
            continue;
        }
        *out++ = *at == L'\r' ? L'\n' : *at;
    }
    *out = L'\0';
}

static unsigned char key_paste(EditLine *lib, int key)
{
    (void)key;
    wchar_t *text = NULL;
    size_t n = 0;
    size_t room = 0;
    wchar_t character;
    while (!(n > 0 && ends_paste(text, n)) && read_character(lib, &character) == 1) {
        if (n + 1 >= room) {
            size_t more = room == 0 ? 1024 : 2 * room;
            wchar_t *larger = realloc(text, more * sizeof *text);
            if (larger == NULL) {
                free(text);
                return CC_ERROR;
            }
            text = larger;
            room = more;
        }
        if (character != L'\0') {
            text[n++] = character;
        }
    }
    if (n == 0) {
        free(text);
        return CC_NORM;
    }
    n -= ends_paste(text, n) ? wcslen(PASTE_ENDS) : 0;
    text[n] = L'\0';
    fix_line_ends(text);
    int inserted = text[0] == L'\0' ? 0 : el_winsertstr(lib, text);
    free(text);
    return inserted == 0 ? CC_REFRESH : CC_ERROR;
}

static unsigned char key_line_end(EditLine *lib, int key)
{
    (void)key;
    return el_winsertstr(lib, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
}

/* Completes a command at the line's beginning as far as it is unambiguous; otherwise lists the
 * possible commands. */
static unsigned char key_complete(EditLine *lib, int key)
{
    (void)key;
    cli_line_edit *e = of(lib);
    const LineInfo *line = el_line(lib);
    size_t typed = (size_t)(line->cursor - line->buffer);
    const char *first = NULL;
    size_t common = 0;
    size_t n_found = 0;
    if (typed == 0 || line->buffer[0] != '/' || line->cursor != line->lastchar) {
        return CC_ERROR;
    }
    for (const char *const *word = e->words; *word != NULL; word++) {
        if (strncmp(*word, line->buffer, typed) != 0) {
            continue;
        }
        if (n_found++ == 0) {
            first = *word;
            common = strlen(first);
        }
        while (strncmp(first, *word, common) != 0) {
            common--;
        }
    }
    char rest[64];
    if (n_found == 0 || (n_found > 1 && common == typed)) {
        for (const char *const *word = e->words; n_found > 0 && *word != NULL; word++) {
            if (strncmp(*word, line->buffer, typed) == 0) {
                printf("%s%s", first == *word ? "\n" : "  ", *word);
            }
        }
        if (n_found > 0) {
            putchar('\n');
            fflush(stdout);
        }
        return n_found > 0 ? CC_REDISPLAY : CC_ERROR;
    }
    snprintf(rest, sizeof rest, "%.*s%s", (int)(common - typed), first + typed,
             n_found == 1 ? " " : "");
    return rest[0] != '\0' && el_insertstr(lib, rest) == 0 ? CC_REFRESH : CC_ERROR;
}

/* While the arrows go through the history, libedit keeps the current line aside and cuts it to its
 * first 1,024 characters. So for a longer line the key does nothing. */
static unsigned char key_back(EditLine *lib, int key)
{
    (void)key;
    const LineInfoW *line = el_wline(lib);
    if (line->lastchar - line->buffer > 1000) {
        return CC_ERROR;
    }
    el_wpush(lib, L"\020"); /* Ctrl-P */
    return CC_NORM;
}

static void bind_keys(EditLine *lib)
{
    static const char *const keys[][2] = {
        {PASTE_BEGINS, "moe-paste"},
        {"\\e\\r", "moe-line-end"}, /* Alt-Enter */
        {"\\e\\n", "moe-line-end"},
        {"\\t", "moe-complete"},
        {"\\e[A", "moe-back"},
        {"\\eOA", "moe-back"},
        {"\\e[3~", "ed-delete-next-char"},
        {"\\e[1~", "ed-move-to-beg"},
        {"\\e[4~", "ed-move-to-end"},
        {"\\e[H", "ed-move-to-beg"},
        {"\\e[F", "ed-move-to-end"},
        {"\\e[1;5C", "em-next-word"},
        {"\\e[1;5D", "ed-prev-word"},
        {"^R", "em-inc-search-prev"},
        {"^W", "ed-delete-prev-word"},
    };
    /* el_set() would copy the names for libedit, which never frees them. */
    el_wset(lib, EL_ADDFN, L"moe-paste", L"inserts what is pasted", key_paste);
    el_wset(lib, EL_ADDFN, L"moe-line-end", L"inserts a line end", key_line_end);
    el_wset(lib, EL_ADDFN, L"moe-complete", L"completes a command", key_complete);
    el_wset(lib, EL_ADDFN, L"moe-back", L"goes back in the history", key_back);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        el_set(lib, EL_BIND, keys[i][0], keys[i][1], NULL);
    }
}

/* ---- Opening, reading ---- */

/* libedit writes characters in the locale's code, and messages are UTF-8. */
static bool use_utf8(void)
{
    return (setlocale(LC_CTYPE, "") != NULL && strcmp(nl_langinfo(CODESET), "UTF-8") == 0) ||
           setlocale(LC_CTYPE, "C.UTF-8") != NULL;
}

static void fill_history(cli_line_edit *e)
{
    HistEvent event;
    history(e->entries, &event, H_SETSIZE, 1000);
    history(e->entries, &event, H_SETUNIQUE, 1);
    for (size_t i = 0; i < e->history->n_entries; i++) {
        if (mbstowcs(NULL, e->history->entries[i], 0) != (size_t)-1) {
            history(e->entries, &event, H_ENTER, e->history->entries[i]);
        }
    }
    el_set(e->lib, EL_HIST, history, e->entries);
}

cli_line_edit *cli_line_edit_open(cli_history *history, const char *const *words)
{
    cli_line_edit *e = use_utf8() ? calloc(1, sizeof *e) : NULL;
    if (e == NULL || tcgetattr(STDIN_FILENO, &e->terminal) != 0) {
        free(e);
        return NULL;
    }
    (void)ioctl(STDIN_FILENO, TIOCGWINSZ, &e->size);
    e->history = history;
    e->words = words;
    e->entries = history_init();
    e->lib = e->entries == NULL ? NULL : el_init("moe-offload", stdin, stdout, stderr);
    if (e->lib == NULL) {
        cli_line_edit_close(&e);
        return NULL;
    }
    el_set(e->lib, EL_CLIENTDATA, e);
    el_set(e->lib, EL_PROMPT, prompt);
    el_set(e->lib, EL_EDITOR, "emacs");
    el_set(e->lib, EL_SIGNAL, 0);
    el_wset(e->lib, EL_GETCFN, read_character);
    el_set(e->lib, EL_SETTY, "-d", "-icrnl", "-inlcr", NULL); /* pasted text has carriage returns
                                                               * and line feeds */
    el_set(e->lib, EL_SETTY, "-x", "-icanon", "-echo", "-icrnl", NULL);
    bind_keys(e->lib);
    fill_history(e);
    cli_interrupt_guard_terminal(&e->terminal);
    fputs(CLI_TERMINAL_PASTES, stdout);
    fflush(stdout);
    return e;
}

static bool copy_line(const char *text, char **line, size_t *size)
{
    size_t n = strlen(text);
    if (n + 1 > *size) {
        char *larger = realloc(*line, n + 1);
        if (larger == NULL) {
            return false;
        }
        *line = larger;
        *size = n + 1;
    }
    n -= n > 0 && text[n - 1] == '\n';
    memcpy(*line, text, n);
    (*line)[n] = '\0';
    return true;
}

/* Handles Ctrl-C: drops the line. A second Ctrl-C, with nothing typed between, leaves the
 * conversation. */
static cli_line_result interrupted(cli_line_edit *e)
{
    bool leaves = e->interrupted || cli_interrupt_ends();
    e->interrupted = true;
    fputs(leaves ? "\n" : "\n(Ctrl-C once more leaves)\n", stdout);
    fflush(stdout);
    if (!leaves) {
        cli_interrupt_clear();
    }
    return leaves ? CLI_LINE_INTERRUPTED : CLI_LINE_REFUSED;
}

cli_line_result cli_line_edit_read(cli_line_edit *e, char **line, size_t *size)
{
    int n = 0;
    const char *text = el_gets(e->lib, &n);
    if (text == NULL || n <= 0) {
        if (cli_interrupted()) {
            return interrupted(e);
        }
        puts("");
        return CLI_LINE_END;
    }
    e->interrupted = false;
    if (!copy_line(text, line, size)) {
        cli_fail(CLI_EXIT_FAILURE, "out of memory for the line");
        return CLI_LINE_REFUSED;
    }
    HistEvent event;
    if (cli_history_keeps(*line)) {
        history(e->entries, &event, H_ENTER, *line);
        cli_history_keep(e->history, *line);
    }
    return CLI_LINE_READ;
}

void cli_line_edit_close(cli_line_edit **edit)
{
    cli_line_edit *e = *edit;
    if (e == NULL) {
        return;
    }
    if (e->lib != NULL) {
        el_end(e->lib);
        fputs(CLI_TERMINAL_NO_PASTES, stdout);
        fflush(stdout);
        (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &e->terminal);
        cli_interrupt_guard_terminal(NULL);
    }
    if (e->entries != NULL) {
        history_end(e->entries);
    }
    free(e);
    *edit = NULL;
}
