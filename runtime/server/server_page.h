/* SPDX-License-Identifier: MIT */
/* The page at "/": server_page.html, as the build puts it into the command. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

extern const char server_page[];
extern const size_t server_page_size;

#endif
