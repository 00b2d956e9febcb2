/* SPDX-License-Identifier: MIT */
/* The page at "/": page/page.html with its style sheet and scripts, as the build puts it into the
 * command. */
#ifndef SERVER_PAGE_H
#define SERVER_PAGE_H

#include <stddef.h>

extern const char server_page[];
extern const size_t server_page_size;
extern const char server_page_policy[]; /* Content-Security-Policy: allows only the page's own
                                         * script and style */

#endif
